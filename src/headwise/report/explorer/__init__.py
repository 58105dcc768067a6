"""The explorer: one static page with live exact costs, equal-cost curves, a model's heads, and the ledger.

    headwise.explore("gpt2", "w768-h6-L12", out="explorer.html")

The page is HTML, CSS and plain JavaScript of this folder, put together here with what it shows as JSON; it loads
nothing from anywhere. Shapes, options, known models and dtypes are handed over as data; what is ported (shape.js,
cost.js, config.js, bound.js, law.js) is tested in a browser against the Python it stands for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headwise.comparison.evidence.own import own_rows
from headwise.comparison.evidence.rows import OWN, published
from headwise.comparison.prediction import ladder_in_numbers
from headwise.cost import DEFAULT_CONTEXT, DTYPE_BYTES
from headwise.extras import has
from headwise.known import KNOWN, find
from headwise.ledger.judge import SOURCES, Judgement, ledger_order
from headwise.ledger.standing import newest
from headwise.options import PLAIN, PRESETS, ModelOptions
from headwise.report.page import as_script, claim_fields, page_path, policy, write_file
from headwise.report.sections import Section, StudyWatch, sections_of
from headwise.report.vega import library, live
from headwise.shape import DEEPEST, EXAMPLES, LARGEST, LETTERS
from headwise.shown import Shown
from headwise.spec import SpecError, check_writable, read_json_text, read_text

SCRIPTS = ("shape", "cost", "config", "bound", "parts", "curve", "heat", "law", "ledger", "model", "app")
NEEDS: dict[str, dict[str, int]] = {  # what a family needs, until something else is chosen
    "decoder": {"vocab": 50_257, "context": 1024},
    "bert": {"vocab": 30_522, "context": 512},
    "vit": {"image": 224, "patch": 16, "classes": 1000},
    "encoder": {},
}
_FREE: tuple[str, ...] = (
    "init",
    "norm_eps",
    "rope_base",
    "hardmax",
    "output_scale",
    "dropout",
    "residual",
    "whitened",
)  # cost nothing
_FREE += ("rope_scaling", "attention_softcap", "embedding_scale")
_PLAIN_ONLY = ("mixer", "style", "inner")  # the page prices plain attention


@dataclass(frozen=True)
class Explorer(Shown):
    """A page that was written."""

    page: Path
    shapes: tuple[str, ...]
    claims: int

    def as_dict(self) -> dict[str, Any]:
        return {"page": str(self.page), "shapes": list(self.shapes), "claims": self.claims}

    def records(self) -> list[dict[str, Any]]:
        return [self.as_dict()]

    @property
    def headline(self) -> str:
        return f"wrote {self.page}"


def explore(
    *shapes: str,
    out: str | Path = "headwise-explorer.html",
    store: str | Path | None = None,
    results: str | Path | None = None,
    inspection: str | Path | None = None,
    ledger: bool = True,
    charts: bool = True,
    watch: StudyWatch = iter,
) -> Explorer:
    """Write the explorer, beginning with these shapes or known models (A, then B).

    The ledger is judged from the store, or from exported files in `results`; without either, from the runs that come
    with headwise, and left out where there are none or without `ledger`. `inspection` is a file of `headwise inspect
    --json`. `out` is a file, or a folder for `index.html`; `charts` puts each study's chart into the ledger, where
    the extra that draws them is installed.
    """
    from headwise.store.opening import opened, shipped_results
    from headwise.studies import load_all

    if len(shapes) > 2:
        raise SpecError(f"the page compares two shapes, not {len(shapes)}; give the two that matter most")
    known = [find(shape) for shape in shapes]
    for one in known:
        if one.shape.stages or one.options.style != "vit" or one.options.mixer != PLAIN:
            raise SpecError(f"the explorer prices plain attention in one stage: see 'headwise cost {one.name}' instead")
    start = tuple(one.name or str(one.shape) for one in known)
    check_writable(page_path(out).parent)
    charts = charts and has("report")
    looked_into = _inspection(inspection)
    sections: list[Section] = []
    law = None
    runs = results or (None if store else shipped_results())
    if ledger and (store or runs):
        with opened(store, runs) as held:
            sections = list(sections_of(load_all(()), held, watch, charts, pictures=False))
            law = ladder_in_numbers(held)
    origin = str(results or store or ("the repository's results" if sections else ""))
    text = render(start, sections, origin, looked_into, charts, law=law)
    return Explorer(write_file(text, page_path(out)), start, sum(len(section.judgements) for section in sections))


def _inspection(file: str | Path | None) -> Any:
    if file is None:
        return None
    found = read_json_text(read_text(file, "heads"), f"heads from '{file}'")
    if not isinstance(found, dict) or not found.get("layers"):
        raise SpecError(f"'{file}' has no layers; give what 'headwise inspect --json' printed")
    return found


# ---- the page ------------------------------------------------------------------------------------------------------


def render(
    shapes: Sequence[str] = (),
    sections: Sequence[Section] = (),
    origin: str = "",
    inspection: Any = None,
    charts: bool = True,
    lead: str = "",
    law: dict[str, Any] | None = None,
) -> str:
    """The page as text; `lead` is the name of an inspected model that it begins with, `law` the ladder's laws."""
    import headwise

    scripts = [_file("chart.js", "headwise.report"), *(_file(f"{name}.js") for name in SCRIPTS)]
    style = Markup("\n").join([_file("chart.css", "headwise.report"), _file("explorer.css")])
    own = {"style": style, "script": Markup("\n").join(scripts)}
    data = page_data(shapes, sections, inspection, charts) | {"law": law}
    templates = Environment(
        loader=PackageLoader("headwise.report", "explorer"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawing = Markup(library()) if data["charts"] else Markup("")
    return templates.get_template("page.html").render(
        **own,
        library=drawing,
        policy=policy(*own.values(), *([drawing] if drawing else [])),
        data=as_script(data),
        dtypes=list(DTYPE_BYTES),
        claims=data["claims"],
        evidence=data["evidence"],
        law=law,
        origin=origin,
        lead=lead,
        version=headwise.__version__,
    )


def page_data(
    shapes: Sequence[str] = (), sections: Sequence[Section] = (), inspection: Any = None, charts: bool = True
) -> dict[str, Any]:
    """Everything the page's scripts read."""
    judgements = sorted(newest(one for section in sections for one in section.judgements), key=ledger_order)
    return {
        "letters": LETTERS,
        "examples": EXAMPLES,
        "largest": LARGEST,
        "deepest": DEEPEST,
        "dtypes": DTYPE_BYTES,
        "default_context": DEFAULT_CONTEXT,
        "defaults": ModelOptions().model_dump(),
        "presets": PRESETS,
        "family_needs": NEEDS,
        "options": _option_fields(),
        "known": [
            {
                "name": known.name,
                "shape": str(known.shape),
                "options": known.options.model_dump(),
                "note": "its experts are not counted here" if known.experts else "",
            }
            for known in KNOWN.values()
            if known.options.style == "vit" and known.options.mixer == PLAIN
        ],
        "start": list(shapes),
        "claims": [_claim(judgement) for judgement in judgements],
        "sources": SOURCES,
        "charts": {one.name: live(one.parts[0].chart) for one in sections if charts and one.parts[0].chart is not None},
        "law": None,
        "evidence": evidence_rows(judgements),
        "inspection": inspection,
    }


def evidence_rows(judgements: Sequence[Judgement] = ()) -> list[dict[str, Any]]:
    """Published comparisons and our own claims in the same form, one dictionary per row."""
    rows = [*published(), *own_rows(judgements)]
    return [row.model_dump(mode="json") | {"effect": row.effect, "own": row.lab == OWN} for row in rows]


def _option_fields() -> dict[str, Any]:
    """The options that change a price, as form fields."""
    fields = {}
    for name, field in ModelOptions.model_fields.items():
        if name in (*_FREE, *_PLAIN_ONLY):
            continue
        kind = "boolean" if field.annotation is bool else "number"
        fields[name] = {"type": kind, "choices": list(get_args(field.annotation)) or None, "about": field.description}
    return fields


def _claim(judgement: Any) -> dict[str, Any]:
    told = judgement.as_dict()
    largest = judgement.scale.parameters[1] if judgement.scale else 0
    more = {"runs": list(judgement.runs), "largest": largest, "registered": told.get("registered") or ""}
    return claim_fields(judgement) | more


def _file(name: str, package: str = "headwise.report.explorer") -> Markup:
    """A file of this folder, or of what pages share, as it stands: it is ours."""
    return Markup(files(package).joinpath(name).read_text(encoding="utf-8"))
