"""Evidence for a terminal of 80 columns, and as the page and charts of the docs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headwise.comparison.evidence.leave_out import METHODS, LeaveOneOut
from headwise.comparison.evidence.rows import OWN, EvidenceRow
from headwise.comparison.evidence.table import ASKED, FAMILIES, Evidence
from headwise.comparison.evidence.weigh import LEAST_LABS, Weighed, select
from headwise.report.ledger import wrapped
from headwise.report.tables import _table, short

WORDS = {
    ("kv_heads", "less"): "fewer KV heads",
    ("kv_latent", "more"): "a latent for keys and values",
    ("head_dim", "more"): "larger heads",
    ("heads_split", "more"): "more, smaller heads in the same width",
    ("heads_added", "more"): "more heads of the same size",
    ("qk_rank", "less"): "thinner queries and keys",
    ("depth_vs_heads", "less"): "fewer layers with more heads",
    ("depth_vs_width", "less"): "fewer, wider layers",
    ("mlp_vs_heads", "less"): "less MLP, more attention",
    ("convert", "less"): "a trained model's cache cut",
}
COUNT = ("", "k", "M", "B", "T")
ROWS = 12


# ---- the terminal --------------------------------------------------------------------------------------------------


def evidence_lines(shown: Evidence, limit: int = ROWS) -> list[RenderableType]:
    """An overview of all axes, or one axis with its conflicts and rows."""
    lines: list[RenderableType] = [Text(shown.headline + ".", style="bold")]
    lines += ["[dim]Labs are what is counted; better, even and worse are labs, of the quality.[/dim]", ""]
    if not shown.axis:
        lines += [_overview(shown), "", *_lines(f"A number takes {LEAST_LABS} labs that measured a loss.", "dim")]
        return [*lines, *_lines("One axis with its rows: headwise evidence --axis kv_heads --near gpt2", "dim")]
    lines += [_cells(shown), ""]
    for name, weighed in shown.weighed().items():
        lines += conflict_lines(name, weighed)
    return [*lines, "", *_listed(shown, limit)]


def interval(change: Any) -> str:
    """A change of the loss with its interval."""
    return f"{change.value:+.1%} [{change.low:+.1%}, {change.high:+.1%}]"


def number_or_why(weighed: Weighed) -> str:
    if weighed.change:
        return interval(weighed.change)
    return f"too few labs ({weighed.loss_labs})"


def directions(weighed: Weighed) -> str:
    return " / ".join(f"{weighed.directions[effect]:.1f}" for effect in ("better", "tie", "worse"))


def sizes_of(weighed: Weighed) -> str:
    if not weighed.scales:
        return "not said"
    low, high = (short(size, prefixes=COUNT).replace(" ", "") for size in weighed.scales)
    return low if low == high else f"{low}–{high}"


def _overview(shown: Evidence) -> Table:
    table = _table("<what changes", "labs", "better/even/worse", "loss", "<scale")
    for name, weighed in shown.weighed().items():
        about = WORDS[name, weighed.knob]
        cells = [f"{about}\n[dim]{name}[/dim]", str(weighed.labs), directions(weighed), number_or_why(weighed)]
        table.add_row(*cells, sizes_of(weighed))
    return table


def _cells(shown: Evidence) -> Table:
    table = _table("<what changes", "<saving", "<by", "labs", "better/even/worse", "loss")
    for name, refilled, dose, weighed in shown.cells():
        cells = [WORDS[name, weighed.knob], "spent" if refilled else "kept", (dose or "–").replace("x", "×")]
        cells[2] = {"up to 4×": "≤ 4×", "more than 4×": "> 4×"}.get(cells[2], cells[2])
        table.add_row(*cells, str(weighed.labs), directions(weighed), number_or_why(weighed))
    return table


def conflict_lines(name: str, weighed: Weighed) -> list[RenderableType]:
    """Who found the opposite of whom, and how the effect moves with scale."""
    lines: list[RenderableType] = []
    if sides := weighed.conflict:
        text = f"Conflict on {WORDS[name, weighed.knob]}: better in {', '.join(sides['better'])}; worse in "
        lines += _lines(text + f"{', '.join(sides['worse'])}.", "")
    if weighed.trend:
        per = f"Change of the loss for ten times the parameters: {weighed.trend.value:+.2%} "
        lines += _lines(per + f"[{weighed.trend.low:+.2%}, {weighed.trend.high:+.2%}] over labs.", "")
    return lines


def _listed(shown: Evidence, limit: int) -> list[RenderableType]:
    near = f", nearest to {shown.near} ({short(shown.parameters, prefixes=COUNT)}) first" if shown.parameters else ""
    table = row_table(shown.rows[:limit], title=f"Rows{near}")
    more = len(shown.rows) - limit
    return [table, *([f"… and {more} more: --limit {len(shown.rows)} or --json"] if more > 0 else [])]


def row_table(rows: Iterable[EvidenceRow], title: str = "") -> Table:
    table = _table("<id", "<lab", "<base → arm", "size", "<held", "effect", title=title or None)
    for row in rows:
        arm = f"{row.base_shape} → {row.arm_shape}" if row.base_shape and row.arm_shape else _words(row)
        size = short(row.scale, prefixes=COUNT).replace(" ", "") if row.scale else "–"
        table.add_row(row.id, row.lab, escape(arm), size, row.held, effect_of(row))
    return table


def effect_of(row: EvidenceRow) -> str:
    """What the arm changed, positive where it is better."""
    word = {"better": "better", "tie": "even", "worse": "worse", None: "–"}[row.effect]
    if row.relative is None:
        return word if row.kind == "quality" else "speed"
    if row.loss_change is not None:
        return f"loss {row.loss_change:+.1%}"
    return f"{row.relative:+.1f} points"


def _words(row: EvidenceRow) -> str:
    arm = row.note.split(";")[0].removeprefix("arm: ") if row.note.startswith("arm:") else ""
    if row.lab == OWN:
        return row.note.partition(":")[0]
    return f"{row.base} → {arm}" if arm else row.base


def _lines(text: str, style: str) -> list[RenderableType]:
    return [Text(line, style=style) for line in wrapped(text, indent=0)]


# ---- its test of itself ----------------------------------------------------------------------------------------------


def self_test_lines(test: LeaveOneOut) -> list[RenderableType]:
    """Leave one lab out: how often each method names the direction."""
    table = _table("<axis", "labs", *METHODS, "Brier", "<best")
    table.columns[0].no_wrap = True
    for row in test.records():
        if row["brier"] is None:
            table.add_row(row["axis"], str(row["labs"]), "too few", style="dim")
            continue
        hits = [f"{row[name]:.2f}" for name in METHODS]
        table.add_row(row["axis"], str(row["labs"]), *hits, f"{row['brier']:.2f}", "yes" if row["best"] else "no")
    return [Text("Each lab's directions, predicted from the other labs", style="bold"), table, *_lines(REMARK, "dim")]


REMARK = (
    "Shares of directions (better, even, worse) named right; each lab and axis counts once. Brier score: 0 is perfect, "
    "0.67 is guessing. The forecast was chosen by looking at these rows (after the fact); the three baselines were not."
)


# ---- the docs ----------------------------------------------------------------------------------------------------------

PAGE = "evidence.md"


def write_evidence(shown: Evidence, folder: Path) -> list[Path]:
    """The page with the table and the calibration chart, and a chart per family of effect against scale."""
    from headwise.charts.evidence import against_scale, calibration

    folder.mkdir(parents=True, exist_ok=True)
    test = shown.leave_one_out()
    points = [{**point, "label": f"{point['labs']:.0f} labs"} for point in test.calibration() if point["labs"] >= 1]
    notes = ["each lab's directions, forecast from the other labs; bins with at least one lab"]
    files = [_png(calibration(points, "Did the forecasts come true?", notes), folder, "evidence-calibration")]
    for family in FAMILIES:
        marks = [mark for row in select(shown.rows, family) if (mark := _mark(row))]
        if len(marks) > 2:
            weighed = shown.weighed()[family]
            title = WORDS[family, weighed.knob]
            note = f"{weighed.labs} labs, nearly all with one seed; dashed: no difference"
            files.append(
                _png(
                    against_scale(marks, title[0].upper() + title[1:], [note]),
                    folder,
                    f"evidence-{family.replace('_', '-')}",
                )
            )
    page = folder / PAGE
    page.write_text(page_text(shown, test), encoding="utf-8")
    return [page, *files]


def _mark(row: EvidenceRow) -> dict[str, Any] | None:
    """The effect of what people ask of a family (fewer KV heads, larger heads), positive where it is worse."""
    if row.relative is None or row.scale is None or row.effect is None or row.lab == OWN:
        return None
    turned = -row.relative if row.knob == ASKED.get(row.family, "less") else row.relative
    panel = "loss" if row.of_loss else "points"
    about = {"scale": row.scale, "change": 100 * turned if row.of_loss else turned, "panel": panel}
    return {**about, "refilled": row.refilled, "dose": row.dose, "lab": row.lab, "id": row.id, "metric": row.metric}


def _png(chart: Any, folder: Path, name: str) -> Path:
    file = folder / f"{name}.png"
    chart.save(str(file), scale_factor=2)
    return file


def page_text(shown: Evidence, test: LeaveOneOut) -> str:
    """Markdown: how far the evidence predicts itself, then what it says by axis, what was held and dose."""
    last, enough = test.records()[-1], test.records()[-2]
    best = [row["axis"] for row in test.records()[:-2] if row["best"]]
    rest = [row["axis"] for row in test.records()[:-2] if row["best"] is False]
    heading = ["axis", "labs", *METHODS, "Brier", "forecast best"]
    lines = [
        "# What others published, and how far it predicts itself",
        "",
        "<!-- written by: headwise evidence --out docs/results -->",
        "",
    ]
    lines += [
        f"{shown.headline}. `headwise evidence` shows them; [the table](../../src/headwise/comparison/evidence/README.md) is part of the package.",
        "",
    ]
    lines += ["## The literature hardly predicts itself", ""]
    lines += [
        "Leave one lab out, predict the direction of each of its comparisons (better, even within 0.2 % of the loss or 0.5 points, worse) "
        "from the other labs. Each lab and axis counts once. "
        f"Over all {last['labs']} the forecast behind `headwise suggest` names {last['forecast']:.0%}; the majority of the other labs {last['majority']:.0%}, "
        f"\"no difference\" {last['no difference']:.0%}, \"more of it is better\" {last['more is better']:.0%}. "
        f"On the axes with {LEAST_LABS} labs or more: {enough['forecast']:.0%} against {enough['majority']:.0%}, {enough['no difference']:.0%} and {enough['more is better']:.0%}. "
        f"Its Brier score is {last['brier']:.2f}; guessing has 0.67.",
        "",
        f"It is better than all three baselines on: {', '.join(best) or 'none'}. It is not on: {', '.join(rest)}. There, \"more is better\" is the rule to beat, "
        "and the forecast's probabilities are worth more than its directions. How dose and distance in scale count in the forecast was chosen by looking at "
        "these same rows, so its column says what is right after the fact; the baselines were not chosen.",
        "",
        _markdown([heading, *(_score_cells(row) for row in test.records())]),
        "",
        "![Share of directions that came so, against the probability forecast](evidence-calibration.png)",
        "",
        "## What the rows say",
        "",
        f"Labs are counted, not rows. A number (the mean of the labs' means, with a 95 % t-interval over labs) takes {LEAST_LABS} labs that measured a loss; "
        "*spent* means that what was saved was spent elsewhere, at equal parameters or FLOPs.",
        "",
        _markdown([["what changes", "saving", "by", "labs", "better / even / worse", "change of the loss", "scale"], *_cell_rows(shown)]),
        "",
    ]  # fmt: skip
    conflicts = [(name, weighed) for name, weighed in shown.weighed().items() if weighed.conflict]
    lines += ["## Where labs contradict each other", ""]
    for name, weighed in conflicts:
        sides = weighed.conflict
        lines.append(
            f"- {WORDS[name, weighed.knob]}: better in {', '.join(sides['better'])}; worse in {', '.join(sides['worse'])}"
        )
    return "\n".join([*lines, ""])


def _score_cells(row: dict[str, Any]) -> list[str]:
    if row["brier"] is None:
        return [row["axis"], str(row["labs"]), "too few labs", "", "", "", "", ""]
    hits = [f"{row[name]:.2f}" for name in METHODS]
    return [row["axis"], str(row["labs"]), *hits, f"{row['brier']:.2f}", "yes" if row["best"] else "no"]


def _cell_rows(shown: Evidence) -> list[list[str]]:
    return [
        [WORDS[name, weighed.knob], "spent" if refilled else "kept", (dose or "not said").replace("x", "×"),
         str(weighed.labs), directions(weighed), number_or_why(weighed), sizes_of(weighed)]
        for name, refilled, dose, weighed in shown.cells()
    ]  # fmt: skip


def _markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
