"""Everything about a model that is not its shape: what goes in and out, norms, biases, the kind of MLP.

A shape with options is a whole model. A bare shape is a body: blocks without embeddings and head, with no biases and
with norms that have no parameters, so that it is made of nothing but the matrices the shape speaks of. `PRESETS`
are the usual combinations. Nothing here needs torch.
"""

import json
import math
import re
from functools import lru_cache
from itertools import cycle, islice
from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from headwise.shape import ModelShape
from headwise.spec import Spec, SpecError

Family = Literal["encoder", "decoder", "vit", "bert"]
Norm = Literal["layer", "layer-plain", "rms", "rms-plain", "unit", "none"]
FACTS = ("vocab", "context", "image", "patch", "channels", "classes")  # options that data may decide
# fields that keys made before do not have
LATER = ("rope_scaling", "attention_softcap", "embedding_scale", "style", "inner", "mixer")
Activation = Literal["relu", "relu2", "gelu", "gelu-tanh", "silu"]
Style = Literal["vit", "xcit", "tnt", "swin", "davit"]
PLAIN = "attention"  # the mixer of a block where nothing else is said
_MIXER = re.compile(r"([a-z][a-z-]*?)((?:-\d{1,9})*)(?:x(\d{1,5}))?")


class RopeScaling(Spec):
    """How rotary frequencies are stretched for more tokens than a model first saw, as Llama 3, YaRN or evenly.

    Written as on the command line: `llama3:factor=8,context=8192`. Of `llama3` and `yarn`, frequencies that turn less
    than `slow` times within the first context are divided by the factor, those that turn more than `fast` times stay.
    """

    kind: Literal["linear", "llama3", "yarn"] = Field(description="the rule")
    factor: float = Field(gt=0, description="what the slow frequencies are divided by")
    context: int = Field(default=0, ge=0, description="tokens that the model first saw; llama3 and yarn need it")
    slow: float = Field(default=1.0, gt=0, description="turns within that context")
    fast: float = Field(default=0.0, ge=0, description="turns within it; 0 for the rule's usual, 4 or 32")
    attention: float = Field(default=0.0, ge=0, description="on what turned, of yarn; 0 for 0.1 ln factor + 1")
    whole: bool = Field(default=True, description="of yarn: the ramp lies between whole pairs")

    @model_validator(mode="after")
    def _check(self) -> "RopeScaling":
        if self.kind != "linear" and not self.context:
            raise SpecError(f"rope scaling '{self.kind}' needs the first context: {self.kind}:factor=8,context=8192")
        if self.kind != "linear" and self.turns <= self.slow:
            raise SpecError(f"rope scaling: fast is {self.turns:g}, but must be above slow, {self.slow:g}")
        return self

    @property
    def turns(self) -> float:
        """Within the first context: what turns more often stays as it is."""
        return self.fast or {"llama3": 4.0, "yarn": 32.0}.get(self.kind, 0.0)

    @property
    def growth(self) -> float:
        """What turned queries and keys are multiplied by, each."""
        if self.kind != "yarn":
            return 1.0
        return self.attention or (0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0)

    @classmethod
    def parse(cls, text: str) -> "RopeScaling":
        kind, _, rest = text.partition(":")
        values: dict[str, Any] = {"kind": kind.strip()}
        for pair in filter(None, rest.split(",")):
            name, _, value = pair.partition("=")
            try:
                values[name.strip()] = json.loads(value)
            except ValueError:
                raise SpecError(
                    f"cannot read rope scaling '{text}'; write linear:factor=2, llama3:factor=8,context=8192 or "
                    "yarn:factor=4,context=4096"
                ) from None
        real = {name: float(values[name]) for name in _REAL if _is_int(values.get(name))}
        return cls(**{**values, **real})

    def __str__(self) -> str:
        said = self.model_dump(exclude_defaults=True, exclude={"kind"})
        return f"{self.kind}:" + ",".join(f"{name}={json.dumps(value)}" for name, value in said.items())


_REAL = ("factor", "slow", "fast", "attention")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class ModelOptions(Spec):
    """What turns a shape into a model. The defaults are a bare body (see the module's first lines)."""

    family: Family = Field(default="encoder", description="encoder (vectors in and out), decoder, vit or bert")
    norm: Norm = Field(default="rms-plain", description="'-plain' has no parameters; 'unit' has one scalar")
    norm_place: Literal["pre", "post", "sandwich"] = Field(default="pre", description="where a block normalises")
    residual: bool = Field(default=True, description="each part of a block is added to its input")
    norm_eps: float = Field(default=1e-6, description="added inside every norm")
    mlp_kind: Literal["plain", "gated"] = Field(default="plain", description="gated: two products in, one out")
    activation: Activation = Field(default="relu2", description="of the MLP")
    bias: Literal["none", "qkv", "all"] = Field(default="none", description="which products add a bias")
    positions: Literal["none", "learned", "rotary"] = Field(default="none", description="how positions are encoded")
    rope_base: float = Field(default=10_000.0, description="base of the rotary frequencies")
    qk_norm: Literal["none", "rms", "rms-plain"] = Field(default="none", description="norm of queries and keys")
    hardmax: bool = Field(default=False, description="all weight on the largest logit; for constructions")
    logit_scale: bool = Field(default=False, description="a learned factor on each head's logits")
    output_scale: float = Field(default=1.0, description="fixed factor on attention's output")
    dropout: float = Field(default=0.0, description="on attention weights and on each block's outputs")
    init: Literal["unit", "torch", "orthogonal", "gpt2", "nanochat", "llama", "qwen3", "bert", "vit"] = Field(
        default="unit",
        description="unit variance; torch's own defaults; unit with orthogonal attention; or a family's original",
    )
    vocab: int = Field(default=0, description="number of tokens")
    context: int = Field(default=0, description="longest sequence; 0 where the model has no limit of its own")
    segments: int = Field(default=0, description="rows of BERT's segment table")
    embedding_norm: bool = Field(default=False, description="a norm after the embedding")
    final_norm: bool = Field(default=False, description="a norm after the last block")
    tied: bool = Field(default=False, description="the output reuses the embedding table")
    softcap: float = Field(default=0.0, description="bound on output logits, softcap·tanh(logit/softcap); 0 for none")
    pooler: bool = Field(default=False, description="BERT's dense layer on the first token")
    head: Literal["none", "lm", "mlm", "classes"] = Field(default="none", description="what the model predicts")
    classes: int = Field(default=0, description="number of classes, with head 'classes'")
    image: int = Field(default=0, description="side of a square image, in pixels")
    patch: int = Field(default=0, description="side of a square patch, in pixels")
    channels: int = Field(default=3, description="of an image")
    whitened: bool = Field(default=False, description="an image's tokens made orthogonal before the first block")
    style: Style = Field(default="vit", description="of a vit: what stands around attention, as its authors have it")
    inner: str = Field(default="", description="with style 'tnt': the shape of the transformer inside each patch")
    mixer: str = Field(default=PLAIN, description="what mixes tokens: one name, or a list that repeats over the layers")
    rope_scaling: str = Field(default="", description="llama3:factor=8,context=8192; yarn:...; linear:factor=2")
    attention_softcap: float = Field(default=0.0, ge=0, description="bound on attention's logits; 0 for none")
    embedding_scale: float = Field(default=1.0, gt=0, description="what tokens' embeddings are multiplied by")

    @model_serializer(mode="wrap")
    def _as_before(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Later fields are written where they are used: what has none of them keeps its key."""
        said: dict[str, Any] = dump(self)
        unused = {name for name in LATER if said.get(name) == type(self).model_fields[name].default}
        return {name: value for name, value in said.items() if name not in unused}

    @model_validator(mode="after")
    def _check(self) -> "ModelOptions":
        needs = {
            "decoder": ("vocab",),
            "bert": ("vocab",),
            "vit": ("image", "patch"),
            "encoder": (),
        }[self.family]
        for name in (*needs, *(("classes",) if self.head == "classes" else ())):
            if getattr(self, name) < 1:
                raise SpecError(f"a model of family '{self.family}' needs {name}: give --{name} or {name}=...")
        if self.positions == "learned" and self.family in ("decoder", "bert") and self.context < 1:
            raise SpecError("learned positions need a context: give --context or context=...")
        if self.family == "vit" and self.image % self.patch:
            raise SpecError(f"patches of {self.patch} do not tile an image of {self.image}; use a divisor")
        if self.whitened and self.family != "vit":
            raise SpecError("whitened tokens depend on later ones too: leave whitened out, or use family 'vit'")
        mixer_words(self.mixer, 1)
        if (self.style != "vit" and self.family != "vit") or bool(self.inner) != (self.style == "tnt"):
            raise SpecError("a style is of the family vit, and style 'tnt' needs an inner shape such as inner=w24-h4")
        if self.scaling and self.positions != "rotary":
            raise SpecError(f"rope_scaling stretches rotary positions, and these are {self.positions}")
        if self.embedding_scale != 1.0 and self.family != "decoder":
            raise SpecError("embedding_scale is a decoder's (Gemma's is the root of the width): leave it out")
        if self.head in ("lm", "mlm") and not self.vocab:
            raise SpecError(f"head '{self.head}' predicts tokens, so it needs vocab")
        return self

    def complete(self, shape: ModelShape) -> ModelShape:
        """The shape as these options build and price it.

        A latent cannot be rotated, so with rotary positions half of each head is kept out of it and turns
        (`AttentionShape.rotary`), unless the shape says itself which part does.
        """
        if self.positions != "rotary":
            return shape
        stated = any(layer.kv_latent and layer.rope_rank for layer in shape.layers)
        layers = tuple(layer.rotary for layer in shape.layers)
        if stated or layers == shape.layers:
            return shape
        return ModelShape.of(layers, shape.mlps)

    @property
    def scaling(self) -> RopeScaling | None:
        return RopeScaling.parse(self.rope_scaling) if self.rope_scaling else None

    @property
    def causal(self) -> bool:
        return self.family == "decoder"

    @property
    def tokens(self) -> int:
        """Tokens the body sees for one whole input: an image's patches and its class token, else the context."""
        if self.style in ("swin", "davit", "xcit"):  # means of all patches, or a class token that comes late
            return (self.image // self.patch) ** 2
        return (self.image // self.patch) ** 2 + 1 if self.family == "vit" else self.context


def read_mixer(item: str) -> tuple[str, list[int], int]:
    """Name, numbers and repetitions of one item of `options.mixer`: `window-64x5`."""
    match = _MIXER.fullmatch(item.strip())
    if match is None or match[3] == "0":
        raise SpecError(
            f"cannot read '{item[:40]}' as a mixer; write a name and its numbers, as in window-64, and where layers "
            "differ a list, as in window-64x3,attention"
        )
    return match[1], [int(number) for number in match[2].split("-")[1:]], int(match[3] or 1)


@lru_cache(maxsize=1024)  # every model's options are checked, and most have the same
def mixer_words(pattern: str, depth: int) -> tuple[str, ...]:
    """The mixer of each layer as it is written: the list, as often as it takes."""
    listed: list[str] = []
    for item in pattern.split(","):
        name, numbers, times = read_mixer(item)
        listed += ["-".join([name, *map(str, numbers)])] * times
    return tuple(islice(cycle(listed), depth))


_LLAMA: dict[str, Any] = {
    "family": "decoder",
    "norm": "rms",
    "mlp_kind": "gated",
    "activation": "silu",
    "positions": "rotary",
    "final_norm": True,
    "head": "lm",
}
_CLASSIC: dict[str, Any] = {"norm": "layer", "activation": "gelu", "bias": "all"}

PRESETS: dict[str, dict[str, Any]] = {
    "encoder": {"norm": "unit", "norm_place": "post", "activation": "relu", "bias": "all"},
    "nanochat": {
        "family": "decoder",
        "init": "nanochat",
        "positions": "rotary",
        "qk_norm": "rms-plain",
        "embedding_norm": True,
        "final_norm": True,
        "head": "lm",
        "softcap": 15.0,
    },
    "gpt2": {
        **_CLASSIC,
        "family": "decoder",
        "init": "gpt2",
        "norm_eps": 1e-5,
        "activation": "gelu-tanh",
        "positions": "learned",
        "final_norm": True,
        "tied": True,
        "head": "lm",
    },
    "llama": {**_LLAMA, "init": "llama", "norm_eps": 1e-5},
    "qwen3": {**_LLAMA, "init": "qwen3", "qk_norm": "rms", "rope_base": 1_000_000.0},
    "bert": {
        **_CLASSIC,
        "family": "bert",
        "init": "bert",
        "norm_eps": 1e-12,
        "norm_place": "post",
        "positions": "learned",
        "segments": 2,
        "embedding_norm": True,
        "tied": True,
        "pooler": True,
    },
    "vit": {
        **_CLASSIC,
        "family": "vit",
        "init": "vit",
        "norm_eps": 1e-6,
        "positions": "learned",
        "final_norm": True,
        "head": "classes",
    },
}


STYLES: dict[str, dict[str, Any]] = {  # vision transformers whose blocks are not plain
    "xcit": {**PRESETS["vit"], "positions": "none", "style": "xcit", "mixer": "xca"},
    "tnt": {**PRESETS["vit"], "norm_eps": 1e-5, "style": "tnt", "inner": "w24-h4"},
    "swin": {**PRESETS["vit"], "norm_eps": 1e-5, "positions": "none", "style": "swin", "mixer": "swin-7,swin-7-3"},
    "davit": {**PRESETS["vit"], "norm_eps": 1e-5, "positions": "none", "style": "davit", "mixer": "squares-7,channels"},
}


def preset(name: str, **changes: Any) -> ModelOptions:
    """The options of a usual kind of model, with changes: `preset("llama", vocab=32000, context=2048)`."""
    known = PRESETS | STYLES
    if name not in known:
        raise SpecError(f"no family '{name}'; there are {', '.join(known)}")
    return ModelOptions(**{**known[name], **changes})
