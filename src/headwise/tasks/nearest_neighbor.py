"""Nearest-neighbour search on the sphere: the rank paper's task, where one full-rank head can do what many cannot.

With `queries="self"` every token is a point and a query at once, and its label is the point farthest from it (the one
nearest to its antipode). With `queries="separate"` the last token is the query, which no token attends to, and its
label is the point nearest to it; `bias` then makes the first point win only by that margin. Error is the mean squared
distance to the label, so that predicting 0 has error exactly 1.
"""

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
        return self

    @property
    def tokens(self) -> int:
        return self.points + (self.queries == "separate")

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        draw = Draw(seed, stream, index, device)
        points = self._points(draw, batch)
        if self.queries == "self":
            return points, pick(points, (points @ points.mT).argmin(-1))
        query = draw.sphere(batch, 1, self.dim)
        closeness = query @ points.mT
        closeness[..., 0] -= self.bias
        return torch.cat([points, query], dim=1), pick(points, closeness.argmax(-1))

    def _points(self, draw: Draw, batch: int) -> Tensor:
        if self.layout == "orthogonal":
            frames = torch.linalg.qr(draw.normal(batch, self.dim, self.points))
            return (frames.Q * frames.R.diagonal(dim1=-2, dim2=-1).sign()[:, None]).mT.contiguous()
        if self.layout == "antipodal":
            half = draw.sphere(batch, self.points // 2, self.dim)
            return torch.cat([half, -half], dim=1)
        return draw.sphere(batch, self.points, self.dim)

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        if shape.width != self.dim:
            fixed = f"w{self.dim}-h1"
            raise ShapeError(
                f"points of {self.dim} dimensions need width {self.dim}, not {shape.width}", lambda: [fixed]
            )
        body = Encoder(shape, options)
        return body if self.queries == "self" else _Ask(body, self.points if self.bias else 0)

    def default_options(self) -> ModelOptions:
        return preset("encoder")

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return (output - labels).square().sum(-1).mean()

    def scores(self, output: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"error": (output - labels).square().sum(-1).mean(-1)}

    def trivial_error(self) -> float:
        return _trivial_error(self)


class _Ask(nn.Module):
    """An encoder whose last token asks and is not itself an answer; with a bias, points know their places."""

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
    asking = tokens if task.queries == "self" else tokens[:, -1:]
    mean = tokens[:, : task.points].mean(1, keepdim=True).expand_as(asking)
    features = torch.stack([asking, mean], dim=-1).reshape(-1, 2).double()
    target = labels.reshape(-1, 1).double()
    # the normal equations: an exact zero column (antipodal points have no mean) must not matter
    gram, moment = features.T @ features, features.T @ target
    weights = torch.linalg.lstsq(gram, moment, driver="gelsd").solution
    return float((features @ weights - target).square().sum() / asking.shape[:-1].numel())


TASK = NearestNeighbor
