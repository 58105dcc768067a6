"""Swapped models of transformers that survive `save_pretrained`: a class that swaps itself as its configuration says.

    headwise.swap(model, "w768-h12-r32")
    model.save_pretrained("swapped")                                   # with a file of code that imports headwise
    AutoModelForCausalLM.from_pretrained("swapped", trust_remote_code=True)

The configuration is the family's own with one entry more, `headwise_attention`: the shape of every swapped layer and
what else its layer was made with.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from headwise.checkpoints.swap.hugging_face import form_of, install
from headwise.checkpoints.swap.layer import HostAttention
from headwise.shape import AttentionShape

ENTRY = "headwise_attention"
PREFIX = "Headwise"
CODE = '''"""Attention of another shape in this model: pip install headwise."""

from headwise.hf_model import swapped_class

{name} = swapped_class("{family}")
'''


@cache
def swapped_class(name: str) -> type[Any]:
    """A class of transformers whose attention is what its configuration's entry says."""
    import transformers

    return _subclass(getattr(transformers, name))


@cache
def _subclass(kind: type[Any]) -> type[Any]:
    def init(self: Any, config: Any, *args: Any, **options: Any) -> None:
        kind.__init__(self, config, *args, **options)
        for entry in getattr(config, ENTRY, []):
            _rebuild(self, entry)

    def save(self: Any, folder: str | Path, *args: Any, **options: Any) -> None:
        name = type(self).__name__
        self.config.auto_map = dict.fromkeys(auto_classes(name), f"modeling_headwise.{name}")
        type(self)._auto_class = None  # transformers would copy the file of the class it comes from
        options |= {"save_original_format": False}  # older names, which the folder's own code does not translate back
        kind.save_pretrained(self, folder, *args, **options)
        Path(folder, "modeling_headwise.py").write_text(CODE.format(name=name, family=kind.__name__))

    return type(
        PREFIX + kind.__name__, (kind,), {"__init__": init, "save_pretrained": save, "__module__": kind.__module__}
    )


_AUTOS = {
    "AutoModelForCausalLM": ("ForCausalLM", "LMHeadModel"),
    "AutoModelForMaskedLM": ("ForMaskedLM",),
    "AutoModelForSeq2SeqLM": ("T5ForConditionalGeneration",),
    "AutoModelForSpeechSeq2Seq": ("WhisperForConditionalGeneration",),
    "AutoModelForSequenceClassification": ("ForSequenceClassification",),
    "AutoModelForTokenClassification": ("ForTokenClassification",),
    "AutoModelForQuestionAnswering": ("ForQuestionAnswering",),
    "AutoModelForImageClassification": ("ForImageClassification",),
}


def auto_classes(name: str) -> list[str]:
    """The classes of transformers that load a class of this name."""
    return [auto for auto, end in _AUTOS.items() if name.endswith(end)] or ["AutoModel"]


def remember(model: nn.Module) -> None:
    """Let a model of transformers that was just swapped say so in its configuration, and be saved and loaded."""
    config: Any = getattr(model, "config", None)
    swapped = {name: module.headwise for name, module in model.named_modules() if hasattr(module, "headwise")}
    if not swapped or not hasattr(config, "to_dict"):
        return
    setattr(config, ENTRY, [_entry(name, layer) for name, layer in swapped.items()])
    kind: Any = type(model)
    model.__class__ = _subclass(kind)


def _entry(name: str, layer: HostAttention) -> dict[str, Any]:
    norm = layer.norms[0]
    own = norm is not None and not isinstance(norm, nn.RMSNorm)
    return {
        "name": name,
        "shape": str(layer.shape),
        "rope_rank": layer.shape.rope_rank,
        "pairs": None if layer.pairs is None else list(layer.pairs.shape),
        "causal": layer.causal,
        "dropout": layer.dropout,
        "inverse_temperature": layer.inverse_temperature,
        "input_bias": layer.input.bias is not None,
        "output_bias": layer.output.bias is not None,
        "qk_norm": "none" if norm is None else "host" if own else "rms" if list(norm.parameters()) else "rms-plain",
        "norm_eps": None if own or norm is None else norm.eps,
        "latent_eps": layer.kv_latent_norm.eps if layer.shape.kv_latent else 1e-6,
        "softcap": layer.softcap,
        "over_heads": layer.over_heads,
        "sinks": layer.sinks is not None,
    }


def _rebuild(model: nn.Module, entry: dict[str, Any]) -> None:
    """A layer as it was swapped, its weights still to be loaded."""
    host: Any = model.get_submodule(entry["name"])
    form, layer_name = form_of(entry["name"], host)
    shape = AttentionShape.parse(entry["shape"]).replace(rope_rank=entry["rope_rank"])
    pairs = entry["pairs"]
    kind = entry["qk_norm"]
    layer = HostAttention(
        shape,
        None if pairs is None else torch.zeros(pairs, dtype=torch.long),
        qk_norm="rms" if kind == "host" else kind,
        norm_eps=entry["latent_eps"],
        **{name: entry[name] for name in ("causal", "dropout", "inverse_temperature", "input_bias", "output_bias")},
        **{name: entry[name] for name in ("softcap", "over_heads", "sinks") if name in entry},
    )
    if kind == "host":
        layer.take_norms(host.q_norm, host.k_norm)
    elif kind != "none":
        for norm in layer.norms:
            if norm is not None:
                norm.eps = entry["norm_eps"]
    install(host, form, model.get_submodule(layer_name + form.outside) if form.outside else None, layer)
