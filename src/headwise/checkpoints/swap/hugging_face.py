"""transformers: the families of `FORMS`. Modules stay where they are; headwise does the work inside.

Masks are transformers' own (`eager` and `sdpa`), rotary tables and caches too: a cache keeps what the new shape needs,
whatever that is, so `generate` works as before. A causal model stays causal: a mask can only hide more.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise.checkpoints import all_readers
from headwise.checkpoints.rotary import layer_kind
from headwise.checkpoints.swap.carry import Carried
from headwise.checkpoints.swap.forms import FORMS, SERVED, Form, distance_bias, result, table_of
from headwise.checkpoints.swap.latent import fill_latent
from headwise.checkpoints.swap.layer import AttentionPlace, HostAttention, InMemory, by_name, factory_of
from headwise.layers.cache import KVCache
from headwise.shape import AttentionShape
from headwise.spec import SpecError

__all__ = ["SERVED", "places"]
IMPLEMENTATIONS = ("eager", "sdpa")
_ROTARY = ("rotary_emb", "rope_embeddings")


def places(model: nn.Module) -> Sequence[AttentionPlace]:
    config: Any = getattr(model, "config", None)
    if not hasattr(config, "to_dict"):
        return []
    weights = InMemory(model, config.to_dict())
    kind = next((one for one in all_readers().values() if one.matches(weights.config, weights)), None)
    if kind is None:
        return []
    reader = kind(weights)
    forms = [form for form in FORMS if reader.family in form.families]
    if not forms:
        return []
    attentions: list[_HuggingFacePlace] = []
    for layer in dict.fromkeys(reader.layers):  # ALBERT goes through one of them several times
        number = reader.layers.index(layer)
        form, module = _form(model, layer, forms)
        _check_masks(getattr(module, "config", config))
        causal = getattr(module, "is_causal", False) or reader.is_causal(number)
        attentions.append(_place(model, layer, module, reader.heads(number), form, causal))
        attentions[-1].kind = layer_kind(reader.config, number)
    return attentions


def _form(model: nn.Module, layer: str, forms: list[Form]) -> tuple[Form, Any]:
    """The form of a layer's attention, and the module."""
    modules = dict(model.named_modules())
    present = [(form, modules[layer + form.place]) for form in forms if layer + form.place in modules]
    for form, module in present:
        if type(module).__name__ in form.classes:
            return form, module
    found = f"'{layer}{present[0][0].place}' is a {type(present[0][1]).__name__}" if present else f"'{layer}' is other"
    raise SpecError(f"{found}; a swap knows {', '.join(name for form in forms for name in form.classes)}")


def _check_masks(config: Any) -> None:
    implementation = config._attn_implementation
    if implementation not in IMPLEMENTATIONS:
        raise SpecError(
            f"the model attends through '{implementation}', whose masks have a form of their own: load it with "
            f"attn_implementation='{IMPLEMENTATIONS[1]}'"
        )


def _place(model: Any, layer: str, module: Any, heads: Any, form: Form, causal: bool) -> "_HuggingFacePlace":
    norm = getattr(module, "q_norm", None)
    names = ("attention_dropout", "attn_dropout", "dropout")
    dropout: Any = next(getattr(module, name) for name in names if hasattr(module, name))
    scaling = getattr(module, "scaling", None) or getattr(module, "scale", None) or heads.shape.qk_rank**-0.5
    return _HuggingFacePlace(
        layer + form.place,
        module,
        heads,
        causal=causal,
        dropout=getattr(dropout, "p", dropout),
        temperature=scaling * heads.shape.qk_rank**0.5,
        norm_eps=None if norm is None else getattr(norm, "variance_epsilon", getattr(norm, "eps", None)),
        plain_norm=norm is not None and not list(norm.parameters()),
        latent_eps=float(
            getattr(getattr(module, "kv_a_layernorm", None), "variance_epsilon", None)
            or getattr(model.config, "rms_norm_eps", None)
            or 1e-6
        ),
        factory=factory_of(getattr(module, form.projections[0])),
        form=form,
        outside=model.get_submodule(layer + form.outside) if form.outside else None,
        softcap=getattr(module, form.softcap) or 0.0 if form.softcap else 0.0,
        turns=next((one for name, one in model.named_modules() if name.split(".")[-1] in _ROTARY), None),
    )


@dataclass
class _HuggingFacePlace(AttentionPlace):
    form: Form = FORMS[0]
    outside: Any = None  # what holds the output projection, where the module does not
    turns: Any = None  # the model's own rotary tables
    kind: str = ""  # of the layer, where tables differ

    def build(self, shape: AttentionShape, carried: Carried | None) -> HostAttention:
        if self.biased and shape.heads != self.heads.shape.heads:
            raise SpecError(f"'{self.name}' has a bias of distance for each head: {self.heads.shape.heads} heads stay")
        if carried is None or not self.heads.shape.kv_latent:
            return super().build(shape, carried)
        layer = super().build(shape, None)
        fill_latent(layer, self.module)
        return layer

    def table(self, x: Tensor) -> Tensor | None:
        turning = self.turns is not None and self.heads.frequencies is not None
        return table_of(self.form, self._turned(x), x.shape[1]) if turning else None

    def _turned(self, x: Tensor) -> Any:
        if self.form.turns == "patches":
            config = self.turns.config
            patches = max(x.shape[1] - 1 - config.num_register_tokens, 1)
            return self.turns(x.new_empty(1, 3, config.patch_size, patches * config.patch_size))
        kinds = {"layer_type": self.kind} if "layer_type" in by_name(self.turns, 0) else {}
        return self.turns(x, torch.arange(x.shape[1], device=x.device)[None], **kinds)

    def extras(self, x: Tensor) -> Tensor | None:
        """Biases of distance."""
        return torch.randn(1, self.heads.shape.heads, *(2 * x.shape[1:2])).to(x) if self.biased else None

    @property
    def biased(self) -> bool:
        return "position_bias" in by_name(self.module, 0)

    def original(self, x: Tensor, extra: Tensor | None) -> Tensor:
        module = copy.deepcopy(self.module).to(x.dtype).eval()
        mask = None
        if self.causal:  # eager attention has no other way to know
            mask = x.new_full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
        given: dict[str, Any] = {"mask" if "mask" in by_name(module, 0) else "attention_mask": mask}
        given |= {} if self.turns is None else {"position_embeddings": self._turned(x)}
        given |= {} if extra is None else {"position_bias": extra}
        if self.form.gives == "sum":
            return _before_sum(module, x, given)
        output: Tensor = module(x, **given)[0]
        return output if self.outside is None else copy.deepcopy(self.outside.dense).to(x.dtype)(output)

    def swapped(self, layer: HostAttention, x: Tensor, extra: Tensor | None, carried: Carried | None) -> Tensor:
        output: Tensor = layer(x, positions=self.table(x), pair_bias=extra)
        return output

    def put(self, layer: HostAttention, carried: Carried | None) -> None:
        host = self.module
        old, new = self.heads.shape, layer.shape
        same = new.qk_rank == old.qk_rank and (new.kv_heads == old.kv_heads or not layer.over_heads)
        if layer.query_norm is not None and carried is not None and same:
            layer.take_norms(host.q_norm, host.k_norm)  # their rounding is the model's
        install(host, self.form, self.outside, layer)


def install(host: Any, form: Form, outside: Any, layer: HostAttention) -> None:
    """Let the layer do the work of a module, whose own projections go."""
    for name in (*form.projections, "q_norm", "k_norm", "sinks"):
        if hasattr(host, name):
            delattr(host, name)
    if outside is not None:
        outside.dense = nn.Identity()
    host.headwise = layer.train(host.training)
    host._is_hf_initialized = True  # the family would begin projections that are gone (GPT-2, T5)
    host.forward = partial(_forward, host, form, by_name(host, 0))


def form_of(name: str, module: nn.Module) -> tuple[Form, str]:
    """The form of a module that is not swapped yet, and the name of the layer it stands in."""
    for form in FORMS:
        if type(module).__name__ in form.classes and name.endswith(form.place):
            return form, name.removesuffix(form.place)
    raise SpecError(f"'{name}' is a {type(module).__name__}, which a swap does not know")


def _before_sum(module: Any, x: Tensor, given: dict[str, Any]) -> Tensor:
    """What attention gives, where the module adds its input and normalises."""
    seen: list[Tensor] = []
    module.dense.register_forward_hook(lambda _, args, output: seen.append(output))
    module(x, **given)
    return seen[0]


def _forward(host: Any, form: Form, names: tuple[str, ...], *args: Any, **options: Any) -> tuple[Tensor | None, ...]:
    """What the module did, by the same arguments."""
    given = dict(zip(names, args, strict=False)) | options
    x, turned = given["hidden_states"], given.get("position_embeddings")
    past = given.get("layer_past") if "layer_past" in names else given.get("past_key_values")
    cache = None if past is None else HostCache(past, host.layer_idx)
    mask = given.get("mask" if "mask" in names else "attention_mask")
    keys = x.shape[1] + (cache.length if cache else 0) if mask is None else mask.shape[-1]
    bias = distance_bias(host, given, keys)
    eager = hasattr(host, "config") and host.config._attn_implementation == "eager"
    weighed = bool(given.get("output_attentions")) if form.gives == "asked" else eager
    output = host.headwise(
        x,
        mask=mask,
        pair_bias=bias,
        positions=None if turned is None else table_of(form, turned, x.shape[1]),
        cache=cache,
        need_weights=weighed,
    )
    output, weights = output if weighed else (output, None)
    return result(form, host, given, output, weights, bias)


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
