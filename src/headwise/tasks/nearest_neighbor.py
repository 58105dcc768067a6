"""Nearest-neighbour search on the sphere: the rank paper's task, where one full-rank head can do what many cannot.

With `queries="self"` every token is a point and a query at once, and its label is the point farthest from it (the one
nearest to its antipode). With `queries="separate"` the last token is the query, which no token attends to, and its
label is the point nearest to it; `bias` then makes the first point win only by that margin. The oscillating target is a
sum of such biased searches: between two orthogonal points, the answer changes `jumps` times as the query turns from one
to the other. Error is the mean squared distance to the label, so that predicting 0 has error exactly 1.

A token may have more columns than its point: tags that say which point it is, room for notes, and room for the answer.
With `positions` every token also learns where it stands in the set, which the answer never depends on: a vector added
to its point, or as many columns more. With `replay` training batches come round again.
"""

import math
from functools import cache
from typing import ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from headwise.models import Encoder
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape, ShapeError
from headwise.spec import SpecError
from headwise.tasks import Batch, Task
from headwise.tasks.stream import Draw, Stream

TRIVIAL_SAMPLES = 8192


class NearestNeighbor(Task):
    name: ClassVar[str] = "nearest-neighbor"
    summary: ClassVar[str] = "find the nearest (or farthest) of N points on the sphere: tests the rank of a head"
    usual_shape: ClassVar[str] = "w16-h1-L1"

    dim: int = Field(default=16, gt=1, description="d, of the points; the model's width")
    points: int = Field(default=16, gt=1, description="N, in one set")
    layout: Literal["uniform", "orthogonal", "antipodal"] = Field(default="uniform", description="how points lie")
    queries: Literal["self", "separate"] = Field(default="self", description="who asks")
    bias: float = Field(default=0.0, description="margin by which the first point must win")
    target: Literal["nearest", "oscillating"] = Field(default="nearest", description="what separate queries ask for")
    jumps: int = Field(default=1, gt=0, description="n, odd: how often the oscillating target changes")
    tags: bool = Field(default=False, description="N more columns say which point a token is; zeros for a query")
    notes: int = Field(default=0, ge=0, description="more columns, of zeros, for layers to write in")
    answer: Literal["in-place", "apart"] = Field(
        default="in-place", description="read from the point's own columns, or from as many more, of zeros"
    )
    positions: Literal["none", "added", "concatenated"] = Field(
        default="none", description="learned vectors for places in the set: on the point, or as columns more"
    )
    replay: int = Field(default=0, ge=0, description="training batches that come round again; 0: each is new")

    @model_validator(mode="after")
    def _check(self) -> "NearestNeighbor":
        if self.layout == "orthogonal" and self.points > self.dim:
            raise SpecError(
                f"{self.points} points cannot be orthogonal in {self.dim} dimensions; use at most {self.dim}"
            )
        if self.layout == "antipodal" and self.points % 2:
            raise SpecError(f"antipodal points come in pairs, but {self.points} is odd; use {self.points + 1}")
        if self.bias and self.queries == "self":
            raise SpecError("a bias needs separate queries: in self-search no point is the first")
        if self.positions != "none" and (self.queries != "self" or self.width != self.dim):
            raise SpecError("positions are for self-search without tags, notes or room for the answer; leave these out")
        if self.target == "oscillating":
            if (self.points, self.layout, self.queries, self.bias) != (2, "orthogonal", "separate", 0.0):
                raise SpecError(
                    "the oscillating target needs points=2, layout='orthogonal', queries='separate' and no bias"
                )
            if self.jumps % 2 == 0:
                raise SpecError(f"the oscillating target has an odd number of jumps, not {self.jumps}")
        return self

    @property
    def width(self) -> int:
        """Columns of a token."""
        return self.dim + self.tags * self.points + self.notes + (self.dim if self.answer == "apart" else 0)

    @property
    def tokens(self) -> int:
        return self.points + (self.queries == "separate")

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        if self.replay and stream == "train":
            index %= self.replay
        draw = Draw(seed, stream, index, device)
        points = self._points(draw, batch)
        if self.queries == "self":
            closeness = points @ points.mT  # symmetric; by columns, and by min, a few times as fast as argmin
            return self._tokens(points), pick(points, closeness.min(-2).indices)
        query = draw.sphere(batch, 1, self.dim)
        closeness = query @ points.mT
        if self.target == "oscillating":
            chosen = self._oscillating((closeness[..., 0] - closeness[..., 1]) / math.sqrt(2))
        else:
            closeness[..., 0] -= self.bias
            chosen = closeness.argmax(-1)
        return self._tokens(torch.cat([points, query], dim=1)), pick(points, chosen)

    def _tokens(self, vectors: Tensor) -> Tensor:
        """The points' and the query's vectors with the columns that follow them."""
        if self.width == self.dim:
            return vectors
        more = vectors.new_zeros(*vectors.shape[:2], self.width - self.dim)
        if self.tags:
            more[:, : self.points, : self.points] = torch.eye(self.points, device=vectors.device)
        return torch.cat([vectors, more], dim=-1)

    def _oscillating(self, cosine: Tensor) -> Tensor:
        """Which of two points: the first beyond the last jump, then each in turn.

        The places of the jumps leave the target no part of low degree: zeros of cos(nθ) in even dimensions, of
        sin((n+1)θ) in odd ones.
        """
        first, parts = (1.0, self.jumps + 1) if self.dim % 2 else (0.5, self.jumps)
        places = torch.cos((torch.arange(self.jumps, device=cosine.device) + first) * math.pi / parts)
        return (cosine[..., None] < places).sum(-1) % 2

    def _points(self, draw: Draw, batch: int) -> Tensor:
        if self.layout == "orthogonal":
            frames = torch.linalg.qr(draw.normal(batch, self.dim, self.points))
            return (frames.Q * frames.R.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT.contiguous()
        if self.layout == "antipodal":
            half = draw.sphere(batch, self.points // 2, self.dim)
            return torch.cat([half, -half], dim=1)
        return draw.sphere(batch, self.points, self.dim)

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        width = self.width + (self.dim if self.positions == "concatenated" else 0)
        if shape.width != width:
            fixed = f"w{width}-h1"
            more = f" with {width - self.dim} columns more" if width > self.dim else ""
            raise ShapeError(
                f"points of {self.dim} dimensions{more} need width {width}, not {shape.width}", lambda: [fixed]
            )
        body = Encoder(shape, options)
        if self.positions != "none":
            return _Placed(body, self.points, self.dim, self.positions == "concatenated")
        return body if self.queries == "self" else _Ask(body, self.points if self.bias and not self.tags else 0)

    def default_options(self) -> ModelOptions:
        return preset("encoder")

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return self._misses(output, labels).mean()

    def scores(self, output: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"error": self._misses(output, labels).mean(-1)}

    @property
    def metric_name(self) -> str:
        return "squared error"

    def _misses(self, output: Tensor, labels: Tensor) -> Tensor:
        answers = output[..., -self.dim :] if self.answer == "apart" else output[..., : self.dim]
        return (answers - labels).square().sum(-1)

    def trivial_error(self) -> float:
        return _trivial_error(self)


class _Placed(nn.Module):
    """An encoder with learned positions, initialised as in the rank paper."""

    def __init__(self, body: Encoder, points: int, dim: int, concatenated: bool) -> None:
        super().__init__()
        self.body, self.concatenated = body, concatenated
        self.places = nn.Parameter(torch.empty(points, dim).uniform_(-1, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([x, self.places.expand_as(x)], dim=-1) if self.concatenated else x + self.places
        output: Tensor = self.body(x)
        return output


class _Ask(nn.Module):
    """An encoder whose last token is the query, never an answer; with a bias, points have learned positions."""

    def __init__(self, body: Encoder, places: int) -> None:
        super().__init__()
        self.body = body
        self.places = nn.Parameter(torch.zeros(places + 1, body.shape.width)) if places else None

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        answers[:, -1] = False
        x = x if self.places is None else x + self.places
        output: Tensor = self.body(x, padding=answers)
        return output[:, -1:]


def pick(points: Tensor, index: Tensor) -> Tensor:
    """(batch, queries, dim): the points of those numbers."""
    return points.gather(1, index[..., None].expand(-1, -1, points.shape[-1]))


@cache
def _trivial_error(task: NearestNeighbor) -> float:
    """The best linear mixture of the query's own vector and the mean of the set: no search in it."""
    tokens, labels = task.draw(0, "validation", 0, TRIVIAL_SAMPLES)
    tokens = tokens[..., : task.dim]
    asking = tokens if task.queries == "self" else tokens[:, -1:]
    mean = tokens[:, : task.points].mean(1, keepdim=True).expand_as(asking)
    features = torch.stack([asking, mean], dim=-1).reshape(-1, 2).double()
    target = labels.reshape(-1, 1).double()
    # the normal equations: an exact zero column (antipodal points have no mean) must not matter
    gram, moment = features.T @ features, features.T @ target
    weights = torch.linalg.lstsq(gram, moment, driver="gelsd").solution
    return float((features @ weights - target).square().sum() / asking.shape[:-1].numel())


TASK = NearestNeighbor
