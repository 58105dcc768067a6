"""Studies and the ledger as calls: do a study's runs, draw its chart, judge its claims; judge all claims.

    study = headwise.run_study("rank-cliff", preset="laptop")
    study.claims, study.table, study.chart()
    for judgement in headwise.claims(source="Q"):
        print(judgement.claim.id, judgement.verdict)

No torch here.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.extras import require
from headwise.ledger.certify import COVERED, Checked, check
from headwise.ledger.judge import Gate, Judgement, asked_for, ledger_order
from headwise.ledger.registration import PILOT
from headwise.ledger.standing import judge_study, ledger_of, pilot_gates, registered_stages, rows_of
from headwise.ledger.study import Study, stages
from headwise.shown import Shown
from headwise.store.opening import StoreLike, opened
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.studies import load, load_all
from headwise.sweep.drive import conduct
from headwise.sweep.plan import Stopped, Summary, make_plan, read_shard
from headwise.sweep.price import Price, price_plan
from headwise.sweep.resolve import fitted, resolve
from headwise.sweep.tracking import tracked
from headwise.sweep.watching import Watching, unwatched
from headwise.training.run import Execution, Run


@dataclass(frozen=True)
class StudyResult(Shown):
    """What a study's runs say: its claims judged, and its finished runs as a table."""

    study: Study
    preset: str
    summary: Summary
    claims: list[Judgement]
    rows: list[Row]
    published: list[dict[str, float]] = field(default_factory=list)  # measured errors beside a published figure's
    chart_file: str | None = None
    pilot: tuple[tuple[str, str, Gate], ...] = ()  # of a pilot: claim, condition and what a gate says

    @property
    def headline(self) -> str:
        counts = ", ".join(f"{count} {what}" for what, count in self.summary.as_dict().items() if count)
        verdicts = ", ".join(f"{judgement.claim.id} {judgement.verdict}" for judgement in self.claims)
        return f"{self.study.name} ({self.preset}): {counts or 'no runs'}. {verdicts}"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise study run --json` prints."""
        about = {"study": self.study.name, "preset": self.preset, "runs": self.summary.as_dict()}
        claims = [judgement.as_dict() for judgement in self.claims]
        gates = [{"claim": name, "condition": at, **vars(gate)} for name, at, gate in self.pilot]
        shown = {"chart": self.chart_file, "published": self.published}
        return {**about, "claims": claims, **shown, **({"pilot": gates} if gates else {})}

    def records(self) -> list[dict[str, Any]]:
        """One row per finished run: its place in the grid, its seed, its metrics."""
        return [{**row.cell, "seed": row.seed, **row.metrics, "key": row.key} for row in self.rows]

    def chart(self) -> Any:
        """The study's figure, an altair chart."""
        return _chart(self.study, self.rows, self.preset, self.claims)


def run_study(
    study: str | Study,
    preset: str = "laptop",
    *,
    store: StoreLike = None,
    data: Mapping[str, str] | None = None,
    workers: int = 0,
    shard: str | None = None,
    ray: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    keep_weights: bool = False,
    track: str = "",
    out: str | Path | None = None,
    pilot: int = 0,
    only: str = "",
    watching: Watching = unwatched,
) -> StudyResult:
    """Do a study's runs that the store lacks, judge its claims, and save its chart in the folder `out`, if given.

    `study` is a name, or the path of a study of your own; `data` says where tasks find their data, by the task's name;
    `shard` is "i/n" (without one, what a Slurm array says); `ray` a cluster's address or "auto"; `track` mirrors curves
    to tensorboard or wandb as they grow; `pilot` seeds of a registered preset (100 and on) are run as a pilot, which
    decides nothing and shows what the gates would say (`only` of variants with these words in them). An interrupt saves
    and raises `KeyboardInterrupt`; the same call goes on.

    It starts processes, so a script that calls it does so under `if __name__ == "__main__"`.
    """
    if out is not None:
        require("report", "charts")
    asked = load(study) if isinstance(study, str) else study
    part, execution, summary = read_shard(shard), resolve(device, precision), Summary()
    shown = tracked(watching, track, asked.name)
    registration = asked.registration(preset)
    column = registration.column(PILOT if pilot else "") if registration else ""
    with opened(store) as source:
        for runs in _stages(asked, preset, source, execution, dict(data or {}), pilot, only):
            todo = list(make_plan(runs, source, part).todo)
            with shown(todo, "") as watch:
                settings: dict[str, Any] = {"folder": source.files, "workers": workers, "ray_address": ray}
                settings |= {"watch": watch, "shard": part, "keep_weights": keep_weights or asked.keep_weights}
                settings |= {"registration": column}
                try:
                    summary += conduct(runs, source, **settings)
                except Stopped as stopped:
                    raise Stopped(summary + stopped.summary) from None
        judgements, rows = judge_study(asked, source), rows_of(asked, preset, source)
        gates = tuple(pilot_gates(asked, preset, source)) if pilot else ()
    wanted = out is not None and (rows or not summary.planned)
    drawn = _chart(asked, rows, preset, judgements) if wanted else None
    beside = asked.against_published(rows) if asked.against_published else []
    file = _saved(drawn, out, f"{asked.name}-{preset}")
    return StudyResult(asked, preset, summary, judgements, rows, beside, file, gates)


def _stages(
    study: Study, preset: str, store: Store, execution: Execution, sources: dict[str, str], pilot: int, only: str
) -> Iterator[list[Run]]:
    if pilot or study.registration(preset):
        return registered_stages(study, preset, store, execution, sources, pilot, only)
    return stages(study, preset, store, execution, sources)


def _chart(study: Study, rows: list[Row], preset: str, judgements: list[Judgement]) -> Any:
    from headwise.charts.message import message, titled

    return titled(study.chart(rows, preset), message(judgements, preset))


def _saved(drawn: Any, out: str | Path | None, name: str) -> str | None:
    if drawn is None or out is None:
        return None
    from headwise.charts.grammar import save

    return str(save(drawn, Path(out), name)[0])


@dataclass(frozen=True)
class StudyPrice(Shown):
    """What a study's runs that the store lacks would cost here."""

    price: Price

    @property
    def headline(self) -> str:
        return f"{self.price.runs} runs to do, {self.price.found} already in the store"

    def as_dict(self) -> dict[str, Any]:
        """What `headwise study run --dry-run --json` prints."""
        return dict(vars(self.price))

    def records(self) -> list[dict[str, Any]]:
        return [self.as_dict()]


def price_study(
    study: str | Study,
    preset: str = "laptop",
    *,
    shard: str | None = None,
    device: str = "auto",
    precision: str = "auto",
    store: StoreLike = None,
    data: Mapping[str, str] | None = None,
    workers: int = 0,
) -> StudyPrice:
    """What `run_study` would cost with the same arguments: exact FLOPs, and time from a few steps measured now."""
    from headwise.sweep.local import usable_cores

    asked = load(study) if isinstance(study, str) else study
    part, execution = read_shard(shard), resolve(device, precision)
    with opened(store) as source:
        cells = asked.trials(preset) + asked.of(preset)
        planned = fitted([cell.run for cell in cells], execution, source, dict(data or {}))
        return StudyPrice(price_plan(make_plan(planned, source, part), workers or usable_cores()))


# ---- the ledger ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ledger(Shown):
    """Claims with their verdicts, and runs that were checked against certified bounds."""

    judgements: tuple[Judgement, ...]
    certified: list[Checked]

    def __iter__(self) -> Iterator[Judgement]:
        return iter(self.judgements)

    def __len__(self) -> int:
        return len(self.judgements)

    def __getitem__(self, claim: str) -> Judgement:
        """The judgement of one claim, by its id."""
        for judgement in self.judgements:
            if judgement.claim.id == claim:
                return judgement
        raise KeyError(claim)

    @property
    def violations(self) -> list[Checked]:
        """Runs whose error lies below what is certified: there should be none."""
        return [run for run in self.certified if run.violates]

    @property
    def headline(self) -> str:
        counts = Counter(judgement.verdict for judgement in self.judgements)
        return ", ".join(f"{count} {verdict}" for verdict, count in counts.items())

    def as_dict(self) -> list[Any]:
        """What `headwise claims --json` prints."""
        return [judgement.as_dict() for judgement in self.judgements]

    def records(self) -> list[dict[str, Any]]:
        """One row per claim."""
        columns = ("id", "verdict", "claim", "estimate", "low", "high", "seeds", "preset", "study", "settle")
        return [{name: row[name] for name in columns} for row in self.as_dict()]


def claims(
    source: str = "",
    store: StoreLike = None,
    results: str | Path | None = None,
    studies: Sequence[str | Path] = (),
) -> Ledger:
    """The ledger: what the papers claim, and what the runs of the store say.

    `source` chooses claims by the first letters of their ids (Q, L, N); `results` reads runs from Parquet files instead
    of a store; `studies` are files of your own, whose claims are judged too.
    """
    known = load_all(studies)
    wanted = {claim.id for claim in asked_for(source, (claim for study in known for claim in study.all_claims))}
    with opened(store, results) as runs:
        judged = ledger_of(known, runs)
        certified = check(runs.runs(status="done", asked=COVERED))
    chosen = (judgement for judgement in sorted(judged, key=ledger_order) if judgement.claim.id in wanted)
    return Ledger(tuple(chosen), certified)
