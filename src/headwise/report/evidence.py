"""Evidence for a terminal of 80 columns: an overview, one axis with its rows, and its test of itself."""

from collections.abc import Iterable
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from headwise.comparison.evidence.leave_out import METHODS, LeaveOneOut
from headwise.comparison.evidence.rows import NOISE_LOSS, NOISE_POINTS, OWN, EvidenceRow
from headwise.comparison.evidence.table import Evidence
from headwise.comparison.evidence.weigh import LEAST_LABS, Weighed
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
NOISE = f"[dim]* within the noise of one run: {NOISE_LOSS:.1%} of the loss, {NOISE_POINTS:.0f} point[/dim]"


# ---- the terminal --------------------------------------------------------------------------------------------------


def evidence_lines(shown: Evidence, limit: int = ROWS) -> list[RenderableType]:
    """An overview of all axes, or one axis with its conflicts and rows."""
    lines: list[RenderableType] = [Text(shown.headline + ".", style="bold")]
    lines += ["[dim]Labs are what is counted; better, even and worse are labs, of the quality.[/dim]", ""]
    if not shown.axis:
        lines += [_overview(shown), "", *_lines(f"A number takes {LEAST_LABS} labs that measured a loss.", "dim")]
        lines += _lines("One axis with its rows: headwise evidence --axis kv_heads --near gpt2", "dim")
        return [*lines, "", *_listed(shown, limit)] if shown.near else lines
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
    if weighed.conflict:
        lines += _lines(f"Conflict on {WORDS[name, weighed.knob]}: {contradiction(weighed)}.", "")
    if weighed.trend:
        lines += _lines(f"Change of the loss for ten times the parameters: {trend_text(weighed)} over labs.", "")
    return lines


def contradiction(weighed: Weighed) -> str:
    """The labs on either side; a star where a lab found no more than the noise of one run."""
    sides = {
        side: ", ".join(f"{lab} *" if lab in weighed.within_noise[side] else lab for lab in labs)
        for side, labs in weighed.conflict.items()
    }
    star = " (* within the noise of one run)" if any(weighed.within_noise.values()) else ""
    return f"better in {sides['better']}; worse in {sides['worse']}{star}"


def trend_text(weighed: Weighed) -> str:
    """Of the change of the loss, for ten times the parameters."""
    slope = weighed.trend
    return f"{slope.value:+.2%} [{slope.low:+.2%}, {slope.high:+.2%}]" if slope else "not known"


def _listed(shown: Evidence, limit: int) -> list[RenderableType]:
    near = f", nearest to {shown.near} ({short(shown.parameters, prefixes=COUNT)}) first" if shown.parameters else ""
    table = row_table(shown.rows[:limit], title=f"Rows{near}")
    more = len(shown.rows) - limit
    star = [NOISE] if any(row.within_noise for row in shown.rows[:limit]) else []
    return [table, *star, *([f"… and {more} more: --limit {len(shown.rows)} or --json"] if more > 0 else [])]


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
    star = " *" if row.within_noise else ""
    if row.loss_change is not None:
        return f"loss {row.loss_change:+.1%}{star}"
    return f"{row.relative:+.1f} points{star}"


def _words(row: EvidenceRow) -> str:
    arm = row.note.split(";")[0].removeprefix("arm: ") if row.note.startswith("arm:") else ""
    if row.lab == OWN:
        return row.note.partition(":")[0]
    return f"{row.base} → {arm}" if arm else row.base


def _lines(text: str, style: str) -> list[RenderableType]:
    return [Text(line, style=style) for line in wrapped(text, indent=0)]


# ---- its test of itself --------------------------------------------------------------------------------------------


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
