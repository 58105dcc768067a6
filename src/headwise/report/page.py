"""One page of everything: the ledger, then one section per study. A single file that loads nothing from anywhere.

The template escapes whatever it is given, so that HTML in a run's task or message is text. Charts are SVG in image
elements: they run no scripts and their names cannot meet each other's. A policy in the page's head forbids the rest.
"""

import base64
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from statistics import mean
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.text import Text

from headwise.extras import require
from headwise.ledger.certify import Checked
from headwise.ledger.judge import SOURCES, Judgement, Verdict, ledger_order, source_of
from headwise.ledger.standing import newest
from headwise.ledger.statistics import LEVEL, mean_interval
from headwise.report.ledger import beside, certificate, line, notes, scale_of, superseded, to_resolve
from headwise.report.sections import Section, StudyPart, StudyWatch, sections_of
from headwise.report.tables import short
from headwise.report.vega import library, live
from headwise.shown import Shown, finite
from headwise.spec import SpecError, check_writable
from headwise.store.rows import Row
from headwise.training.run import Run, RunResult

MOST_METRICS = 8  # columns of a table; a model of many layers has hundreds
MOST_FAILURES = 10
_TITLES = {
    "arm": "variant",
    "bits_per_masked_byte": "masked-LM bits per byte",
    "flops": "training FLOPs",
    "kv_bytes_per_token": "KV cache bytes/token",
    "nats_per_token": "nats/token",
    "trivial_error": "error of a constant predictor",
}
BOOKKEEPING = (
    "seconds",
    "latency",
    "learning_rate",
    "heads",
    "flops",
    "kv_bytes_per_token",
)  # of a run, not its answer
HEADLINES = {  # the questions people come with, and the claims that answer them
    "Can more heads replace rank?": ("Q7", "Q8"),
    "Do fewer layers with more heads keep quality?": ("L5", "L6", "L7"),
    "Should heads be larger than usual, at equal parameters?": ("N1", "N2"),
    "What do shared or compressed keys and values cost?": ("N3", "N4"),
}


@dataclass(frozen=True)
class Report(Shown):
    """A page that was written, and what it shows."""

    page: Path
    sections: list[Section]

    def as_dict(self) -> dict[str, Any]:
        studies = [
            {
                "name": section.name,
                "presets": {part.preset: {"planned": part.planned, "done": part.done} for part in section.parts},
                "charts": sum(part.chart is not None for part in section.parts),
            }
            for section in self.sections
        ]
        claims = [one.as_dict() for one in newest(one for part in self.sections for one in part.judgements)]
        return {"page": str(self.page), "studies": studies, "claims": claims}

    def records(self) -> list[dict[str, Any]]:
        return [
            {"study": section.name, "preset": part.preset, "planned": part.planned, "done": part.done}
            for section in self.sections
            for part in section.parts
        ]

    @property
    def headline(self) -> str:
        return f"wrote {self.page}"


def write_report(
    out: str | Path | None = None,
    store: str | Path | None = None,
    results: str | Path | None = None,
    studies: Sequence[str | Path] = (),
    *,
    watch: StudyWatch = iter,
) -> Report:
    """Write the page: the ledger, and every study with its chart; `studies` are files of your own beside ours.

    Runs are read from the store (the usual one by default), or from exported files in `results`. `out` is the page's
    file (x.html) or its folder, beside the store by default. `watch` is given the studies and gives them back one by
    one: it may show how far the work has come.
    """
    from headwise.ledger.certify import COVERED, check
    from headwise.store.opening import opened
    from headwise.studies import load_all

    require("report", "pages with charts")
    place = Path(out).expanduser() if out else folder_beside(store)
    check_writable(page_path(place).parent)
    with opened(store, results) as runs:
        sections = list(sections_of(load_all(studies), runs, watch))
        checked = check(runs.runs(status="done", asked=COVERED))
        origin = str(results or runs.path.name)
    return Report(write_page(sections, checked, origin, place), sections)


def folder_beside(store: str | Path | None = None) -> Path:
    """Where the page of a store is unless another folder is given."""
    from headwise.store.store import default_path

    return Path(store or default_path()).expanduser().with_suffix(".report")


def write_page(sections: list[Section], checked: list[Checked], origin: str, out: Path) -> Path:
    """Write the page to a file, or into a folder, and say where it is."""
    return write_file(render(sections, checked, origin), page_path(out))


def page_path(out: str | Path, name: str = "index.html") -> Path:
    """`x.html` is a file, anything else a folder for one."""
    path = Path(out).expanduser()
    return path if path.suffix.lower() in (".html", ".htm") else path / name


def write_file(text: str, page: Path) -> Path:
    """Write a page; an earlier one stays until the new one is whole."""
    partial = page.with_name(f".{page.name}.partial")
    try:
        page.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(page)
    except OSError as error:
        raise SpecError(f"cannot write {page}: {error}; choose another place with --out") from None
    return page.resolve()


def render(sections: list[Section], checked: list[Checked], origin: str) -> str:
    """The page as text; `origin` says where its runs were read."""
    import headwise

    judgements = sorted(newest(one for section in sections for one in section.judgements), key=ledger_order)
    ordered = sorted(sections, key=lambda section: min(map(ledger_order, section.judgements)))
    own = {"style": Markup("\n").join([_file("chart.css"), _file("page.css")]), "script": _file("page.js")}
    charts = {f"{one.name} {part.preset}": live(part.chart) for one in sections for part in one.parts if part.picture}
    drawing = {"library": Markup(library()), "live": _file("chart.js")} if charts else {}
    templates = Environment(
        loader=PackageLoader("headwise", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return templates.get_template("page.html").render(
        **own,
        library=drawing.get("library"),
        live=drawing.get("live"),
        charts=as_script(charts),
        policy=policy(own["style"], *drawing.values(), own["script"]),
        claims=[claim_fields(judgement) for judgement in judgements],
        verdicts={verdict: sum(j.verdict == verdict for j in judgements) for verdict in get_args(Verdict)},
        sources=_sources(judgements),
        headlines=_headlines(judgements),
        sections=[_section(section) for section in ordered],
        certificate=" ".join(Text.from_markup(str(line)).plain for line in certificate(checked)),
        violated=any(run.violates for run in checked),
        origin=origin,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        version=headwise.__version__,
        level=f"{LEVEL:.0%}".replace("%", " %"),
    )


def _file(name: str) -> Markup:
    """A file of this folder, as it stands: it is ours."""
    return Markup(files("headwise.report").joinpath(name).read_text(encoding="utf-8"))


def policy(style: str, *scripts: str) -> str:
    """What the page may do: draw itself, with this style and these scripts. Nothing comes from anywhere."""
    allowed = " ".join(f"'{inline_hash(script)}'" for script in scripts)
    return f"default-src 'none'; img-src data:; style-src '{inline_hash(style)}'; script-src {allowed}"


def as_script(data: Any) -> Markup:
    """JSON that cannot end the element it stands in."""
    return Markup(json.dumps(finite(data), separators=(",", ":")).replace("<", "\\u003c"))


def inline_hash(text: str) -> str:
    """What the browser compares an inline style or script with before it obeys it."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# ---- claims --------------------------------------------------------------------------------------------------------


def _sources(judgements: list[Judgement]) -> dict[str, tuple[str, int]]:
    """Of each source of claims: what it is about, and how many claims it has."""
    letters = [source_of(judgement.claim) for judgement in judgements]
    return {letter: (SOURCES.get(letter, "other"), letters.count(letter)) for letter in dict.fromkeys(letters)}


def _headlines(judgements: list[Judgement]) -> dict[str, list[dict[str, Any]]]:
    """The questions whose claims have a verdict here, with those claims."""
    decided = {judgement.claim.id: judgement for judgement in judgements if judgement.verdict != "open"}
    answers = {
        question: [claim_fields(decided[name]) for name in names if name in decided]
        for question, names in HEADLINES.items()
    }
    return {question: claims for question, claims in answers.items() if claims}


def claim_fields(judgement: Judgement) -> dict[str, Any]:
    claim, deciding = judgement.claim, judgement.deciding
    return {
        "id": claim.id,
        "claim": claim.claim,
        "from": claim.source,
        "source": source_of(claim),
        "study": claim.study,
        "verdict": judgement.verdict,
        "shown": _comparison(deciding.as_dict()) if deciding else None,
        "comparisons": [_comparison(measured.as_dict()) for measured in judgement.comparisons],
        "measured": " ".join([scale_of(judgement), *notes(judgement), superseded(judgement)]).strip(),
        "caveat": claim.caveat,
        "settle": to_resolve(judgement.remedy) if judgement.remedy else "",
    }


def _comparison(one: dict[str, Any]) -> dict[str, str]:
    return {"subject": one["subject"], **line(one)._asdict(), "beside": beside(one)}


# ---- studies -------------------------------------------------------------------------------------------------------


def _section(section: Section) -> dict[str, Any]:
    lead, _, rest = section.about.strip().partition("\n")
    return {
        "name": section.name,
        "lead": lead,
        "about": rest.strip(),
        "claims": [claim_fields(judgement) for judgement in section.judgements],
        "parts": [_part(section.name, part) for part in section.parts],
    }


def _part(study: str, part: StudyPart) -> dict[str, Any]:
    bad = [(run, result) for run, result in part.ended if result.status != "done"]
    return {
        "preset": part.preset,
        "planned": part.planned,
        "rows": len(part.rows),
        "chart": part.picture,
        "words": live(part.chart)["description"] if part.picture else "",
        "table": _table(part) if part.rows else None,
        "budget": _budget(part),
        "bad": [_failure(run, result) for run, result in bad[:MOST_FAILURES]],
        "more_bad": len(bad[MOST_FAILURES:]),
        "command": f"headwise study run {study} --preset {part.preset}",
    }


def _failure(run: Run, result: RunResult) -> dict[str, Any]:
    message = next(reversed(result.message.strip().splitlines()), "")
    return {"key": result.key, "status": result.status, "task": run.task["name"], "shape": run.shape, "why": message}


def _budget(part: StudyPart) -> dict[str, str]:
    """What the runs cost, and where they were done."""
    results = [result for _, result in part.ended]
    done = f"{part.done} of {part.planned} done"
    if not results:
        return {"runs": done if part.planned else "none: it is computed"}
    machines = dict.fromkeys(_machine(result.environment) for result in results)
    return {
        "runs": done,
        "training": short(sum(result.flops for result in results), "FLOP"),
        "training time": f"{_duration(sum(result.seconds for result in results))}, summed over runs",
        "machine": "; ".join(machine for machine in machines if machine) or "not recorded",
    }


def _machine(environment: dict[str, str]) -> str:
    kind = environment.get("cuda") or environment.get("processor", "")
    cores = f"{environment['cores']} cores" if "cores" in environment else ""
    versions = [f"{name} {environment[name]}" for name in ("torch", "headwise") if name in environment]
    return ", ".join(word for word in (kind, cores, environment.get("system", ""), *versions) if word)


def _duration(seconds: float) -> str:
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.0f} s"


# ---- the table of cells --------------------------------------------------------------------------------------------


def _table(part: StudyPart) -> dict[str, Any]:
    """One line per place of the grid: its seeds, the first metrics, the runs' costs; what never differs, apart."""
    places: dict[tuple[Any, ...], list[Row]] = {}
    for row in part.rows:
        places.setdefault(tuple(row.cell.items()), []).append(row)
    names = _union(row.cell for row in part.rows)
    metrics = _union(result.metrics for _, result in part.ended)
    other = [name for name in _union(row.metrics for row in part.rows) if name not in (*names, *metrics)]
    costs = [name for name in other if name not in BOOKKEEPING]
    columns = {
        name: [
            _mean([row.metrics[name] for row in seeds if name in row.metrics], name in metrics)
            for seeds in places.values()
        ]
        for name in [*metrics[:MOST_METRICS], *costs]
    }
    same = [name for name, column in columns.items() if len(set(column)) == 1 < len(column)]
    shown = [name for name in columns if name not in same]
    return {
        "places": [title(name) for name in names],
        "columns": [title(name) for name in shown],
        "lines": [
            {
                "place": [_plain(dict(place).get(name, "")) for name in names],
                "seeds": len(seeds),
                "numbers": [columns[name][line] for name in shown],
            }
            for line, (place, seeds) in enumerate(places.items())
        ],
        "same": ", ".join(f"{title(name)} {columns[name][0][0]}" for name in same),
        "left_out": [title(name) for name in metrics[MOST_METRICS:]],
    }


def title(name: str) -> str:
    """A metric, a cost or a coordinate of the grid as a column's title."""
    return _TITLES.get(name, name.replace("_", " "))


def _union(mappings: Iterable[Mapping[str, Any]]) -> list[str]:
    """Every name, as they first appear."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _mean(values: list[float], judged: bool) -> tuple[str, str]:
    """The mean of the seeds, as charts show it; of what is judged also Student's interval, where the seeds differ."""
    if not all(map(math.isfinite, values)):
        return "not finite", ""
    if len(set(values)) < 2 or not judged:
        return (_plain(mean(values)) if values else ""), ""
    middle, low, high = mean_interval(values, LEVEL)
    return _plain(middle), f"{_plain(low)} to {_plain(high)}"


def _plain(value: Any) -> str:
    """Whole numbers in full while they can be read, others with four digits, anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if abs(value) >= 1e9:
        return short(value)
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.4g}"
