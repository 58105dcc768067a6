"""What the page shows, as data: every study with its judgements, its runs and its charts. `page.py` renders it."""

import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headwise.ledger.judge import Judgement, ledger_order
from headwise.ledger.standing import judge_study, rows_of
from headwise.ledger.study import Study
from headwise.store.rows import Row, results_of, rows
from headwise.store.store import Store
from headwise.training.run import Run, RunResult

ROOM = {"left": 5, "top": 5, "bottom": 5, "right": 60}  # a reader's letters may be wider than the measured ones
StudyWatch = Callable[[Sequence[Study]], Iterable[Study]]


@dataclass(frozen=True)
class StudyPart:
    """One preset of a study: how many runs it plans, how those that ended did, and the chart of the finished ones."""

    preset: str
    planned: int
    ended: list[tuple[Run, RunResult]]
    rows: list[Row]
    chart: Any | None
    picture: str  # the chart, drawn: the address of an image that holds it; empty where nobody asked for one

    @property
    def done(self) -> int:
        return sum(result.status == "done" for _, result in self.ended)


@dataclass(frozen=True)
class Section:
    """A study as the page shows it: the part that decides its claims first, others that have runs after it."""

    name: str
    about: str
    judgements: list[Judgement]
    parts: list[StudyPart]


def sections_of(
    studies: Sequence[Study], store: Store, watch: StudyWatch = iter, charts: bool = True, pictures: bool = True
) -> Iterator[Section]:
    """Every study: the preset that decides, then others with finished runs; smoke only where there is nothing else.

    `charts` are drawn as `pictures`, too, for pages that are read without scripts.
    """
    for study in watch(studies):
        judgements = judge_study(study, store)
        decides = judgements[0].preset
        others = [_part(study, preset, store, charts) for preset in study.presets if preset not in (decides, "smoke")]
        parts = [_part(study, decides, store, charts), *(part for part in others if part.rows)]
        parts[0] = _with_message(parts[0], judgements)
        if pictures:
            parts = [replace(part, picture=_picture(part.chart)) if part.chart is not None else part for part in parts]
        yield Section(study.name, study.about, sorted(judgements, key=ledger_order), parts)


def _part(study: Study, preset: str, store: Store, charts: bool) -> StudyPart:
    if study.registration(preset):
        return _registered_part(study, preset, store, charts)
    trials, grid = study.trials(preset), study.of(preset)
    results = results_of(store, trials)
    cells = study.judged(preset, rows(trials, results))
    results |= results_of(store, cells)
    asked = {cell.run.cell_key: cell.run for cell in [*trials, *cells]}
    finished = rows(cells, results)
    chart = _drawn(study, finished, preset) if charts and (finished or not grid) else None
    return StudyPart(
        preset=preset,
        planned=len({cell.run.cell_key for cell in [*trials, *grid]}),  # two places of a grid may be one run
        ended=[(asked[key], result) for key, result in results.items()],
        rows=finished,
        chart=chart,
        picture="",
    )


def _registered_part(study: Study, preset: str, store: Store, charts: bool) -> StudyPart:
    """Judged runs only: trials and pilots decide nothing."""
    finished = rows_of(study, preset, store)
    ended = [pair for row in finished if (pair := store.get(row.key))]
    chart = _drawn(study, finished, preset) if charts and finished else None
    return StudyPart(preset, len(study.of(preset)), ended, finished, chart, "")


def _with_message(part: StudyPart, judgements: list[Judgement]) -> StudyPart:
    """Of the part that decides the claims: its chart says in its title what became of them."""
    if part.chart is None:
        return part
    from headwise.charts.message import message, titled

    return replace(part, chart=titled(part.chart, message(judgements, part.preset)))


def _picture(chart: Any) -> str:
    """The chart as the address of an image. Drawing is most of the work: here it counts as progress."""
    from headwise.charts.grammar import to_svg

    svg = to_svg(chart.properties(padding=ROOM))
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _drawn(study: Study, finished: list[Row], preset: str) -> Any:
    """A study's chart; none where runs of others lack metrics, or have some that cannot be drawn."""
    try:
        return study.chart(finished, preset)
    except (ArithmeticError, LookupError, ValueError):
        return None
