"""Nearest-neighbour search as the rank paper trains it: sizes of its models, and a run of one cell."""

from typing import Any

from headwise.activations import fitting_micro_batches
from headwise.ledger.study import Preset
from headwise.options import preset as options_preset
from headwise.shape import ModelShape
from headwise.training.run import ProbeName, Recipe, Run

HEAD_PROBES: tuple[ProbeName, ...] = ("sharpness", "attention-entropy", "qk-rank", "qk-identity-angle", "qk-norm")


class NeighborPreset(Preset):
    """How large points and models are, and how they are trained; a study adds its grid."""

    dim: int
    points: int
    mlp: int
    steps: int
    warm_up: float
    batch: int
    evaluations: int = 10
    learning_rate: float = 0.01

    @property
    def setting(self) -> str:
        """What a chart says of its task and training."""
        return f"{self.points} points in {self.dim} dimensions, {self.steps:,} steps"


NEIGHBOR_SIZES = {
    "smoke": NeighborPreset(dim=8, points=8, mlp=16, steps=20, warm_up=0.05, batch=256, evaluations=1),
    "laptop": NeighborPreset(dim=16, points=16, mlp=64, steps=2000, warm_up=0.3, batch=128),
    "paper": NeighborPreset(dim=64, points=16, mlp=2048, steps=100_000, warm_up=0.05, batch=256, seeds=5),
}
LONGER = NEIGHBOR_SIZES["paper"].replace(steps=200_000, learning_rate=0.005)  # the paper's later figures


def neighbor_run(
    preset: NeighborPreset,
    depth: int,
    multiplier: int,
    rank: int,
    seed: int,
    *,
    task: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """A cell's run, for every study of this task; the defaults of the paper, but for what is given.

    As many heads as it takes for their values to fill the width, where the rank does not divide it.
    """
    given = {"name": "nearest-neighbor", "dim": preset.dim, "points": preset.points, **(task or {})}
    width = preset.dim * (2 if given.get("positions") == "concatenated" else 1) + given.get("notes", 0)
    heads = -(-multiplier * width // rank)
    shape = ModelShape(width=width, heads=heads, qk_rank=rank, depth=depth, mlp=preset.mlp)
    model = options_preset("encoder", **{"init": "torch", "output_scale": 1 / multiplier} | (options or {}))
    recipe = Recipe(
        learning_rate=preset.learning_rate,
        betas=(0.9, 0.95),
        warm_up=preset.warm_up,
        batch=preset.batch,
        micro_batches=fitting_micro_batches(shape, model, preset.points, preset.batch),
    )
    settings = {"steps": preset.steps, "evaluations": preset.evaluations, "seed": seed, **changes}
    return Run(task=given, shape=str(shape), options=model, recipe=recipe, **settings)
