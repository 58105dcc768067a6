"""What can stand in attention's place in a block: its rules and its costs. The file of each is in `mixers/`.

A mixer is written as its name and its numbers, `window-64`; `options.mixer` is a list of them that repeats over the
layers: `window-512x5,attention` is five layers that see 512 tokens, one that sees all, and again.

    >>> mixer_words("window-512x2,attention", 5)
    ('window-512', 'window-512', 'attention', 'window-512', 'window-512')

What a mixer does not say it cannot do: no probe, kernel, bound, cache or decoder is there for it until it lists it.
No torch here; the files in `mixers/` have some, so plain attention stands here and is priced without it.
"""

from abc import ABC, abstractmethod
from dataclasses import MISSING, dataclass, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, ClassVar

from headwise.options import PLAIN, ModelOptions, mixer_words, read_mixer
from headwise.shape import AttentionShape, ModelShape
from headwise.spec import SpecError, unknown

TOOLS = ("inspect", "truncate", "export")  # export: to a class of transformers. `swap` and `convert` read none of ours
_FOLDER = Path(__file__).parent / "mixers"
_FORMS = ("rank", "stable-rank", "participation-rank", "condition")
HEAD_PROBES = frozenset(  # of a head's QᵀK and OV as matrices, and of the projections
    {f"{pair}-{form}" for pair in ("qk", "vo") for form in _FORMS}
    | {"qk-identity-angle", "qk-norm", "input-weight-condition", "output-weight-condition"}
)
PATTERN_PROBES = frozenset({"attention-entropy", "sharpness", "head-overlap"})  # of weights that sum to 1 over keys
MATRIX_PROBES = frozenset(  # of what goes in and comes out
    {"heads-condition", "centred-heads-condition"}
    | {f"{part}{what}-condition" for part in ("", "residual-") for what in ("block", "jacobian")}
)


@dataclass(frozen=True)
class Mixer(ABC):
    """One of them. Fields of a subclass are the numbers behind its name, in order."""

    name: ClassVar[str]
    summary: ClassVar[str]
    grid: ClassVar[bool] = False  # needs tokens that stand in a square
    causal: ClassVar[bool] = False  # may stand in a decoder, with a cache
    probes: ClassVar[frozenset[str]] = frozenset()
    kernels: ClassVar[bool] = False  # the compiled kernels compute it
    certified: ClassVar[bool] = False  # the theory's bounds are proved for it
    tools: ClassVar[frozenset[str]] = frozenset()  # of TOOLS, what works on a checkpoint with it

    @abstractmethod
    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        """By part of `cost.BODY_PARTS`, or `mixing` for what plain attention has not."""

    @abstractmethod
    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        """Multiplications of `queries` new tokens that can look at `keys` in all; with a cache, others are not new."""

    @abstractmethod
    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        """Numbers kept for the backward pass per token, an estimate: `fused` where the fast path runs."""

    def kept(self, shape: AttentionShape, tokens: int) -> int:
        """Numbers that the cache holds of a sequence of so many tokens."""
        return tokens * shape.cached_per_token if self.causal else 0

    def check(self, shape: AttentionShape, options: ModelOptions) -> None:  # noqa: B027
        """Refuse a shape or options that it cannot have; by default it can have all."""

    @abstractmethod
    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Any:
        """The torch module, for layer `number`, counted from 0."""

    def __str__(self) -> str:
        numbers = [getattr(self, one.name) for one in fields(self)]
        while numbers and numbers[-1] == fields(self)[len(numbers) - 1].default:
            numbers.pop()
        return "-".join([self.name, *map(str, numbers)])


@dataclass(frozen=True)
class PlainAttention(Mixer):
    """Multi-head attention as `layers.attention` has it. Its parts of a cost are what other mixers begin from."""

    name = PLAIN
    summary = "every token looks at every token, or at those before it"
    causal = True
    probes = HEAD_PROBES | PATTERN_PROBES | MATRIX_PROBES
    kernels = True
    certified = True
    tools = frozenset(TOOLS)

    def parameters(self, shape: AttentionShape, options: ModelOptions) -> dict[str, int]:
        w, h, g, r, v = shape.width, shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank
        c, q, p = shape.kv_latent, shape.q_latent, shape.rope_rank
        qkv, every = options.bias != "none", options.bias == "all"
        return {
            "query": h * r * q if q else h * r * (w + qkv),
            "key": c * g * (r - p) + p * (w + qkv) if c else g * r * (w + qkv),
            "value": c * g * v if c else g * v * (w + qkv),
            "output": w * (h * v + every),
            "latents": (q + c) * (w + qkv + 1),  # down-projections, and one norm weight for each number
            "norms": (r + (p if c else r)) * (options.qk_norm == "rms") + h * options.logit_scale,
        }

    def projections(self, shape: AttentionShape) -> int:
        """Multiplications of one token on the way in and out."""
        w, h, g, r, v = shape.width, shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank
        c, q = shape.kv_latent, shape.q_latent
        return w * (q or h * r) + q * h * r + h * v * w + (w * (c + shape.rope_rank) if c else w * g * (r + v))

    def products(
        self, shape: AttentionShape, options: ModelOptions, queries: int, keys: int, cached: bool = False
    ) -> int:
        expanded, absorbed = shape.products(queries, keys)
        between = absorbed if cached and shape.absorbs(queries, keys) else expanded
        return queries * self.projections(shape) + between

    def saved(self, shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
        h, g, r, v, c, q = shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank, shape.kv_latent, shape.q_latent
        if fused:  # keys and values as they are shared, unless a latent makes them; a logarithm for each query
            own = h if c else g
            saved = h * r + own * (r + v) + h * v + h
        else:
            saved = 2 * h * r + 2 * h * v  # queries, keys, values, and what the heads give to the output projection
            saved += h * tokens * (2 if options.causal else 1)  # weights; a mask makes a second copy
        normed = options.qk_norm != "none"
        if normed or c or q or options.logit_scale:  # these keep their input, a part of the whole input projection
            saved += (q or h * r) + (c + shape.rope_rank if c else g * (r + v))
        if normed:
            weighted = options.qk_norm == "rms"
            saved += h * (1 + r * weighted) + (1 + shape.rope_rank * weighted if c else g * (1 + r * weighted))
            saved += h * r if q else 0  # the norm's own input, which the latent's projection gives
        saved += 2 * (q + c)  # latents: normalised, and weighted
        saved += h * r if options.logit_scale and (normed or q) else 0
        return saved

    def layer(self, shape: AttentionShape, options: ModelOptions, number: int, **factory: Any) -> Any:
        raise SpecError("plain attention is built by headwise.mixers.make_layer")  # which has torch


ATTENTION = PlainAttention()


def layer_mixers(options: ModelOptions, shape: ModelShape) -> tuple[Mixer, ...]:
    """The mixer of each layer of a complete shape, checked."""
    mixers = tuple(find_mixer(word) for word in mixer_words(options.mixer, shape.depth))
    for mixer, layer in set(zip(mixers, shape.layers, strict=True)):
        if options.causal and not mixer.causal:
            raise SpecError(f"mixer '{mixer}' lets tokens see later ones, so it cannot stand in a decoder")
        if options.attention_softcap and mixer != ATTENTION:
            raise SpecError(f"mixer '{mixer}' has no attention_softcap: leave it out, or use plain attention")
        mixer.check(layer, options)
    return mixers


def names() -> list[str]:
    """Every mixer there is: plain attention, and the files in `mixers/`."""
    files = (one.name for one in iter_modules([str(_FOLDER)]))
    return [PLAIN, *sorted(name.replace("_", "-") for name in files if not name.startswith("_"))]


def with_tool(tool: str) -> str:
    """The mixers that a tool handles, for a sentence."""
    return ", ".join(name for name in names() if tool in mixer_kind(name).tools)


@cache
def find_mixer(word: str) -> Mixer:
    """The mixer of that name, with its numbers: `window-64`."""
    name, numbers, _ = read_mixer(word)
    kind = mixer_kind(name)
    needed = [one.name for one in fields(kind)]
    least = sum(one.default is MISSING for one in fields(kind))  # those without a default
    if not least <= len(numbers) <= len(needed):
        takes = f"the numbers {', '.join(needed)}" if needed else "no numbers"
        raise SpecError(f"'{word}' has {len(numbers)} numbers, but mixer '{name}' takes {takes}")
    return kind(*numbers)


def mixer_kind(name: str) -> type[Mixer]:
    """The class of that name."""
    if name not in names():
        raise unknown("mixer", name, names())
    if name == PLAIN:
        return PlainAttention
    kind: type[Mixer] = import_module(f"headwise.mixers.{name.replace('-', '_')}").MIXER
    return kind
