"""Pathfinder: does a dashed path join the two circles? A picture read pixel by pixel, as in Long-Range Arena.

Every picture has two long paths and some short ones that distract. With label 1 the circles are at both ends of one
long path, with label 0 at an end of each. A path is a chain of `dashes` steps that turn by at most `turn` degrees; it
keeps `margin` pixels away from itself and from every other, so that the eye can follow it over its gaps. Both labels
come from the same pictures: the second path is put where its first end is as far from the other path's as the ends of
one path are from each other, and only then a coin says which two ends get the circles. So the distance of the circles
tells nothing. Long-Range Arena's settings are side=32, 64 or 128 with dashes=14 and levels=256; the defaults are small
enough for a laptop.
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from headwise.data.linear import error_by_least_squares
from headwise.extras import extra
from headwise.models import Bert
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import Batch, Task
from headwise.tasks.images import pooled
from headwise.tasks.sequences import class_scores, symbol_options
from headwise.tasks.stream import Draw, Stream

SHAPES, WAYS, LOOKED_AT, TRIES = 2, 4, 4, 2  # of a path: shapes, how each lies, checks at a time, and how often
DIRECTIONS = 8  # in which a second path is looked for
MOST_TRIED = 4_000  # pictures without one success before giving up
ROUND = 512  # most pictures at once
SHADE = 0.75  # brightness of a dash; a circle's is 1
TINY = 1e-3  # pixels that rounding may cost
FITTED_SAMPLES = 8192
LINEAR_PIXELS = 1024  # times dashes: of larger pictures a few thousand are not drawn in seconds


class Pathfinder(Task):
    name: ClassVar[str] = "pathfinder"
    summary: ClassVar[str] = "does a dashed path join two circles in a picture of pixels: tests long-range tracing"
    usual_shape: ClassVar[str] = "w32-h2-L3"

    side: int = Field(default=12, ge=8, description="of the square picture, in pixels; a pixel is a token")
    dashes: int = Field(default=2, gt=0, description="of each of the two long paths")
    distractors: int | None = Field(default=None, ge=0, description="most short paths; by default side / 8")
    distractor_dashes: int | None = Field(default=None, gt=0, description="by default a third of the long paths'")
    dash: float = Field(default=2.0, gt=0, description="length of a dash, in pixels")
    gap: float = Field(default=1.0, gt=0, description="between the dashes of a path")
    thickness: float = Field(default=1.0, gt=0, description="of a dash")
    radius: float = Field(default=1.5, gt=0, description="of a circle")
    margin: float = Field(default=2.5, gt=0, description="least distance of paths, from middle to middle")
    turn: float = Field(default=45.0, ge=0, le=90, description="most degrees between one dash and the next")
    levels: int = Field(default=4, ge=4, le=256, description="of grey; a level is a token of the vocabulary")

    @model_validator(mode="after")
    def _check(self) -> "Pathfinder":
        if self.dash <= self.thickness:
            raise SpecError(f"a dash of length {self.dash:g} must be longer than its thickness of {self.thickness:g}")
        if self.margin > self._step:
            raise SpecError(
                f"a margin of {self.margin:g} keeps a path from itself; use at most dash + gap = {self._step:g}"
            )
        if self.margin <= self._step / 2:
            raise SpecError(f"with a margin of {self.margin:g} paths could cross; use more than {self._step / 2:g}")
        return self

    @property
    def _step(self) -> float:
        return self.dash + self.gap

    @property
    def tokens(self) -> int:
        return self.side**2

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        draw = Draw(seed, stream, index)
        kept: list[tuple[Any, Any]] = []
        count = tried = 0
        while count < batch:
            candidates = int(min(1.2 * (batch - count) * (tried + 1) / (count + 1) + 8, ROUND))
            pictures, labels = self._pictures(draw, candidates)
            kept.append((pictures, labels))
            count, tried = count + len(labels), tried + candidates
            if not count and tried > MOST_TRIED:
                raise SpecError(
                    f"two paths of {self.dashes} dashes do not fit a side of {self.side}; use fewer or shorter ones"
                )
        pictures, labels = (np.concatenate(part)[:batch] for part in zip(*kept, strict=True))
        return torch.from_numpy(pictures).long().to(device), torch.from_numpy(labels).to(device)

    def _pictures(self, draw: Draw, count: int) -> tuple[Any, Any]:
        """Pixels and labels of those of `count` pictures that come out well. Places are complex numbers."""
        first = self._path(draw, np.zeros((count, 0, 2), dtype=np.complex64), self.dashes)
        chosen = draw.integers(0, 2, count).numpy()  # the path that may get both circles
        second = self._path(draw, _steps(first), self.dashes, np.column_stack([first[:, [0, -1]], chosen]))
        good = ~np.isnan(second).any(1)
        taken = np.concatenate([_steps(first), _steps(second)], axis=1)[good]
        for _ in range(self.side // 8 if self.distractors is None else self.distractors):
            path = self._path(draw, taken, self.distractor_dashes or max(1, self.dashes // 3))
            taken = np.concatenate([taken, _steps(path)], axis=1)
        labels = draw.integers(0, 2, len(taken)).numpy()
        one_path = np.where(chosen[:, None] == 0, first[:, [0, -1]], second[:, [0, -1]])[good]
        two_paths = np.column_stack([first[:, 0], second[:, 0]])[good]
        return self._render(taken, np.where(labels[:, None] == 1, one_path, two_paths)), labels

    def _path(self, draw: Draw, taken: Any, dashes: int, rival: Any = None, tries: int = TRIES) -> Any:
        """A new path in each picture, (count, dashes + 1), clear of the steps that are taken; NaN if none fits."""
        count = len(taken)
        headings = math.radians(self.turn) * (2 * draw.uniform(count, SHAPES, dashes).numpy() - 1).cumsum(-1)
        steps = self._step * np.exp(1j * headings).astype(np.complex64)
        shapes = np.concatenate([np.zeros_like(steps[..., :1]), steps.cumsum(-1)], axis=-1)
        turned = shapes[:, :, None] * np.exp(2j * math.pi * draw.uniform(count, SHAPES, WAYS, 1).numpy())
        points = turned.reshape(count, SHAPES * WAYS, dashes + 1).astype(np.complex64)
        points += (self._anywhere(draw, points) if rival is None else self._as_far(draw, points, rival))[..., None]
        fits = np.repeat(self._keeps_to_itself(shapes), WAYS, axis=1) & self._is_inside(points)
        fits &= fits.cumsum(1) <= LOOKED_AT
        fits[fits] = self._keeps_from(points[fits], taken[fits.nonzero()[0]])
        best = points[np.arange(count), fits.argmax(1)]
        missing = ~fits.any(1)
        best[missing] = np.nan
        if tries > 1 and missing.any():
            left = None if rival is None else rival[missing]
            best[missing] = self._path(draw, taken[missing], dashes, left, tries - 1)
        return best

    def _anywhere(self, draw: Draw, points: Any) -> Any:
        """Shifts that put paths anywhere in the picture, if there is room."""
        shifts = []
        for part in (points.real, points.imag):
            low, high = part.min(-1), part.max(-1)
            room = self.side - 2 * self.radius - (high - low)
            shifts.append(self.radius - low + room.clip(0) * draw.uniform(*room.shape).numpy())
        return shifts[0] + 1j * shifts[1]

    def _as_far(self, draw: Draw, points: Any, rival: Any) -> Any:
        """Shifts that put the beginning of a path as far from the rival's as the ends of one of the two are apart.

        A row of `rival` is its beginning, its end, and 0 if it is the rival's ends that count, 1 for the path's own.
        """
        begin, end, own = (column[:, None] for column in rival.T)
        reach = np.where(own == 0, np.abs(end - begin), np.abs(points[..., -1] - points[..., 0]))
        around = np.exp(2j * math.pi * draw.uniform(*reach.shape, DIRECTIONS).numpy())
        shifts = begin[..., None] + reach[..., None] * around
        corners = np.stack([part.real.min(-1) + 1j * part.imag.min(-1) for part in (points, -points)], axis=-1)
        corners[..., 1] *= -1
        best = self._is_inside(shifts[..., None] + corners[..., None, :]).argmax(-1)
        return np.take_along_axis(shifts, best[..., None], axis=-1)[..., 0]

    def _is_inside(self, points: Any) -> Any:
        """Circles too are inside the picture."""
        low, high = self.radius - TINY, self.side - self.radius + TINY
        return np.logical_and.reduce(
            [(part.min(-1) > low) & (part.max(-1) < high) for part in (points.real, points.imag)]
        )

    def _keeps_to_itself(self, shapes: Any) -> Any:
        """Neighbours touch, and the step after the next is a step away: the rest must keep the margin."""
        points = shapes.reshape(-1, shapes.shape[-1])
        point, step = np.ogrid[: points.shape[1], : points.shape[1] - 1]
        apart = (point < step - 1) | (point > step + 2)
        near = (_distances(points, points[:, :-1], points[:, 1:]) < self.margin) & apart
        return ~near.any((1, 2)).reshape(shapes.shape[:-1])

    def _keeps_from(self, points: Any, taken: Any) -> Any:
        """From points to steps both ways: the distance of steps that do not cross, and they are too short to."""
        near = (_distances(points, taken[..., 0], taken[..., 1]) < self.margin).any((1, 2))
        for ends in (taken[..., 0], taken[..., 1]):
            near |= (_distances(ends, points[:, :-1], points[:, 1:]) < self.margin).any((1, 2))
        return ~near

    def _render(self, steps: Any, circles: Any) -> Any:
        """(count, side²) of levels: brightness falls to 0 over one pixel at an edge."""
        places = np.arange(self.side, dtype=np.float32) + 0.5
        pixels = (places[:, None] + 1j * places).astype(np.complex64).reshape(1, -1)
        picture = np.zeros((len(steps), self.side**2), dtype=np.float32)
        for start, end in steps.transpose(1, 2, 0)[..., None]:
            cut = (end - start) * ((self.gap + self.thickness) / 2 / self._step)  # ends are round
            away = _distances(pixels, start + cut, end - cut)[..., 0]
            # a path that found no place is NaN: fmax draws nothing
            picture = np.fmax(picture, SHADE * (self.thickness / 2 + 0.5 - away).clip(0, 1))
        for circle in circles.T[..., None]:
            picture = np.maximum(picture, (self.radius + 0.5 - np.abs(pixels - circle)).clip(0, 1))
        return np.rint(picture * (self.levels - 1))

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        if options.family != "bert" or options.classes != 2 or options.vocab < self.levels:
            raise SpecError(
                f"Pathfinder needs a model of family 'bert' with 2 classes and a vocab of {self.levels} or more"
            )
        return Bert(shape, options)

    def default_options(self) -> ModelOptions:
        return symbol_options(self.levels, self.tokens, 2)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output, labels)

    def scores(self, output: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return class_scores(output, labels)

    def trivial_error(self) -> float:
        """Labels are fair coins."""
        return 0.5

    def simple_baseline(self) -> tuple[str, float]:
        """A linear classifier: it sees where the circles are, but not what joins them. Large pictures take too long."""
        if self.tokens * self.dashes > LINEAR_PIXELS:
            return super().simple_baseline()
        return "linear classifier of pixels", _linear_error(self)

    def baselines(self) -> dict[str, float]:
        return {"logistic regression on pixels": _on_pixels(self)}


def _distances(points: Any, starts: Any, ends: Any) -> Any:
    """(count, points, steps): from each point to the nearest place on each step."""
    along = (ends - starts)[:, None]
    apart = points[:, :, None] - starts[:, None]
    length = along.real**2 + along.imag**2
    part = ((apart.real * along.real + apart.imag * along.imag) / length).clip(0, 1)
    return np.sqrt((apart.real - part * along.real) ** 2 + (apart.imag - part * along.imag) ** 2)


def _steps(path: Any) -> Any:
    """(count, dashes, 2): the beginning and the end of each step of a path."""
    return np.stack([path[:, :-1], path[:, 1:]], axis=2)


@lru_cache(maxsize=16)
def _on_pixels(task: Pathfinder) -> float:
    with extra("baselines", "baselines"):
        from sklearn.linear_model import LogisticRegression

    pixels, labels = task.draw(0, "train", 0, FITTED_SAMPLES)
    model = LogisticRegression(max_iter=1000).fit(pixels / task.levels, labels)
    pixels, labels = task.draw(0, "test", 0, FITTED_SAMPLES)
    return float((model.predict(pixels / task.levels) != labels.numpy()).mean())


@lru_cache(maxsize=16)
def _linear_error(task: Pathfinder) -> float:
    def rows(stream: Stream) -> Iterator[tuple[Any, Any]]:
        for index in range(FITTED_SAMPLES // 2 // ROUND):
            pixels, labels = task.draw(0, stream, index, ROUND)
            yield pooled(pixels.view(-1, 1, task.side, task.side)), labels.numpy()

    return error_by_least_squares(rows, 2)


TASK = Pathfinder
