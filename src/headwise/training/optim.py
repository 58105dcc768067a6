"""Optimisers over flat memory: all parameters of a group in one tensor, all its gradients in another.

One fused AdamW step over one tensor costs a fraction of a step over forty small ones; clearing, clipping and averaging
gradients over devices become one operation each. Parameters stay what they were, as views of the flat tensor. A large
parameter is a tensor of its own, whose gradient is where autograd made it: clearing and adding to a flat one would
visit it three times more, and memory is what its step waits for.
Matrices decay, vectors and scalars do not. Muon treats queries, keys, values and outputs apart, each as one matrix.
"""

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.models.blocks import Block
from headwise.training.run import Recipe

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # Muon's polynomial: steep at zero, near 1 on the rest
NEWTON_SCHULZ_STEPS = 5
LARGE = 2**18  # numbers of a parameter: a second cache holds no more


@dataclass
class _Group:
    """Parameters that are stepped alike, with their flat values and gradients; or a large one alone, without `flat`."""

    values: nn.Parameter
    flat: Tensor | None = None

    @property
    def gradients(self) -> Tensor:
        if self.values.grad is None:  # of a parameter that the loss does not use
            self.values.grad = torch.zeros_like(self.values)
        return self.values.grad

    def clear(self) -> None:
        if self.flat is None:
            self.values.grad = None
        else:
            self.flat.zero_()


class FlatOptimizer:
    """The optimiser a recipe asks for, on one model."""

    def __init__(self, model: nn.Module, recipe: Recipe) -> None:
        self.recipe = recipe
        matrices = muon_matrices(model) if recipe.optimizer == "muon" else {}
        rest = [p for p in model.parameters() if p not in matrices]
        decaying, others = [p for p in rest if p.dim() > 1], [p for p in rest if p.dim() < 2]
        decays = [
            (g, decay) for part, decay in ((decaying, recipe.weight_decay), (others, 0.0)) for g in _grouped(part)
        ]
        self.groups = [group for group, _ in decays]
        settings: list[dict[str, Any]] = [{"params": [group.values], "weight_decay": decay} for group, decay in decays]
        self.adamw: torch.optim.AdamW | None = None  # where a model has matrices alone, and all are Muon's
        if settings:
            self.adamw = torch.optim.AdamW(settings, lr=recipe.learning_rate, betas=recipe.betas, fused=True)
        self.muon = Muon(list(matrices), matrices, recipe) if matrices else None
        if self.muon:
            self.groups.append(self.muon.group)

    def zero_grad(self) -> None:
        for group in self.groups:
            group.clear()

    def gradients(self) -> list[Tensor]:
        return [group.gradients for group in self.groups]

    def step(self, factor: float) -> None:
        """One step at `factor` of the recipe's learning rate."""
        if self.recipe.clip:
            _clip(self.gradients(), self.recipe.clip)
        if self.adamw:
            for settings in self.adamw.param_groups:
                settings["lr"] = factor * self.recipe.learning_rate
            self.adamw.step()
        if self.muon:
            self.muon.step(factor)

    def state(self) -> dict[str, Tensor]:
        """Everything a later step depends on, as named tensors: the values themselves among it."""
        tensors = {f"values.{i}": group.values.data for i, group in enumerate(self.groups)}
        for i, group in enumerate(self.groups):
            for name, tensor in self.adamw.state.get(group.values, {}).items() if self.adamw else ():
                tensors[f"{name}.{i}"] = tensor
        if self.muon:
            tensors["momentum"] = self.muon.momentum
        return tensors

    def load(self, state: dict[str, Tensor]) -> None:
        """Continue from `state()`."""
        for i, group in enumerate(self.groups):
            group.values.data.copy_(state[f"values.{i}"])
            names = [name for name in ("step", "exp_avg", "exp_avg_sq") if f"{name}.{i}" in state]
            if names and self.adamw:
                self.adamw.state[group.values] = {name: state[f"{name}.{i}"].clone() for name in names}
        if self.muon:
            self.muon.momentum.copy_(state["momentum"])


class Muon:
    """Momentum, orthogonalised matrix by matrix.

    torch's own orthogonalises in bfloat16, whose first product kills the process on some processors; this one works in
    the gradients' type.
    """

    def __init__(self, parameters: list[nn.Parameter], parts: dict[nn.Parameter, list[int]], recipe: Recipe) -> None:
        self.recipe = recipe
        self.group = _flatten(parameters)
        self.momentum = torch.zeros_like(self.group.gradients)
        self.slices: list[tuple[int, int, tuple[int, int]]] = []
        offset = 0
        for parameter in parameters:
            columns = parameter.shape[1]
            for rows in parts[parameter]:
                self.slices.append((offset, offset + rows * columns, (rows, columns)))
                offset += rows * columns

    @torch.no_grad()
    def step(self, factor: float) -> None:
        rate, momentum = factor * self.recipe.learning_rate, self.recipe.momentum
        self.momentum.lerp_(self.group.gradients, 1 - momentum)
        ahead = self.group.gradients.lerp(self.momentum, momentum)
        values = self.group.values.data
        values.mul_(1 - rate * self.recipe.weight_decay)
        largest = torch.finfo(values.dtype).max  # torch refuses a larger factor; with this one a run diverges
        for start, end, (rows, columns) in self.slices:
            update = orthogonalised(ahead[start:end].view(rows, columns))
            factor = min(rate * math.sqrt(max(1, rows / columns)), largest)
            values[start:end].view(rows, columns).sub_(update, alpha=factor)


def orthogonalised(matrix: Tensor) -> Tensor:
    """Near to the matrix with all its singular values made 1."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / x.norm().clamp_min(1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x


def muon_matrices(model: nn.Module) -> dict[nn.Parameter, list[int]]:
    """The matrices of the model's blocks, each with the rows of its parts; tables and heads are AdamW's."""
    sections: dict[nn.Parameter, list[int]] = {}
    for block in model.modules():
        if not isinstance(block, Block):
            continue
        linears = [module for module in block.modules() if isinstance(module, nn.Linear)]
        sections |= {cast(nn.Parameter, linear.weight): [linear.out_features] for linear in linears}
        if block.attention.fused:
            sections[cast(nn.Parameter, block.attention.input.weight)] = list(block.attention.sections)
    return sections


def _grouped(parameters: list[nn.Parameter]) -> list[_Group]:
    """Small ones together, and each large one alone."""
    small = [p for p in parameters if p.numel() < LARGE]
    alone = [_Group(p) for p in parameters if p.numel() >= LARGE]
    return [_flatten(small), *alone] if small else alone


def _flatten(parameters: list[nn.Parameter]) -> _Group:
    """Move the parameters into one tensor, and give each a gradient that is a view of another."""
    values = torch.cat([p.data.flatten() for p in parameters])
    gradients = torch.zeros_like(values)
    offset = 0
    for p in parameters:
        here = slice(offset, offset + p.numel())
        p.data = values[here].view_as(p)
        p.grad = gradients[here].view_as(p)
        offset += p.numel()
    flat = nn.Parameter(values)
    flat.grad = gradients
    return _Group(flat, gradients)


def _clip(gradients: list[Tensor], largest: float) -> None:
    norm = torch.stack([g.norm() for g in gradients]).norm()
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    for g in gradients:
        g.mul_(scale)
