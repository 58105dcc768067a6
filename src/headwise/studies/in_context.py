"""In-context regression: at equal parameters, do fewer heads learn better from the prompt?

Paper: Amsel, Yehudai, Bruna (arXiv 2407.16153), Section 7, on the decoder of Garg et al. (arXiv 2208.01066).
Claims: Q14.
Task: f(x) for the last x of a prompt of examples (x, f(x)); linear f of Gaussian weights.
Grid: heads × rank = width. Parameters are equal. Each variant has its own learning rate, chosen on validation with a
seed that is not judged. The chart has the error after each number of examples, beside least squares.
Power: not piloted. Between the laptop's seeds the ratio of two variants differed by 25 %: a factor of 1.7 is seen.
Command: headwise study run in-context --preset laptop (about 9 minutes on two cores)
"""

from typing import Any

from headwise.ledger.claims import Claim, Comparison, Variant, paired
from headwise.ledger.study import Preset, Study
from headwise.options import preset as options_preset
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.training.run import Recipe, Run


class InContextPreset(Preset):
    """The decoder, the functions it learns from a prompt, and its training."""

    width: int
    depth: int
    dim: int
    points: int
    curriculum: int
    batch: int
    steps: int
    heads: tuple[int, ...]


PRESETS = {
    "smoke": InContextPreset(
        width=16, depth=1, dim=3, points=7, curriculum=0, batch=256, steps=5, heads=(1, 4), rates=(0.003,)
    ),
    "laptop": InContextPreset(
        width=32, depth=3, dim=5, points=11, curriculum=0, batch=64, steps=2000, heads=(1, 2, 4, 8, 16),
        rates=(0.001, 0.003, 0.01),
    ),
    "paper": InContextPreset(
        width=256, depth=12, dim=20, points=41, curriculum=2000, batch=64, steps=500_000,
        heads=(1, 2, 4, 8, 16, 32, 64), rates=(0.00005, 0.0001, 0.0002),
    ),
}  # fmt: skip


def cells(preset: InContextPreset) -> list[Cell]:
    seeds = range(preset.seeds)
    return [Cell({"heads": heads}, _run(preset, heads, seed)) for heads in preset.heads for seed in seeds]


def _run(preset: InContextPreset, heads: int, seed: int) -> Run:
    task = {"name": "in-context", "dim": preset.dim, "points": preset.points, "curriculum": preset.curriculum}
    shape = ModelShape(width=preset.width, heads=heads, depth=preset.depth)
    options = options_preset("gpt2", init="unit", vocab=preset.dim + 1, context=2 * preset.points - 1)
    recipe = Recipe(batch=preset.batch, betas=(0.9, 0.95), warm_up=0.1)
    return Run(task=task, shape=str(shape), options=options, recipe=recipe, steps=preset.steps, seed=seed)


def fewer_heads(rows: list[Row]) -> list[Comparison]:
    """Q14: the largest number of heads has a larger error than one head, and than a few heads of high rank."""
    counts = sorted({row.cell["heads"] for row in rows})
    few, most = sorted({counts[0], counts[len(counts) // 4]}), counts[-1]
    many = Variant(f"{most} heads", cell(rows, heads=most))
    return [
        paired(many, Variant(f"{heads} head{'s' if heads > 1 else ''}", cell(rows, heads=heads)), at_least=1.0)
        for heads in few
        if heads < most
    ]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import Mark, curves, measured

    points: list[Mark] = []
    used = PRESETS[preset]
    for number in range(used.points):
        errors = measured(rows, "heads", "heads", metric=f"error_at_{number}", label="heads: {}")
        points += [{**point, "x": number} for point in errors]
        best: Mark = {"x": number, "y": max(0.0, 1 - number / used.dim), "series": "least squares", "panel": ""}
        points.append({**best, "kind": "theory"})
    note = f"linear functions of {used.dim} numbers, decoder of width {used.width} and {used.depth} layers; "
    note += used.tuning
    return curves(points, "Learning from the prompt", [note], "examples in the prompt", "squared error", log_x=False,
                  log_y=False)  # fmt: skip


CLAIMS = (
    Claim("Q14", "In-context regression: fewer heads of higher rank, same parameters, better accuracy",
          "Q, Sec. 7", "in-context", fewer_heads,
          untestable="learned positions began too quiet for the models to learn",
          restated="one head is no longer left out"),
)  # fmt: skip
STUDY = Study("in-context", __doc__, PRESETS, cells, chart, CLAIMS)
