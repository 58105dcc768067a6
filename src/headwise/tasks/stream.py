"""Random numbers by address: batch i of a stream of a seed is the same whatever was drawn before.

So variants of a comparison share their data, a resumed run continues exactly, and train, validation and test never
overlap: each (seed, stream, index) is a key of its own of a counter-based generator (Philox). torch's generator on a
processor would not do: it keeps only 32 bits of its seed.
"""

import math
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

Stream = Literal["train", "validation", "test"]
_STREAMS: dict[str, int] = {"train": 0, "validation": 1, "test": 2, "order": 3}


def sample_numbers(seed: int, stream: Stream, index: int, batch: int, total: int) -> Any:
    """Which of a finite set's `total` samples are in a batch.

    Training goes through the whole set in a new order each time; a held-out set is read once, in order, so that its
    last batch may be short.
    """
    first = index * batch
    if stream != "train":
        return np.arange(first, min(first + batch, total))
    places = np.arange(first, first + batch)
    return np.array([_order(seed, epoch, total)[place] for epoch, place in zip(*divmod(places, total), strict=True)])


@lru_cache(maxsize=4)
def _order(seed: int, epoch: int, total: int) -> Any:
    return _generator(seed, "order", epoch).permutation(total)


def _generator(seed: int, stream: str, index: int) -> np.random.Generator:
    key = np.array([seed, _STREAMS[stream]], dtype=np.uint64)
    counter = np.array([0, 0, 0, index], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))


class Draw:
    """The numbers of one batch, drawn in order."""

    def __init__(self, seed: int, stream: Stream, index: int, device: str = "cpu") -> None:
        self._numbers = _generator(seed, stream, index)
        self.device = device
        if device != "cpu":  # accelerators draw their own, from a seed that takes all 64 bits
            self._seed = int(self._numbers.integers(2**63))
            self._generator = torch.Generator(device).manual_seed(self._seed)

    def normal(self, *size: int) -> Tensor:
        if self.device != "cpu":
            return torch.randn(size, generator=self._generator, device=self.device)
        return torch.from_numpy(self._numbers.standard_normal(size, dtype=np.float32))

    def uniform(self, *size: int) -> Tensor:
        if self.device != "cpu":
            return torch.rand(size, generator=self._generator, device=self.device)
        return torch.from_numpy(self._numbers.random(size, dtype=np.float32))

    def integers(self, low: int, high: int, *size: int) -> Tensor:
        """Whole numbers from low up to, but not with, high."""
        if self.device != "cpu":
            return torch.randint(low, high, size, generator=self._generator, device=self.device)
        return torch.from_numpy(self._numbers.integers(low, high, size))

    def sphere(self, *size: int) -> Tensor:
        """Points uniform on the unit sphere of the last dimension."""
        points = self.normal(*size)
        return points / points.norm(dim=-1, keepdim=True).clamp_min(math.ulp(1.0))
