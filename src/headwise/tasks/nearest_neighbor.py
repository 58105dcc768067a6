"""Nearest-neighbour search on the sphere: the rank paper's task, where one full-rank head can do what many cannot.

Every token is a point and a query at once; its label is the point of the set farthest from it (the nearest to its
antipode). Error is the mean squared distance to the label, so that predicting 0 has error exactly 1.
"""

import torch
from torch import Tensor

_STREAMS = {"train": 0, "validation": 1, "test": 2}


def draw(seed: int, stream: str, index: int, batch: int, points: int, dim: int) -> tuple[Tensor, Tensor]:
    """Batch `index` of a stream: points (batch, points, dim) and their labels.

    It depends on nothing but the arguments, so runs that share a seed share their data whatever happened before.
    """
    key = (seed * len(_STREAMS) + _STREAMS[stream]) * 2**40 + index
    generator = torch.Generator().manual_seed(key)
    x = torch.randn(batch, points, dim, generator=generator)
    x /= x.norm(dim=-1, keepdim=True)
    return x, x.gather(1, farthest(x)[..., None].expand_as(x))


def farthest(x: Tensor) -> Tensor:
    """(batch, points): for each point, which point of its set is farthest from it."""
    return (x @ x.mT).argmin(-1)


def error(prediction: Tensor, label: Tensor) -> Tensor:
    """Mean squared distance to the label."""
    return (prediction - label).square().sum(-1).mean()


def trivial_error(x: Tensor, label: Tensor) -> float:
    """The best that a point's own vector and the mean of the set give: a linear fit, with no search in it."""
    features = torch.stack([x, x.mean(1, keepdim=True).expand_as(x)], dim=-1).reshape(-1, 2).double()
    target = label.reshape(-1, 1).double()
    weights = torch.linalg.lstsq(features, target).solution
    return float((features @ weights - target).square().sum() / x.shape[:-1].numel())
