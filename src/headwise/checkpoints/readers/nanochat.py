"""nanochat: its own files, with names like GPT-2's, and what transformers writes, with names like Llama's.

Queries and keys are turned the other way round, which is headwise's rotation with the halves of a head exchanged, and
then normalised without weights.
"""

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from headwise.checkpoints.reader import SeparateReader, known_of, stated
from headwise.checkpoints.rotary import rope_frequencies, settings
from headwise.known import Known
from headwise.options import preset
from headwise.shape import AttentionShape

_OWN = ("attn.c_q", "attn.c_k", "attn.c_v", "attn.c_proj")
_TRANSFORMERS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")


class NanoChatReader(SeparateReader):
    family = "nanochat"
    model_types = frozenset({"nanochat"})
    signature = r"(?P<layer>(.*\.)?(h|layers)\.\d+\.)(attn\.c_q|self_attn\.q_proj)\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"mlp.c_fc.weight": 0, "mlp.fc1.weight": 0}
    causal = True

    @classmethod
    def matches(cls, config: dict[str, Any], names: Iterable[str]) -> bool:
        """Without a model_type only by nanochat's own names: the others could be any Llama."""
        kind = config.get("model_type")
        return kind == "nanochat" or (not kind and any(name.endswith("attn.c_q.weight") for name in names))

    @classmethod
    def described(cls, config: dict[str, Any]) -> Known | None:
        width, heads = stated(config, "hidden_size", "n_embd"), stated(config, "num_attention_heads", "n_head")
        shared = config.get("num_key_value_heads") or config.get("n_kv_head") or heads
        options = preset(
            "nanochat",
            vocab=stated(config, "vocab_size"),
            context=stated(config, "max_position_embeddings", "sequence_len"),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            rope_base=float(settings(config).get("rope_theta", 10_000.0)),
            softcap=float(config.get("final_logit_softcapping") or 0.0),
            tied=bool(config.get("tie_word_embeddings", False)),
        )
        layer = AttentionShape(width=width, heads=heads, kv_heads=shared)
        depth = stated(config, "num_hidden_layers", "n_layer")
        return known_of(layer, depth, config.get("intermediate_size") or 4 * width, options)

    def layer_names(self, layer: str) -> tuple[str, str, str, str]:
        return _OWN if f"{layer}{_OWN[0]}.weight" in self.weights else _TRANSFORMERS

    def frequencies(self, number: int, rank: int) -> Tensor | None:
        return rope_frequencies(settings(self.config), rank)

    def norms(self, layer: str, rank: int) -> tuple[Tensor, Tensor] | None:
        return torch.ones(rank), torch.ones(rank)

    def order(self, rank: int, rotated: int) -> Tensor:
        return torch.arange(rank).roll(rank // 2)


READER = NanoChatReader
