"""transformers: BERT, GPT-2, Llama and their kin, ViT. Modules stay where they are; headwise does the work inside.

Masks are transformers' own (`eager` and `sdpa`), rotary tables and caches too: a cache keeps what the new shape needs,
whatever that is, so `generate` works as before. A causal model stays causal: a mask can only hide more.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise.checkpoints import all_readers
from headwise.checkpoints.swap.carry import Carried
from headwise.checkpoints.swap.layer import AttentionPlace, HostAttention, InMemory, by_name, factory_of
from headwise.layers.cache import KVCache
from headwise.spec import SpecError

# family of the reader: where a layer has its attention, the classes known to have that form, what they project with
FAMILIES: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "llama": (
        "self_attn",
        ("LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention"),
        ("q_proj", "k_proj", "v_proj", "o_proj"),
    ),
    "nanochat": ("self_attn", ("NanoChatAttention",), ("q_proj", "k_proj", "v_proj", "o_proj")),
    "gpt2": ("attn", ("GPT2Attention",), ("c_attn", "c_proj")),
    "bert": ("attention.self", ("BertSelfAttention", "RobertaSelfAttention"), ("query", "key", "value")),
    "vit": ("attention", ("ViTAttention",), ("q_proj", "k_proj", "v_proj", "o_proj")),
}
SERVED = "transformers' " + ", ".join(
    name.removesuffix("Attention") for _, names, _ in FAMILIES.values() for name in names
)
IMPLEMENTATIONS = ("eager", "sdpa")


def places(model: nn.Module) -> list[AttentionPlace]:
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return []
    weights = InMemory(model, config.to_dict())
    kind = next((one for one in all_readers().values() if one.matches(weights.config, weights)), None)
    if kind is None or kind.family not in FAMILIES:
        return []
    reader = kind(weights)
    place, classes, _ = FAMILIES[kind.family]
    attentions: list[AttentionPlace] = []
    for number, layer in enumerate(reader.layers):
        module = model.get_submodule(layer + place)
        if type(module).__name__ not in classes:
            raise SpecError(f"'{layer}{place}' is a {type(module).__name__}; a swap knows {', '.join(classes)}")
        _check_masks(module.config)
        attentions.append(_place(model, layer + place, module, reader.heads(number), kind.family))
    return attentions


def _check_masks(config: Any) -> None:
    implementation = config._attn_implementation
    if implementation not in IMPLEMENTATIONS:
        raise SpecError(
            f"the model attends through '{implementation}', whose masks have a form of their own: load it with "
            f"attn_implementation='{IMPLEMENTATIONS[1]}'"
        )


def _place(model: nn.Module, name: str, module: Any, heads: Any, family: str) -> "_HuggingFacePlace":
    _, _, projections = FAMILIES[family]
    norm = getattr(module, "q_norm", None)
    dropout = getattr(module, "attention_dropout", None)
    if dropout is None:
        dropout = (module.attn_dropout if hasattr(module, "attn_dropout") else module.dropout).p
    return _HuggingFacePlace(
        name,
        module,
        heads,
        causal=module.is_causal,
        dropout=dropout,
        temperature=module.scaling * heads.shape.qk_rank**0.5,
        norm_eps=None if norm is None else getattr(norm, "variance_epsilon", getattr(norm, "eps", None)),
        plain_norm=norm is not None and not list(norm.parameters()),
        latent_eps=getattr(module.config, "rms_norm_eps", 1e-6),
        factory=factory_of(getattr(module, projections[0])),
        projections=projections,
        parent=model.get_submodule(name.rpartition(".")[0]),
    )


@dataclass
class _HuggingFacePlace(AttentionPlace):
    projections: tuple[str, ...] = ()
    parent: Any = None

    def put(self, layer: HostAttention, carried: Carried | None) -> None:
        host = self.module
        if layer.query_norm is not None and layer.shape.qk_rank == self.heads.shape.qk_rank and carried is not None:
            layer.query_norm, layer.key_norm = host.q_norm, host.k_norm  # their rounding is the model's
        for name in (*self.projections, *(name for name in ("q_norm", "k_norm") if hasattr(host, name))):
            delattr(host, name)
        if "query" in self.projections:  # BERT's output projection stands beside
            self.parent.output.dense = nn.Identity()
        host.headwise = layer.train(host.training)
        host.forward = partial(_forward, host, by_name(host, 0))


def _forward(host: Any, names: tuple[str, ...], *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """What the module did, by the same arguments."""
    given = dict(zip(names, args, strict=False)) | options
    past, table = given.get("past_key_values"), given.get("position_embeddings")
    weighed = host.config._attn_implementation == "eager"
    output = host.headwise(
        given["hidden_states"],
        mask=given.get("attention_mask"),
        positions=None if table is None else torch.stack([part[..., : part.shape[-1] // 2] for part in table]),
        cache=None if past is None else HostCache(past, host.layer_idx),
        need_weights=weighed,
    )
    output, weights = output if weighed else (output, None)
    return (host.resid_dropout(output) if hasattr(host, "resid_dropout") else output), weights


class HostCache(KVCache):
    """A cache of transformers as one layer sees it."""

    def __init__(self, cache: Any, layer: int) -> None:
        super().__init__()
        self.cache, self.layer = getattr(cache, "self_attention_cache", cache), layer
        self.length = int(self.cache.get_seq_length(layer))

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        flat = new[0].dim() == 3  # a latent has no heads, but a cache expects some
        first, second = (tensor.unsqueeze(1) if flat else tensor for tensor in new)
        kept = self.cache.update(first, second, self.layer)
        return tuple(tensor.squeeze(1) for tensor in kept) if flat else kept
