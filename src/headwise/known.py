"""Models people know, as shape + options, with the parameter count their authors published.

`find("gpt2")` and `find("w512-h8-L6")` both give a `Known`: the second is a body without options of its own.
"""

from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape, ShapeError
from headwise.spec import SpecError


@dataclass(frozen=True)
class Experts:
    """A mixture of gated MLPs in the place of one, in layers whose shape has an MLP of 0."""

    layers: int
    count: int  # experts of a layer, of which a token meets `active`
    active: int
    mlp: int  # hidden width of one
    shared: int = 0  # hidden width of those that every token meets
    extra: int = 0  # parameters of a layer beside experts and router: a bias, or a gate

    def parameters(self, width: int) -> dict[str, int]:
        """By part: the experts, and the router that chooses among them."""
        each = 3 * width * (self.count * self.mlp + self.shared)
        return {"experts": self.layers * each, "router": self.layers * (width * self.count + self.extra)}

    def idle(self, width: int, tokens: int = 1) -> int:
        """Parameters that a token does not meet, or none of several that choose experts of their own."""
        return self.layers * 3 * width * max(0, self.count - self.active * tokens) * self.mlp

    def products(self, width: int) -> int:
        """Multiplications for one token."""
        return self.layers * width * (3 * (self.active * self.mlp + self.shared) + self.count)

    def saved(self, width: int) -> int:
        """Numbers kept of one token for the backward pass, as by transformers' mixtures: what an expert reads, gives
        and is weighted to, and its hidden units."""
        hidden = 4 * (self.active * self.mlp + self.shared)
        return self.layers * (width + 3 * self.count + 3 * self.active * width + hidden)


@dataclass(frozen=True)
class Known:
    """A model. `published` is its parameters as its authors count them, of what `options` and `experts` describe."""

    name: str
    shape: ModelShape
    options: ModelOptions = field(default_factory=ModelOptions)
    published: int | None = None
    windows: tuple[int, ...] = ()  # tokens that each layer sees, 0 for all; empty where every layer sees all
    experts: Experts | None = None


def _known(name: str, shape: str, family: str, published: int | None, **options: Any) -> Known:
    return Known(name, ModelShape.parse(shape), preset(family, **options), published)


def _mixture(name: str, shape: str, published: int, experts: Experts, **options: Any) -> Known:
    return replace(_known(name, shape, "llama", published, norm_eps=1e-6, **options), experts=experts)


_GPT2: dict[str, Any] = {"vocab": 50_257, "context": 1024}
_BERT: dict[str, Any] = {"vocab": 30_522, "context": 512}
_VIT: dict[str, Any] = {"image": 224, "patch": 16, "classes": 1000}
_STAGED: dict[str, Any] = {**_VIT, "patch": 4}
_NANOCHAT: dict[str, Any] = {"vocab": 65_536, "context": 2048}
_CRAMMED: dict[str, Any] = {
    "vocab": 32_768,
    "context": 128,
    "norm": "layer-plain",
    "norm_place": "pre",
    "mlp_kind": "gated",
    "bias": "none",
    "positions": "none",
    "segments": 0,
    "pooler": False,
    "embedding_norm": False,
}
_LLAMA3: dict[str, Any] = {"vocab": 128_256, "context": 131_072, "rope_base": 500_000.0}
_QWEN3: dict[str, Any] = {
    "vocab": 151_936,
    "context": 40_960,
    "norm_eps": 1e-6,
    "rope_base": 1_000_000.0,
    "qk_norm": "rms",
}
_GEMMA3: dict[str, Any] = {
    "vocab": 262_144,
    "context": 32_768,
    "norm_eps": 1e-6,
    "norm_place": "sandwich",
    "activation": "gelu-tanh",
    "qk_norm": "rms",
    "rope_base": 1_000_000.0,
    "tied": True,
}

KNOWN: dict[str, Known] = {
    known.name: known
    for known in (
        _known("nanochat-d20", "w1280-h10-L20", "nanochat", 560_988_160, **_NANOCHAT),
        _known("nanochat-d28", "w1792-h14-L28", "nanochat", None, **_NANOCHAT),
        _known("gpt2", "w768-h12-L12", "gpt2", 124_439_808, **_GPT2),
        _known("gpt2-medium", "w1024-h16-L24", "gpt2", 354_823_168, **_GPT2),
        _known("gpt2-xl", "w1600-h25-L48", "gpt2", 1_557_611_200, **_GPT2),
        _known("bert-base", "w768-h12-L12", "bert", 109_482_240, **_BERT),
        _known("bert-large", "w1024-h16-L24", "bert", 335_141_888, **_BERT),
        _known("crammed-bert", "w768-h12-L16-m1536", "bert", 119_537_664, **_CRAMMED),
        _known("crammed-bert-thin", "w768-h24-L10-m1536", "bert", 84_148_224, **_CRAMMED),
        _known("vit-s16", "w384-h6-L12", "vit", 22_050_664, **_VIT),
        _known("vit-b16", "w768-h12-L12", "vit", 86_567_656, **_VIT),
        _known("vit-l16", "w1024-h16-L24", "vit", 304_326_632, **_VIT),
        _known("llama-3.2-1b", "w2048-h32-g8-L16-m8192", "llama", 1_235_814_400, tied=True, **_LLAMA3),
        _known("llama-3-8b", "w4096-h32-g8-L32-m14336", "llama", 8_030_261_248, **{**_LLAMA3, "context": 8192}),
        _known("mistral-7b", "w4096-h32-g8-L32-m14336", "llama", 7_241_732_096, vocab=32_000, context=32_768),
        _known("qwen3-0.6b", "w1024-h16-r128-g8-L28-m3072", "llama", 596_049_920, tied=True, **_QWEN3),
        _known("qwen3-8b", "w4096-h32-g8-L36-m12288", "llama", 8_190_735_360, **_QWEN3),
        _known("gemma3-270m", "w640-h4-r256-g1-L18-m2048", "llama", 268_098_176, **_GEMMA3),
        _known("gemma3-1b", "w1152-h4-r256-g1-L26-m6912", "llama", 999_885_952, **_GEMMA3),
        _known("xcit-s12", "w384-h8-L12", "xcit", None, **_VIT),
        _known("xcit-s24", "w384-h8-L24", "xcit", None, **_VIT),
        _known("xcit-m24", "w512-h8-L24", "xcit", None, **_VIT),
        _known("xcit-l24", "w768-h16-L24", "xcit", None, **_VIT),
        _known("tnt-s", "w384-h6-L12", "tnt", None, inner="w24-h4", **_VIT),
        _known("tnt-b", "w640-h10-L12", "tnt", None, inner="w40-h4", **_VIT),
        _known("davit-t", "w96-h3-L2,2,6,2", "davit", 28_360_168, **_STAGED),
        _known("davit-s", "w96-h3-L2,2,18,2", "davit", 49_745_896, **_STAGED),
        _known("davit-b", "w128-h4-L2,2,18,2", "davit", 87_954_408, **_STAGED),
        _known("davit-l", "w192-h6-L2,2,18,2", "davit", 196_811_752, **_STAGED),
        _known("swin-t", "w96-h3-L2,2,6,2", "swin", 28_288_354, **_STAGED),
        _mixture(
            "deepseek-v2-lite",
            "w2048-h16-r192-v128-c512-p64-L27-m10944,0x26",
            15_706_484_224,
            Experts(layers=26, count=64, active=6, mlp=1408, shared=2816),
            vocab=102_400,
            context=163_840,
        ),
        _mixture(
            "deepseek-v3",
            "w7168-h128-r192-v128-c512-q1536-p64-L61-m18432x3,0x58",
            671_026_404_352,
            Experts(layers=58, count=256, active=8, mlp=2048, shared=2048),
            vocab=129_280,
            context=163_840,
        ),
    )
}


def find(text: str, family: str = "", **details: Any) -> Known:
    """The known model of that name, or the shape written in the text: a bare body, or a model of a family.

    `details` are the options a family needs: `find("w512-h8-L6", "llama", vocab=32000)`.
    """
    known = _find(text)
    if not family:
        if details.get("vocab"):
            raise SpecError("--vocab needs a --family, as in --family llama --vocab 32000")
        return known
    if known.name:
        raise SpecError(f"{known.name} has a family of its own; give its shape instead: {known.shape}")
    return replace(known, options=preset(family, **details))


def _find(text: str) -> Known:
    name = text.strip().lower()
    if name in KNOWN:
        return KNOWN[name]
    try:
        return Known("", ModelShape.parse(text))
    except ShapeError as error:
        close = get_close_matches(name, KNOWN, n=3, cutoff=0.5)
        if close and not name.startswith("w"):
            raise ShapeError(f"'{text}' is neither a known model nor a shape", lambda: close) from None
        raise error
