"""transformers: BERT, GPT-2, Llama and their kin, ViT. Modules stay where they are; headwise does the work inside.

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
from headwise.checkpoints.swap.layer import AttentionPlace, HostAttention, InMemory, by_name, factory_of
from headwise.layers.cache import KVCache
from headwise.spec import SpecError


@dataclass(frozen=True)
class Form:
    """One way in which layers of a reader's family hold attention."""

    families: tuple[str, ...]
    place: str  # of the module in a layer
    projections: tuple[str, ...]  # what the module projects with
    classes: tuple[str, ...]  # known to have that form
    outside: str = ""  # the output projection, where it stands outside the module: its place in the layer


_FOUR = ("q_proj", "k_proj", "v_proj", "o_proj")
_OUT = (*_FOUR[:3], "out_proj")
_BERTS = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra")
_LLAMAS = (
    *("Llama", "Mistral", "Qwen2", "Qwen3", "Granite", "SmolLM3", "Starcoder2", "Mixtral", "Qwen2Moe", "Qwen3Moe"),
    *("Gemma", "Olmo"),
)
FORMS = (
    Form(("llama", "olmo"), "self_attn", _FOUR, tuple(f"{name}Attention" for name in _LLAMAS)),
    Form(("phi3",), "self_attn", ("qkv_proj", "o_proj"), ("Phi3Attention",)),
    Form(("nanochat",), "self_attn", _FOUR, ("NanoChatAttention",)),
    Form(("gpt2",), "attn", ("c_attn", "c_proj"), ("GPT2Attention",)),
    Form(
        ("bert",),
        "attention.self",
        ("query", "key", "value"),
        tuple(f"{name}SelfAttention" for name in _BERTS),
        outside="attention.output",
    ),
    Form(("bert",), "attention", ("q_lin", "k_lin", "v_lin", "out_lin"), ("DistilBertSelfAttention",)),
    Form(("vit",), "attention", _FOUR, ("ViTAttention",)),
    Form(
        ("opt", "whisper", "clip", "clip_text_model", "clip_vision_model"),
        "self_attn",
        _OUT,
        ("OPTAttention", "WhisperAttention", "CLIPAttention"),
    ),
    Form(("siglip", "siglip_text_model", "siglip_vision_model"), "self_attn", _OUT, ("SiglipAttention",)),
    Form(("modernbert",), "attn", ("Wqkv", "Wo"), ("ModernBertAttention",)),
)
SERVED = "transformers' " + ", ".join(
    name.removesuffix("SelfAttention").removesuffix("Attention") for form in FORMS for name in form.classes
)
IMPLEMENTATIONS = ("eager", "sdpa")


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
    for number, layer in enumerate(reader.layers):
        form, module = _form(model, layer, forms)
        _check_masks(module.config)
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


def _place(model: nn.Module, layer: str, module: Any, heads: Any, form: Form, causal: bool) -> "_HuggingFacePlace":
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
        latent_eps=getattr(module.config, "rms_norm_eps", 1e-6),
        factory=factory_of(getattr(module, form.projections[0])),
        form=form,
        outside=model.get_submodule(layer + form.outside) if form.outside else None,
        turns=next((one for name, one in model.named_modules() if name.endswith("rotary_emb")), None),
    )


@dataclass
class _HuggingFacePlace(AttentionPlace):
    form: Form = FORMS[0]
    outside: Any = None  # what holds the output projection, where the module does not
    turns: Any = None  # the model's own rotary tables
    kind: str = ""  # of the layer, where tables differ

    def table(self, x: Tensor) -> Tensor | None:
        if self.turns is None or self.heads.frequencies is None:
            return None
        return torch.stack([part[..., : part.shape[-1] // 2] for part in self._turned(x)])

    def _turned(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kinds = {"layer_type": self.kind} if "layer_type" in by_name(self.turns, 0) else {}
        cos, sin = self.turns(x, torch.arange(x.shape[1], device=x.device)[None], **kinds)
        return cos, sin

    def original(self, x: Tensor, extra: Tensor | None) -> Tensor:
        module = copy.deepcopy(self.module).to(x.dtype).eval()
        mask = None
        if self.causal:  # eager attention has no other way to know
            mask = x.new_full((x.shape[1], x.shape[1]), -torch.inf).triu(1)[None, None]
        given: dict[str, Any] = {"attention_mask": mask}
        given |= {} if self.turns is None else {"position_embeddings": self._turned(x)}
        output: Tensor = module(x, **given)[0]
        return output if self.outside is None else copy.deepcopy(self.outside.dense).to(x.dtype)(output)

    def put(self, layer: HostAttention, carried: Carried | None) -> None:
        host = self.module
        if layer.query_norm is not None and layer.shape.qk_rank == self.heads.shape.qk_rank and carried is not None:
            layer.query_norm, layer.key_norm = host.q_norm, host.k_norm  # their rounding is the model's
        install(host, self.form, self.outside, layer)


def install(host: Any, form: Form, outside: Any, layer: HostAttention) -> None:
    """Let the layer do the work of a module, whose own projections go."""
    for name in (*form.projections, *(name for name in ("q_norm", "k_norm") if hasattr(host, name))):
        delattr(host, name)
    if outside is not None:
        outside.dense = nn.Identity()
    host.headwise = layer.train(host.training)
    host.forward = partial(_forward, host, by_name(host, 0))


def form_of(name: str, module: nn.Module) -> tuple[Form, str]:
    """The form of a module that is not swapped yet, and the name of the layer it stands in."""
    for form in FORMS:
        if type(module).__name__ in form.classes and name.endswith(form.place):
            return form, name.removesuffix(form.place)
    raise SpecError(f"'{name}' is a {type(module).__name__}, which a swap does not know")


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
