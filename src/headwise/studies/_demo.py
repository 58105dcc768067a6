"""The rank cliff in a minute: encoders of equal size, from one head of full rank to many of rank 1.

The study `rank-cliff` with its `demo` preset: what the demo shows is what a study does.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from headwise.extras import require
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened
from headwise.store.rows import Cell, Row, results_of
from headwise.store.rows import rows as rows_of
from headwise.studies import load
from headwise.sweep.drive import conduct
from headwise.sweep.plan import make_plan
from headwise.sweep.price import price_plan
from headwise.sweep.resolve import fitted
from headwise.sweep.watching import Watching, unwatched
from headwise.training.run import Execution

MOST_SEEDS = 1000


@dataclass(frozen=True)
class Demo(Shown):
    """What the demo found, one row per shape; `verdict` says it in a sentence."""

    rows: list[dict[str, Any]]
    trivial_error: float
    steps: int
    runs: list[Row]
    chart_files: tuple[str, ...] = ()

    @property
    def headline(self) -> str:
        return self.verdict

    def as_dict(self) -> dict[str, Any]:
        """What `headwise demo --json` prints."""
        about = {"trivial_error": self.trivial_error, "arms": self.rows, "verdict": self.verdict}
        return about | {"charts": list(self.chart_files)}

    def records(self) -> list[dict[str, Any]]:
        return self.rows

    def chart(self) -> Any:
        """Error against rank, an altair chart."""
        from headwise.charts.ranks import rank_curves

        return rank_curves(self.runs, "Equal parameters, unequal sight", setting(self.steps, self.rows[0]["seeds"]))

    @property
    def verdict(self) -> str:
        full, half = self.rows[0], self.rows[1]
        errors = (
            f"with the same {full['parameters']:,} parameters, {_heads(full)} has error {full['error']:.2f} "
            f"and {_heads(half)} have {half['error']:.2f} (a constant predictor: {self.trivial_error:.2f})"
        )
        if full["high"] < 0.5 * half["low"]:
            return f"Rank decides what a head can see: {errors}."
        return f"No cliff after {self.steps} steps: {errors}. The usual 2,000 steps show it."


@dataclass(frozen=True)
class DemoPlan(Shown):
    """What the demo would run."""

    shapes: list[str]
    seeds: int
    steps: int
    runs: int
    seconds: float  # on this machine, from a few steps measured now
    workers: int

    @property
    def headline(self) -> str:
        runs = f"{self.runs} runs of {self.steps:,} steps, {self.seeds} seeds per shape"
        return f"{runs}: about {max(1, round(self.seconds)):,} seconds on {self.workers} processes of this machine"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise demo --dry-run --json` prints."""
        return dict(vars(self))

    def records(self) -> list[dict[str, Any]]:
        return [{"shape": shape, "seeds": self.seeds, "steps": self.steps} for shape in self.shapes]


def plan_demo(seeds: int = 2, steps: int = 2000) -> DemoPlan:
    """What `demo` would run, and how long it would take here."""
    from headwise.sweep.local import usable_cores

    cells = _cells(seeds, steps)
    with opened(":memory:") as nothing:
        planned = make_plan(fitted([cell.run for cell in cells], Execution(), nothing), nothing)
        price = price_plan(planned, usable_cores())
    shapes = list(dict.fromkeys(cell.run.shape for cell in cells))
    return DemoPlan(shapes, seeds, steps, price.runs, price.seconds, price.workers)


def demo(
    seeds: int = 2,
    steps: int = 2000,
    *,
    store: StoreLike = None,
    out: str | Path | None = None,
    watching: Watching = unwatched,
) -> Demo:
    """The rank cliff in about a minute. Without a store the runs are forgotten; the chart is saved in `out`, if given.

    It starts processes, so a script that calls it does so under `if __name__ == "__main__"`.
    """
    if out is not None:
        require("report", "charts")
    cells = _cells(seeds, steps)
    with TemporaryDirectory() as temporary, opened(store or Path(temporary) / "demo.db") as source:
        runs = fitted([cell.run for cell in cells], Execution(), source)
        with watching(list(make_plan(runs, source).todo), setting(steps, seeds)) as watch:
            summary = conduct(runs, source, folder=Path(temporary), watch=watch)
        rows = rows_of(cells, results_of(source, cells))
    if summary.failed:
        raise RuntimeError(f"{summary.failed} runs of the demo failed; headwise doctor says what works here")
    result = _summary(rows, steps)
    if out is None:
        return result
    from headwise.charts.grammar import save

    return replace(result, chart_files=tuple(map(str, save(result.chart(), Path(out), "rank-cliff"))))


def setting(steps: int, seeds: int) -> str:
    """What is run, in a line."""
    return f"nearest-neighbour search: 16 points in 16 dimensions, {steps:,} steps, {seeds} seeds"


def _cells(seeds: int, steps: int) -> list[Cell]:
    if not 1 <= seeds <= MOST_SEEDS or steps < 1:
        raise SpecError(f"a demo has at least one seed, at most {MOST_SEEDS}, and one step, not {seeds} and {steps}")
    study = load("rank-cliff")
    return study.cells(study.presets["demo"].replace(seeds=seeds, steps=steps))


def _summary(rows: list[Row], steps: int) -> Demo:
    """One line per shape, from full rank down."""
    summaries = []
    for rank in sorted({row.cell["rank"] for row in rows}, reverse=True):
        cell = [row for row in rows if row.cell["rank"] == rank]
        errors = [row.metrics["error"] for row in cell]
        sizes = {"heads": int(cell[0].metrics["heads"]), "parameters": int(cell[0].metrics["parameters"])}
        spread = {"error": mean(errors), "low": min(errors), "high": max(errors), "seeds": len(errors)}
        summaries.append({**sizes, "qk_rank": rank, **spread})
    return Demo(summaries, mean(row.metrics["trivial_error"] for row in rows), steps, rows)


def _heads(row: dict[str, Any]) -> str:
    return f"{row['heads']} head{'s' if row['heads'] > 1 else ''} of rank {row['qk_rank']}"
