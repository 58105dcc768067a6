"""The shape of attention: heads, ranks, sharing, compression, depth. The only place that turns width into ranks.

A shape is written `w512-h8-r64-L12-m2048`: a letter and a number for each word of the vocabulary (see LETTERS).
What is left out takes the usual value, and printing gives the shortest form that parses back:

    >>> shape = ModelShape.parse("L12 h8 w512")
    >>> shape.qk_rank, shape.mlp, str(shape)
    (64, 2048, 'w512-h8-L12')

Stages: in `w96-h3-L2,2,6,2` each has twice the width, heads and MLP of the one before, and a quarter of its tokens.
Layers may differ. `h8x4,4x8` is four layers of 8 heads, then eight of 4; in data, `heads=(8, 8, 8, 8, 4, ...)`.
H·r need not equal the width: that is the point of the project. Nothing here needs torch.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property, partial
from typing import Any, Self

from pydantic import Field, model_validator

from headwise.notation import DEEPEST, EXAMPLES, LARGEST, LETTERS, SCALARS, Misfit, ShapeError, Sizes, read, write_sizes
from headwise.spec import Spec, SpecError

__all__ = ["DEEPEST", "EXAMPLES", "LARGEST", "LETTERS", "AttentionShape", "ModelShape", "ShapeError", "Sizes"]
MOST_STAGES = 6


class _Shape(Spec):
    """A spec whose misfits become errors with neighbours."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except Misfit as misfit:
            raise ShapeError(misfit.problem, partial(_fixed, type(self), values, misfit.fixes)) from None


class AttentionShape(_Shape):
    """One attention layer. Ranks, kv_heads and rope_rank may be left out; after construction they are numbers."""

    width: int = Field(description="d, the residual stream")
    heads: int = Field(description="H, query heads")
    qk_rank: int = Field(default=0, description="r, dimension of one head's queries and keys; usually width / heads")
    v_rank: int = Field(default=0, description="dimension of one head's values; usually qk_rank")
    kv_heads: int = Field(default=0, description="key/value heads shared by groups of query heads; usually heads")
    kv_latent: int = Field(default=0, description="width of the compressed key/value latent (MLA); 0 for none")
    q_latent: int = Field(default=0, description="width of the compressed query latent (MLA); 0 for none")
    rope_rank: int = Field(default=0, description="rotated part of a head: usually all; for kv_latent see `rotary`")

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        return values | _complete({name: value for name, value in values.items() if name in cls.model_fields})

    def widened(self, factor: int) -> Self:
        """So many times the width and the heads, of the same ranks."""
        sizes = {name: factor * getattr(self, name) for name in ("width", "heads", "kv_heads")}
        return self.model_copy(update=sizes)

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.heads // self.kv_heads

    @property
    def rotated(self) -> int:
        """Dimensions of a head that are rotated: rotations take pairs, so the largest even part of rope_rank."""
        return self.rope_rank - self.rope_rank % 2

    @property
    def content_rank(self) -> int:
        """The part of a key that is read from the latent (all of it without a latent)."""
        return self.qk_rank - self.rope_rank if self.kv_latent else self.qk_rank

    @property
    def cached_per_token(self) -> int:
        """Numbers the cache really stores for one token: keys and values, or the latent and the shared rotary key."""
        if self.kv_latent:
            return self.kv_latent + self.rope_rank
        return self.kv_heads * (self.qk_rank + self.v_rank)

    @property
    def input_rows(self) -> list[int]:
        """Rows of the fused input projection, in order: queries, keys, values; a latent takes the place of its own."""
        query, *rest = qkv_rows(self.heads, self.kv_heads, self.qk_rank, self.v_rank)
        return [self.q_latent or query, *([self.kv_latent + self.rope_rank] if self.kv_latent else rest)]

    @property
    def rotary(self) -> Self:
        """The layer with rotary positions: beside a latent, half of each head (even) is kept out of it and turns."""
        bare = self.kv_latent and not self.rope_rank
        return self.model_copy(update={"rope_rank": self.qk_rank // 4 * 2}) if bare else self

    def products(self, queries: int, keys: int) -> tuple[int, int]:
        """Multiplications of scores and values: a latent expanded first, and absorbed into queries and outputs."""
        per_expansion = self.kv_latent * (self.content_rank + self.v_rank)
        expanded = queries * keys * self.heads * (self.qk_rank + self.v_rank) + keys * self.kv_heads * per_expansion
        absorbed = queries * keys * self.heads * (2 * self.kv_latent + self.rope_rank)
        return expanded, absorbed + queries * self.heads * per_expansion

    def absorbs(self, queries: int, keys: int) -> bool:
        """Whether attending to the cached latent itself is less work than expanding it first."""
        expanded, absorbed = self.products(queries, keys)
        return bool(self.kv_latent) and absorbed < expanded

    def merges(self, context: int) -> bool:
        """Whether QKᵀ and VO as one matrix each take fewer operations per token than as two factors each."""
        ranks = self.qk_rank + self.v_rank
        return 2 * self.width * (self.width + context) < ranks * (2 * self.width + context)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `w512-h8-r64`; depth and MLP belong to a ModelShape."""
        values = read(text, _valid)
        for name in ("depth", "mlp"):
            if name in values:
                raise ShapeError(f"'{text}' gives {name}, which one attention layer does not have")
        return cls(**values)

    def __str__(self) -> str:
        return _write([self], [_usual_mlp(self.width)])


class ModelShape(_Shape):
    """A stack of layers. Every field but width and depth is one number, or one per layer where layers differ."""

    width: int = Field(description="d, the residual stream, the same in every layer")
    depth: int = Field(default=0, description="L, layers; 1 unless a field lists its layers")
    heads: Sizes = Field(description="H, query heads")
    qk_rank: Sizes = Field(default=0, description="r, dimension of one head's queries and keys")
    v_rank: Sizes = Field(default=0, description="dimension of one head's values")
    kv_heads: Sizes = Field(default=0, description="key/value heads shared by groups of query heads")
    kv_latent: Sizes = Field(default=0, description="width of the compressed key/value latent (MLA); 0 for none")
    q_latent: Sizes = Field(default=0, description="width of the compressed query latent (MLA); 0 for none")
    rope_rank: Sizes = Field(default=0, description="rotated part of a head")
    mlp: Sizes = Field(default=-1, description="hidden width of the MLP; usually 4 × width, 0 for none")
    stages: tuple[int, ...] = Field(
        default=(), exclude=True, description="layers of each stage; the next has twice the width, heads and MLP"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, values: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in values.items() if name in cls.model_fields and value is not None}
        depth = _depth(given)
        columns = {name: _spread(value, depth) for name, value in given.items() if name not in (*SCALARS, "stages")}
        complete = _complete_layers(given.get("width"), columns, depth)
        collapsed = {name: _collapse([layer[name] for layer in complete]) for name in complete[0]}
        return values | collapsed | {"width": complete[0]["width"], "depth": depth}

    @property
    def stage_of(self) -> tuple[int, ...]:
        """The stage of each layer, counted from 0."""
        return tuple(number for number, count in enumerate(self.stages or (self.depth,)) for _ in range(count))

    @cached_property
    def layers(self) -> tuple[AttentionShape, ...]:
        """The attention of each layer; equal layers are one object."""
        rows = zip(self._first, self.stage_of, strict=True)
        wider = {(layer, stage): layer.widened(2**stage) for layer, stage in set(rows)} if self.stages else {}
        return tuple(wider[row] for row in zip(self._first, self.stage_of, strict=True)) if wider else self._first

    @cached_property
    def _first(self) -> tuple[AttentionShape, ...]:
        """The attention of each layer as it would be in the first stage."""
        columns = {name: _spread(getattr(self, name), self.depth) for name in AttentionShape.model_fields}
        rows = list(zip(*columns.values(), strict=True))
        made = {row: AttentionShape.model_construct(**dict(zip(columns, row, strict=True))) for row in set(rows)}
        return tuple(made[row] for row in rows)

    @property
    def mlps(self) -> tuple[int, ...]:
        """The MLP's hidden width in each layer."""
        return tuple(mlp * 2**stage for mlp, stage in zip(_spread(self.mlp, self.depth), self.stage_of, strict=True))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `w512-h8-L12`, in any order and case."""
        values = read(text, _valid)
        stages = values.get("depth")
        return cls(**values | {"depth": sum(stages), "stages": stages} if isinstance(stages, tuple) else values)

    @classmethod
    def of(cls, layers: Sequence[AttentionShape], mlps: Sequence[int]) -> Self:
        """Stack the given layers."""
        columns = {name: tuple(getattr(a, name) for a in layers) for name in AttentionShape.model_fields}
        width = columns.pop("width")
        if len(set(width)) > 1:
            raise ShapeError(f"layers of one model share one width, here {sorted(set(width))}")
        return cls(width=width[0], depth=len(layers), mlp=tuple(mlps), **columns)

    @cached_property
    def _text(self) -> str:
        return _write(self._first, _spread(self.mlp, self.depth), self.stages)

    def __str__(self) -> str:
        return self._text


_MAY_BE_ZERO = ("kv_latent", "q_latent", "rope_rank", "mlp")


def qkv_rows(heads: int, kv_heads: int, qk_rank: int, v_rank: int) -> list[int]:
    """Rows of a fused QKV weight, in order: of the queries of all heads, of keys, of values."""
    return [heads * qk_rank, kv_heads * qk_rank, kv_heads * v_rank]


def divisors(n: int) -> list[int]:
    """All divisors of n, ascending."""
    small = [k for k in range(1, int(n**0.5) + 1) if n % k == 0]
    return small + [n // k for k in reversed(small) if k * k != n]


def nearest_divisors(n: int, target: int, count: int = 2) -> list[int]:
    """The divisors of n nearest to target by ratio, nearest first."""
    return sorted(divisors(n), key=lambda k: max(k, target) / min(k, target))[:count]


def _usual_mlp(width: int) -> int:
    return 4 * width


# ---- one layer: usual values and checks ----------------------------------------------------------------------------


def _complete(given: dict[str, Any]) -> dict[str, Any]:
    """Fill in the usual values of one layer and check that it is valid."""
    values = {name: value for name, value in given.items() if value is not None}
    for name, value in values.items():
        _check_size(name, value)
    if "width" not in values:
        guess = values.get("heads", 8) * values.get("qk_rank", 64)
        raise Misfit("the shape has no width (w)", {"width": guess})
    width = values["width"]
    heads = values["heads"] = values.get("heads") or _heads_from_rank(width, values.get("qk_rank"))
    rank = values["qk_rank"] = values.get("qk_rank") or _usual_rank(width, heads)
    values.setdefault("v_rank", rank)
    kv_heads = values.setdefault("kv_heads", heads)
    rope = values.setdefault("rope_rank", 0 if values.get("kv_latent") else rank)
    if heads % kv_heads:
        fixes = [{"kv_heads": g} for g in nearest_divisors(heads, kv_heads)]
        raise Misfit(f"{heads} heads cannot share {kv_heads} key/value heads evenly", *fixes)
    if values.get("kv_latent") and rope >= rank:
        problem = f"rope_rank {rope} leaves nothing of qk_rank {rank} for the latent"
        raise Misfit(problem, {"rope_rank": rank // 2}, {"qk_rank": rank + rope})
    if rope > rank:
        raise Misfit(f"rope_rank {rope} is more than qk_rank {rank}", {"rope_rank": rank}, {"qk_rank": rope})
    return {name: values.get(name, 0) for name in AttentionShape.model_fields}


def _check_size(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise Misfit(f"{name} must be a whole number, not {value!r}")
    if value > LARGEST:
        raise Misfit(f"{name} is {value}, but the largest size is {LARGEST}", {name: None})
    least = 0 if name in _MAY_BE_ZERO else 1
    if value < least:
        raise Misfit(f"{name} is {value}, but must be at least {least}", {name: None}, {name: least})


def _heads_from_rank(width: int, rank: int | None) -> int:
    if rank is None:
        fixes = [{"heads": h} for h in nearest_divisors(width, 8)]
        raise Misfit("the shape has neither heads (h) nor a rank (r)", *fixes)
    if width % rank:
        fixes = [{"heads": max(1, round(width / rank))}] + [{"qk_rank": r} for r in nearest_divisors(width, rank)]
        raise Misfit(f"rank {rank} does not divide width {width}, and no heads (h) are given", *fixes)
    return width // rank


def _usual_rank(width: int, heads: int) -> int:
    if width % heads:
        fixes = [{"heads": h} for h in nearest_divisors(width, heads)] + [{"qk_rank": max(1, width // heads)}]
        raise Misfit(f"{heads} heads do not divide width {width}, and no rank (r) is given", *fixes)
    return width // heads


# ---- many layers ---------------------------------------------------------------------------------------------------


def _depth(given: dict[str, Any]) -> int:
    stages = given.get("stages", ())
    if stages and (min(stages) < 1 or len(stages) > MOST_STAGES or sum(stages) != given.get("depth", sum(stages))):
        raise Misfit(f"stages of {stages} layers are not possible: write 1 to {MOST_STAGES} numbers, as in L2,2,6,2")
    given = {name: value for name, value in given.items() if name != "stages"}
    lengths = {name: len(value) for name, value in given.items() if isinstance(value, list | tuple)}
    stated = given.get("depth", sum(stages) or next(iter(lengths.values()), 1))
    if not isinstance(stated, int) or not 1 <= stated <= DEEPEST:
        problem = f"depth is {stated!r}, but must be a whole number from 1 to {DEEPEST}"
        raise Misfit(problem, {"depth": 1}, {"depth": DEEPEST})
    if any(length != stated for length in lengths.values()):
        counts = [f"{name} lists {length}" for name, length in lengths.items()]
        counts += [f"depth is {stated}"] if "depth" in given else []
        fixes = [{name: None} for name in ("depth", *lengths) if name in given]
        raise Misfit(f"the layers do not add up: {', '.join(counts)}", *fixes)
    return stated


def _complete_layers(width: Any, columns: dict[str, list[Any]], depth: int) -> list[dict[str, Any]]:
    """Every layer with its usual values; equal layers are completed once."""
    done: dict[tuple[Any, ...], dict[str, Any]] = {}
    rows = list(zip(*columns.values(), strict=True)) if columns else [()] * depth
    for row in rows:
        if row in done:
            continue
        given = {"width": width, **dict(zip(columns, row, strict=True))}
        mlp = given.pop("mlp", None)
        try:
            layer = _complete(given)
            mlp = _usual_mlp(layer["width"]) if mlp is None else mlp
            _check_size("mlp", mlp)
        except Misfit as misfit:
            where = f"layer {rows.index(row) + 1}: " if len(set(rows)) > 1 else ""
            spread = [
                {n: v if n in SCALARS else _substitute(columns.get(n), rows, row, v) for n, v in fix.items()}
                for fix in misfit.fixes
            ]
            raise Misfit(where + misfit.problem, *spread) from None
        done[row] = layer | {"mlp": mlp}
    return [done[row] for row in rows]


def _substitute(column: list[Any] | None, rows: list[Any], wrong: Any, value: Any) -> Any:
    """The column with the wrong layers' value replaced: a fix for one layer is a fix for all that equal it."""
    if value is None or column is None or len(set(rows)) == 1:
        return value
    return tuple(value if row == wrong else old for row, old in zip(rows, column, strict=True))


def _fixed(cls: type[Spec], values: dict[str, Any], fixes: Iterable[dict[str, Any]]) -> list[str]:
    """Those fixes that really give a valid shape, as text."""
    shapes = []
    for fix in fixes:
        try:
            shapes.append(str(cls(**{name: value for name, value in {**values, **fix}.items() if value is not None})))
        except SpecError:
            continue
    return list(dict.fromkeys(shapes))


def _spread(value: Any, depth: int) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value] * depth


def _collapse(column: list[Any]) -> Any:
    return column[0] if len(set(column)) == 1 else tuple(column)


# ---- notation ------------------------------------------------------------------------------------------------------


def _valid(text: str) -> list[str]:
    """The text as a shape, where it is one."""
    try:
        return [str(ModelShape.parse(text))]
    except SpecError:
        return []


def _write(layers: Sequence[AttentionShape], mlps: Sequence[int], stages: tuple[int, ...] = ()) -> str:
    """The shortest text that parses back: only what differs from the usual value."""
    width, usual = layers[0].width, [_usual_text(layer) for layer in layers]
    tokens, listed = [f"w{width}"], False
    for letter, name in LETTERS.items():
        if name in SCALARS:
            continue
        if name == "mlp":
            column, default = list(mlps), [_usual_mlp(width)] * len(mlps)
        else:
            column, default = [getattr(layer, name) for layer in layers], [values[name] for values in usual]
        if column != default:
            tokens.append(letter + write_sizes(column))
            listed |= len(set(column)) > 1
    if stages or (len(layers) > 1 and not listed):
        depth = ",".join(map(str, stages)) if stages else len(layers)
        tokens.insert(len(tokens) - (tokens[-1][0] == "m"), f"L{depth}")
    return "-".join(tokens)


def _usual_text(layer: AttentionShape) -> dict[str, Any]:
    """The values that need no mention beside this layer's other values."""
    return {
        "heads": None,
        "qk_rank": layer.width / layer.heads,
        "v_rank": layer.qk_rank,
        "kv_heads": layer.heads,
        "kv_latent": 0,
        "q_latent": 0,
        "rope_rank": 0 if layer.kv_latent else layer.qk_rank,
    }
