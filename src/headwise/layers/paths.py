"""How a model's layers compute: by which path, with which compiled kernels, from weights prepared for several calls.

A layer with more than one path is a `Pathed`. What a kernel can serve is its `kernel` alone to say: the layer asks it
before every call, and a plan asks it (`kernels`) to know what to compile.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.layers.cpu.compiled import KernelSize

Path = Literal["fast", "plain", "generated"]


class Prepared:
    """What kernels take in the place of weights: made for each call, or once for all calls between begin and end."""

    def __init__(self) -> None:
        self.pairs: dict[str, list[tuple[Tensor, Tensor]]] | None = None  # what was made, and a leaf of the same values

    def begin(self) -> None:
        self.pairs = {}

    def get(self, make: Callable[[], tuple[Tensor, ...]]) -> tuple[tuple[Tensor, ...], list[Tensor | None] | None]:
        """What `make` makes, and where its derivatives are to be summed: None if every call makes its own."""
        if self.pairs is None or not torch.is_grad_enabled():
            return make(), None
        if make.__name__ not in self.pairs:
            self.pairs[make.__name__] = [(made, _leaf(made)) for made in make()]
        leaves = tuple(leaf for _, leaf in self.pairs[make.__name__])
        return leaves, [leaf.grad for leaf in leaves]

    def hand_on(self) -> None:
        """Give the sums of derivatives to the weights that they belong to."""
        pairs = [pair for some in (self.pairs or {}).values() for pair in some]
        used = [(made, leaf.grad) for made, leaf in pairs if leaf.grad is not None]
        if used:
            torch.autograd.backward([made for made, _ in used], [gradient for _, gradient in used])

    def end(self) -> None:
        self.pairs = None


def _leaf(made: Tensor) -> Tensor:
    leaf = made.detach()
    if made.requires_grad:
        leaf.requires_grad_().grad = torch.zeros_like(leaf)
    return leaf


class Pathed(nn.Module, ABC):
    """A layer with more than one path to the same numbers."""

    def __init__(self, path: Path = "fast") -> None:
        super().__init__()
        self.path: Path = path
        self.prepared = Prepared()

    @abstractmethod
    def kernel(self, tokens: int, dtype: torch.dtype = torch.float32) -> KernelSize | None:
        """The compiled kernel for sequences of so many tokens, with the layer's options and in its mode, or None."""


def set_path(model: nn.Module, path: Path) -> None:
    """Let every layer that has several paths take this one."""
    for layer in _layers(model):
        layer.path = path


def kernels(model: nn.Module, tokens: int) -> set[KernelSize]:
    """The compiled kernels that a model could use."""
    return {size for layer in _layers(model) if (size := layer.kernel(tokens))}


@contextmanager
def shared_weights(model: nn.Module) -> Iterator[None]:
    """Prepare weights once for all calls inside; at the end their derivatives are handed on to the parameters."""
    layers = _layers(model)
    for layer in layers:
        layer.prepared.begin()
    try:
        yield
        for layer in layers:
            layer.prepared.hand_on()
    finally:
        for layer in layers:
            layer.prepared.end()


def _layers(model: nn.Module) -> list[Pathed]:
    return [module for module in model.modules() if isinstance(module, Pathed)]
