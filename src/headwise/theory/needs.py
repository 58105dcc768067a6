"""What each construction is called, which options it has, and which model and task it needs. Nothing here needs torch.

    shape, options, task = needed({"name": "random-heads"}, dim=8, heads=64)
    Run(task=task, shape=shape, options=options, begin={"name": "random-heads"}, steps=0)

`constructions` fills such a model's weights, and refuses any other.
"""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, model_validator

from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import Spec, SpecError

Keys = Literal["independent", "uniform", "equal"]
Layout = Literal["uniform", "orthogonal", "antipodal"]
SearchTarget = Literal["nearest", "oscillating"]


class Needed(NamedTuple):
    """A model's shape and options, and the task that it solves."""

    shape: str
    options: ModelOptions
    task: dict[str, Any]


class FreeSizes(NamedTuple):
    """What is free in a construction: the points' dimension, the (first layer's) heads, and their rank."""

    dim: int
    heads: int
    rank: int


class Construction(Spec):
    """The options of one construction; `needed` and `sizes` are each other's inverse."""

    name: ClassVar[str]

    points: int = Field(default=2, gt=1, description="N, in one set")

    @abstractmethod
    def needed(self, sizes: FreeSizes) -> Needed:
        """The model and the task, at these sizes."""

    def sizes(self, shape: ModelShape) -> FreeSizes:
        """What a model's shape leaves of its width, heads and rank."""
        layer = shape.layers[0]
        return FreeSizes(layer.width, layer.heads, layer.qk_rank)

    def _task(self, dim: int, **options: Any) -> dict[str, Any]:
        usual = {"points": self.points, "layout": "orthogonal", "queries": "separate"}
        return {"name": "nearest-neighbor", "dim": dim, **usual, **options}


class FullRankHead(Construction):
    """One head whose logits are the cosines themselves, times the inverse temperature; hardmax without one."""

    name: ClassVar[str] = "full-rank-head"

    inverse_temperature: float | None = Field(default=None, gt=0, description="none for hardmax")
    farthest: bool = Field(default=False, description="every point asks for the one farthest from it")
    layout: Layout = Field(default="orthogonal", description="how points lie")

    @model_validator(mode="after")
    def _check(self) -> "FullRankHead":
        _check_farthest(self.farthest, self.layout)
        return self

    def needed(self, sizes: FreeSizes) -> Needed:
        task = self._task(sizes.dim, layout=self.layout, queries="self" if self.farthest else "separate")
        return Needed(_text(sizes.dim, 1, sizes.dim, sizes.dim), _bare(self.inverse_temperature is None), task)


class RandomHeads(Construction):
    """Random hard heads of rank 1 whose values are multiples of the identity, with the best multiples there are."""

    name: ClassVar[str] = "random-heads"

    keys: Keys = Field(default="uniform", description="how a key lies to its query; uniform: their cosine is")
    points: Literal[2] = Field(default=2, description="N, in one set: the weights are known for two")

    def needed(self, sizes: FreeSizes) -> Needed:
        dim, heads, _ = sizes
        return Needed(_text(dim, heads, 1, dim), _bare(), self._task(dim))


class FittedHeads(Construction):
    """Random hard heads of any rank, with values fitted by least squares to a sample; with a threshold each, or not."""

    name: ClassVar[str] = "fitted-heads"

    keys: Keys = Field(default="independent", description="how a key lies to its query; uniform: their cosine is")
    values: Literal["scalar", "free"] = Field(default="scalar", description="multiples of the identity, or any matrix")
    samples: int = Field(default=16384, gt=0, description="that the values are fitted to")
    thresholds: bool = Field(default=False, description="the first point must win by a margin, a random one per head")
    target: SearchTarget = Field(default="nearest", description="what is asked for")
    jumps: int = Field(default=1, gt=0, description="of the oscillating target, odd")

    @model_validator(mode="after")
    def _check(self) -> "FittedHeads":
        if self.target == "oscillating" and (self.points != 2 or self.jumps % 2 == 0):
            raise SpecError("the oscillating target is between two points, with an odd number of jumps")
        return self

    def needed(self, sizes: FreeSizes) -> Needed:
        dim, heads, rank = sizes
        task = self._task(dim, tags=self.thresholds, target=self.target, jumps=self.jumps)
        shape = _text(dim + self._tags, heads, rank + self.thresholds, dim)
        return Needed(shape, _bare(bias="qkv" if self.thresholds else "none"), task)

    def sizes(self, shape: ModelShape) -> FreeSizes:
        width, heads, rank = super().sizes(shape)
        return FreeSizes(width - self._tags, heads, rank - self.thresholds)

    @property
    def _tags(self) -> int:
        return self.points if self.thresholds else 0


class BiasedHeads(Construction):
    """Full-rank heads with thresholds: one gives a biased nearest neighbour, n of them the oscillating target."""

    name: ClassVar[str] = "biased-heads"

    jumps: int = Field(default=1, gt=0, description="n, odd: full-rank heads, whose answers add up with signs + - + …")
    bias: float = Field(default=0.0, description="margin by which the first point must win")
    inverse_temperature: float | None = Field(default=None, gt=0, description="none for hardmax")

    @model_validator(mode="after")
    def _check(self) -> "BiasedHeads":
        if self.jumps % 2 == 0:
            raise SpecError(
                f"jumps is {self.jumps}, but only an odd number of heads adds up to one; use {self.jumps + 1}"
            )
        if self.jumps > 1 and (self.bias or self.points > 2):
            raise SpecError("several jumps are between two points without a bias; leave points and bias out")
        return self

    def needed(self, sizes: FreeSizes) -> Needed:
        dim = sizes.dim
        several = {"target": "oscillating", "jumps": self.jumps}
        task = self._task(dim, tags=True, **(several if self.jumps > 1 else {"bias": self.bias}))
        shape = _text(dim + self.points, self.jumps, dim + 1, dim)
        return Needed(shape, _bare(self.inverse_temperature is None, bias="qkv"), task)

    def sizes(self, shape: ModelShape) -> FreeSizes:
        width, heads, rank = super().sizes(shape)
        return FreeSizes(width - self.points, heads, rank)


class MajorityVote(Construction):
    """Two layers: random hard heads of rank 1 vote for a point, one head fetches the point with the most votes.

    The second layer's head has rank N - 1, and knows only which point is which, never where it lies. The vote is taken
    where the question is asked, so that it does as well when every point asks.
    """

    name: ClassVar[str] = "majority-vote"

    farthest: bool = Field(default=False, description="every point asks for the one farthest from it")
    layout: Layout = Field(default="orthogonal", description="how points lie")

    @model_validator(mode="after")
    def _check(self) -> "MajorityVote":
        _check_farthest(self.farthest, self.layout)
        return self

    def needed(self, sizes: FreeSizes) -> Needed:
        dim, heads, _ = sizes
        notes = self.points - 1
        if self.points == 2 and heads % 2 == 0:
            raise SpecError(f"{heads} heads may tie between two points; use {heads + 1}")
        columns = {"tags": True, "notes": notes, "answer": "apart"}
        task = self._task(dim, layout=self.layout, queries="self" if self.farthest else "separate", **columns)
        width = 2 * dim + self.points + notes
        shape = ModelShape(width=width, heads=(heads, 1), qk_rank=(1, notes), v_rank=(notes, dim), mlp=0)
        return Needed(str(shape), _bare(residual=True), task)

    def sizes(self, shape: ModelShape) -> FreeSizes:
        width, heads, rank = super().sizes(shape)
        return FreeSizes((width - 2 * self.points + 1) // 2, heads, rank)


CONSTRUCTIONS: dict[str, type[Construction]] = {
    kind.name: kind for kind in (FullRankHead, RandomHeads, FittedHeads, BiasedHeads, MajorityVote)
}


def read_construction(spec: dict[str, Any]) -> Construction:
    """A construction as a run's `begin` describes it: its name and its options."""
    options = dict(spec)
    name = str(options.pop("name", ""))
    if name not in CONSTRUCTIONS:
        raise SpecError(f"no construction '{name}'; there are {', '.join(CONSTRUCTIONS)}")
    return CONSTRUCTIONS[name](**options)


def needed(spec: dict[str, Any], dim: int, heads: int = 1, rank: int = 1) -> Needed:
    """The shape, options and task of a construction; `heads` and `rank` where it leaves them open."""
    return read_construction(spec).needed(FreeSizes(dim, heads, rank))


def _check_farthest(farthest: bool, layout: Layout) -> None:
    if farthest and layout == "orthogonal":
        raise SpecError("orthogonal points are all equally far from each other; use layout='uniform'")


def _text(width: int, heads: int, qk_rank: int, v_rank: int) -> str:
    return str(ModelShape(width=width, heads=heads, qk_rank=qk_rank, v_rank=v_rank, mlp=0))


def _bare(hardmax: bool = True, **options: Any) -> ModelOptions:
    """Heads and nothing else."""
    return ModelOptions(**{"norm": "none", "residual": False, "hardmax": hardmax, **options})
