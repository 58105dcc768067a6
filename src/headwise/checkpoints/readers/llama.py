"""Llama, Mistral, Qwen, Gemma, Granite, SmolLM3 and StarCoder 2: four linear layers, rotary, grouped keys.

Some normalise queries and keys.
"""

from typing import Any, ClassVar

from torch import Tensor

from headwise.checkpoints.files import Weights
from headwise.checkpoints.reader import SeparateReader, activation_of, known_of, stated
from headwise.checkpoints.rotary import attention_factor, layer_kind, rope_frequencies, rope_scaling, settings
from headwise.known import Experts, Known
from headwise.options import preset
from headwise.shape import AttentionShape
from headwise.spec import SpecError

_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3_text")


_LIKE_LLAMA = ("granite", "smollm3", "starcoder2")


class LlamaReader(SeparateReader):
    family = "llama"
    model_types = frozenset(
        {"llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", *_GEMMA, *_LIKE_LLAMA}
    )
    signature = r"(?P<layer>(.*\.)?layers\.\d+\.)self_attn\.k_proj\.weight"
    names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
    mlp_names: ClassVar[dict[str, int]] = {"mlp.down_proj.weight": 1, "mlp.c_fc.weight": 0}
    causal = True

    def __init__(self, weights: Weights, heads: int | None = None) -> None:
        super().__init__(weights, heads)
        self.config = self.config.get("text_config") or self.config
        towers = [layer for layer in self.layers if "vision" not in layer]  # Gemma 3 has eyes of other sizes
        self.layers = towers or self.layers

    @classmethod
    def described(cls, config: dict[str, Any]) -> Known | None:
        config = config.get("text_config") or config
        kind = config["model_type"]
        if kind == "starcoder2":  # its MLP is not gated
            return None
        sizes = {"width": stated(config, "hidden_size"), "heads": stated(config, "num_attention_heads")}
        sizes |= {"kv_heads": config.get("num_key_value_heads") or sizes["heads"]}
        sizes |= {"qk_rank": config["head_dim"]} if config.get("head_dim") else {}
        layer, depth = AttentionShape(**sizes), stated(config, "num_hidden_layers")
        normed: Any = "rms" if kind in ("qwen3", "qwen3_moe", "gemma3", "gemma3_text") else "none"
        rope = settings(config, "full_attention")
        base, scaling = float(rope.get("rope_theta", 10_000.0)), rope_scaling(rope)
        attention, in_mlp = bool(config.get("attention_bias")), bool(config.get("mlp_bias"))
        if attention != in_mlp:  # biases of attention without those of the MLP, or the other way round
            return None
        act = config.get("hidden_activation") or config.get("hidden_act") or ("gelu-tanh" if kind in _GEMMA else "silu")
        options = preset(
            "llama",
            vocab=stated(config, "vocab_size"),
            context=stated(config, "max_position_embeddings"),
            norm_eps=float(config.get("rms_norm_eps", 1e-6)),
            norm_place="sandwich" if kind in _GEMMA[1:] else "pre",
            activation="gelu-tanh" if kind in _GEMMA else activation_of(act),
            bias="qkv" if kind in ("qwen2", "qwen2_moe") else "all" if attention else "none",
            qk_norm=normed,
            rope_base=base,
            tied=bool(config.get("tie_word_embeddings", kind in _GEMMA)),
            softcap=float(config.get("final_logit_softcapping") or 0.0),
            rope_scaling=str(scaling or ""),
            attention_softcap=float(config.get("attn_logit_softcapping") or 0.0),
            embedding_scale=sizes["width"] ** 0.5 if kind in _GEMMA else 1.0,
        )
        mlp, windows = stated(config, "intermediate_size"), _windows(config, depth)
        if kind != "mixtral" and not kind.endswith("_moe"):
            return known_of(layer, depth, mlp, options, windows)
        mlps = [0 if _sparse(config, number) else mlp for number in range(depth)]
        return known_of(layer, depth, mlps, options, windows, _experts(config, mlps.count(0), mlp))

    def frequencies(self, number: int, rank: int) -> Tensor | None:
        turning: list[int] = self.config.get("no_rope_layers") or []  # SmolLM3: 0 where nothing turns
        if number < len(turning) and not turning[number]:
            return None
        return rope_frequencies(settings(self.config, layer_kind(self.config, number)), rank)

    def norms(self, layer: str, rank: int) -> tuple[Tensor, Tensor] | None:
        names = [f"{layer}self_attn.{which}_norm.weight" for which in "qk"]
        if names[0] not in self.weights:
            return None
        query, key = (self.weights[name] for name in names)
        return (1 + query, 1 + key) if self.config.get("model_type") in _GEMMA else (query, key)

    def scale(self, rank: int) -> float:
        turned = attention_factor(settings(self.config)) ** 2
        if self.config.get("attention_multiplier"):  # Granite
            return float(self.config["attention_multiplier"]) * turned
        fixed = self.config.get("query_pre_attn_scalar")  # Gemma 2 and 3 state the scale apart from the rank
        return float(fixed or rank) ** -0.5 * turned


def _windows(config: dict[str, Any], depth: int) -> tuple[int, ...]:
    """Tokens that each layer sees, 0 for all; nothing where all of them see all."""
    window, kinds = config.get("sliding_window"), config.get("layer_types")
    if not window or (not kinds and config.get("use_sliding_window") is False):
        return ()
    if not isinstance(window, int) or (kinds and len(kinds) < depth):
        raise SpecError(f"the configuration's sliding_window and layer_types do not describe {depth} layers")
    pattern = config.get("sliding_window_pattern")
    if not kinds and isinstance(pattern, int) and pattern > 0:
        kinds = ["full_attention" if (i + 1) % pattern == 0 else "sliding_attention" for i in range(depth)]
    spans = tuple(0 if kinds and kinds[i] != "sliding_attention" else window for i in range(depth))
    return spans if any(spans) else ()


def _sparse(config: dict[str, Any], number: int) -> bool:
    """Whether a layer has experts in the place of an MLP."""
    step = config.get("decoder_sparse_step") or 1
    return number not in (config.get("mlp_only_layers") or ()) and (number + 1) % step == 0


def _experts(config: dict[str, Any], layers: int, mlp: int) -> Experts:
    shared = config.get("shared_expert_intermediate_size") or 0
    return Experts(
        layers=layers,
        count=stated(config, "num_local_experts", "num_experts"),
        active=stated(config, "num_experts_per_tok"),
        mlp=config.get("moe_intermediate_size") or mlp,
        shared=shared,
        extra=stated(config, "hidden_size") if shared else 0,  # the gate of what is shared
    )


READER = LlamaReader
