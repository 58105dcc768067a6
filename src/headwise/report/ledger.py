"""The ledger in words, for 80 columns: every comparison as an effect with its interval, and what the claim requires.

A comparison is rendered from its JSON form (`Measured.as_dict`), for the terminal, the page and suggestions alike.
"""

import math
import re
from collections.abc import Iterable, Mapping
from itertools import groupby
from textwrap import wrap
from typing import Any, NamedTuple

from rich.console import RenderableType
from rich.text import Text

from headwise.ledger.certify import Checked
from headwise.ledger.claims import BITS, CACHE, ERROR, FLOPS, MASKED_BITS, PARAMETERS, SECONDS, STEPS
from headwise.ledger.judge import Judgement, Remedy, Scale
from headwise.ledger.statistics import LEVEL
from headwise.report.tables import WIDTH, short

INDENT = 4
GPU_HOUR = 3600 * 10**14  # FLOPs, at a third of what a data centre's card could do: small models get less
CORES_HOUR = 3600 * 10**11  # FLOPs of two cores at 50 GFLOP/s each, which small models reach on a processor
FACTOR = 2.0  # effects from here on are shown as factors, smaller ones in percent
_STYLE = {"holds": "bold green", "fails": "bold red", "open": "bold yellow", "cannot tell": "bold magenta"}
_ANSWER = {"holds": "yes", "fails": "no", "open": "open", "cannot tell": "open"}
_WORDS = dict.fromkeys((ERROR, BITS, MASKED_BITS), ("worse", "better"))
_WORDS |= dict.fromkeys((PARAMETERS, FLOPS, SECONDS, CACHE, STEPS), ("more", "fewer"))
_BOUNDS = ("estimate", "low", "high")
FIXED = "\u00a0"  # a space where no line may break


class Line(NamedTuple):
    """A comparison in words."""

    metric: str
    effect: str
    required: str
    answer: str

    @property
    def sentence(self) -> str:
        return f"{self.metric} {self.effect}; required: {self.required}"


# ---- one comparison ------------------------------------------------------------------------------------------------


def line(one: Mapping[str, Any]) -> Line:
    """A comparison's effect with its interval, what is required of it, and whether that is so."""
    numbers = one if one["unit"] == "value" else one["difference"]
    estimate, low, high = (numbers[name] for name in _BOUNDS)
    effect = "not measured" if estimate is None else _effect(one, estimate)
    if one["exact"]:
        effect += " exact"
    elif estimate is not None:
        known = low is not None and high is not None
        effect += f" [{_effect(one, low)}, {_effect(one, high)}]" if known else " without an interval"
    return Line(one["metric"], effect, required(one), _ANSWER[one["verdict"]])


def required(one: Mapping[str, Any]) -> str:
    """What a claim requires of the variant, against the baseline."""
    if one["unit"] == "value":
        return f"{'above' if one['direction'] == 'higher' else 'below'} {one['threshold']:g}"
    margin, higher = one["margin"], one["direction"] == "higher"
    more, less = _WORDS.get(one["metric"], ("higher", "lower"))
    if abs(margin) < 1e-9:
        return more if higher else less
    if _as_factor(one):
        return f"at {'least' if higher else 'most'} {1 + margin:.2g}×"
    bound = "at least" if higher == (margin > 0) else "at most"
    return f"{bound} {100 * abs(margin):.2g}{FIXED}% {more if margin > 0 else less}"


def beside(one: Mapping[str, Any]) -> str:
    """What stands beside a comparison and decides nothing: the published effect, other measurements, a note."""
    ratios = {"published": one["published"]} if one["published"] else {}
    lower = one["direction"] == "lower"
    effects = {name: (1 / ratio if lower else ratio) - 1 for name, ratio in (ratios | one["beside"]).items()}
    parts = [f"{name} {_effect(one, difference)}" for name, difference in effects.items()]
    return "; ".join([*parts, one["note"]] if one["note"] else parts)


def _as_factor(one: Mapping[str, Any]) -> bool:
    """Whether percent would be silly: an effect, a requirement or an end of the interval is many times as large."""
    margin, estimate, *ends = (1 + value for value in (one["margin"], *_differences(one)))
    far = [max(ratio, 1 / ratio) if ratio > 0 else FACTOR for ratio in (margin, estimate)]
    return max(far) >= FACTOR or any(not 1 / (2 * FACTOR) < ratio < 2 * FACTOR for ratio in ends)


def _differences(one: Mapping[str, Any]) -> list[float]:
    """What was measured: the estimate, with both ends of the interval where there is one."""
    estimate, *ends = (one["difference"][name] for name in _BOUNDS)
    return [estimate or 0.0, *([] if None in ends else ends)]


def _effect(one: Mapping[str, Any], number: float) -> str:
    if one["unit"] == "value":
        return f"{number:.2f}".replace("-", "−")
    if _as_factor(one):
        return _factor(number)
    digits = 0 if one["exact"] or max(map(abs, _differences(one))) >= 0.2 else 1
    text = f"{100 * number:+.{digits}f}{FIXED}%".replace("-", "−")
    return text.removeprefix("−").removeprefix("+") if not round(100 * number, digits) else text


def _factor(difference: float) -> str:
    """Two significant digits, and whole numbers in full."""
    ratio = 1 + difference
    digits = max(1 - math.floor(math.log10(ratio)), 0) if ratio > 0 else 0
    return f"{ratio:,.{digits}f}×"


# ---- a claim -------------------------------------------------------------------------------------------------------


def ledger(judgements: Iterable[Judgement]) -> list[RenderableType]:
    """One block per claim."""
    blocks: list[RenderableType] = []
    for judgement in judgements:
        blocks += [*_heading(judgement), *(Text(text, style="dim") for text in details(judgement)), ""]
    level = f"{LEVEL:.0%}".replace("%", " %")
    return [*blocks, Text(f"[…]: {level} intervals, for all comparisons of a claim together", style="dim")]


def _heading(judgement: Judgement) -> list[Text]:
    label = f"{judgement.claim.id:<3} "
    verdict = f"{judgement.verdict.upper():<5}"
    first, *rest = map(Text, hanging(f"{label}{verdict}  ", judgement.claim.claim))
    first.stylize(_STYLE[judgement.verdict], len(label), len(label) + len(verdict))
    return [first, *rest]


def hanging(label: str, text: str) -> list[str]:
    """A text beside its label."""
    first, *rest = [part.replace(FIXED, " ") for part in _wrap(text, WIDTH - len(label))] or [""]
    return [label + first, *(" " * len(label) + more for more in rest)]


def _wrap(text: str, width: int, first: str = "", others: str = "") -> list[str]:
    """Lines that break no word, and no number from its sign or unit."""
    whole = re.sub(r"(?<=\d) (?=[%×])|(?<=[≥≤]) ", FIXED, text)
    return wrap(
        whole,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def details(judgement: Judgement, width: int = WIDTH) -> list[str]:
    """Lines below a claim: its comparisons, pair by pair; how much was measured; what would resolve it."""
    ones = [measured.as_dict() for measured in judgement.comparisons]
    pairs = [(pair, list(same)) for pair, same in groupby(ones, key=lambda one: one["subject"])]
    lines, indent = [], INDENT + 2 * (len(pairs) > 1)
    for pair, same in pairs:
        lines += wrapped(pair, width)
        lines += _aligned([line(one) for one in same], width, indent)
        lines += [text for one in same for text in wrapped(beside(one), width, indent)]
    lines += wrapped(scale_of(judgement), width)
    for note in notes(judgement):
        lines += wrapped(note, width)
    if judgement.claim.caveat:
        lines += wrapped(f"Caveat: {judgement.claim.caveat}", width)
    if judgement.remedy:
        lines += wrapped(f"to resolve it: {to_resolve(judgement.remedy)}", width)
    if judgement.before:
        lines += wrapped(superseded(judgement), width)
    return lines


def notes(judgement: Judgement) -> list[str]:
    """What qualifies a verdict: its registration, gates, contrasts beside it, its family, runs that others share."""
    found = [judgement.qualifier[:1].upper() + judgement.qualifier[1:]] if judgement.qualifier else []
    for test, verdict, measured in judgement.also:
        effects = "; ".join(f"{one.comparison.where or 'all'} {line(one.as_dict()).effect}" for one in measured)
        found.append(
            f"{test.name[:1].upper() + test.name[1:]} ({test.variant} vs {test.baseline}): {verdict}; {effects}"
        )
    if judgement.registered:
        found.append(f"Registered: {judgement.registration}." + _restated(judgement))
    elif judgement.comparisons and not judgement.claim.computed:
        found.append("Unregistered." + _restated(judgement))
    if judgement.in_family and judgement.verdict in ("holds", "fails"):
        found.append(f"After Holm's correction in its family: {judgement.in_family}.")
    if judgement.shared:
        found.append(f"Shares runs with {', '.join(judgement.shared)}.")
    return found


def _restated(judgement: Judgement) -> str:
    return f" Restated: {judgement.restated}." if judgement.restated else ""


def superseded(judgement: Judgement) -> str:
    """The verdict before registration, and why it was not enough."""
    before = judgement.before
    if before is None:
        return ""
    effect = ""
    if before.deciding:
        one = before.deciding.as_dict()
        effect = f" ({one['subject']}: {line(one).sentence})"
    because = f", superseded because {judgement.superseded}" if judgement.superseded else ", superseded"
    return f"Before registration{because}: {before.verdict}{effect}"


def _aligned(lines: list[Line], width: int, indent: int) -> list[str]:
    """In columns where they fit, else each by itself."""
    sizes = [max(len(one[column]) for one in lines) for column in range(3)]
    if indent + sum(sizes) + len("    required:   open") <= width:
        padded = [[f"{word:<{size}}" for word, size in zip(one[:3], sizes, strict=True)] for one in lines]
        rows = [f"{a}  {b}  required: {c}  {one.answer}" for (a, b, c), one in zip(padded, lines, strict=True)]
        return [" " * indent + row.replace(FIXED, " ") for row in rows]
    return [text for one in lines for text in _alone(one, width, indent)]


def _alone(one: Line, width: int, indent: int) -> list[str]:
    """On one line where it fits, else with what is required below what was measured."""
    whole = f"{one.sentence}  {one.answer}"
    if indent + len(whole) <= width:
        return wrapped(whole, width, indent)
    measured, required = f"{one.metric} {one.effect}", f"required: {one.required}  {one.answer}"
    return wrapped(measured, width, indent) + wrapped(required, width, indent + 2)


def wrapped(text: str, width: int = WIDTH, indent: int = INDENT) -> list[str]:
    """Lines of a text at an indent, further in from the second on."""
    start = " " * indent
    lines = _wrap(text, width, start, start + "  ")
    return [line.replace(FIXED, " ") for line in lines]


def scale_of(judgement: Judgement) -> str:
    """How much stands behind a verdict: seeds, runs and their scale."""
    if not judgement.comparisons:
        return judgement.missing
    seeds = f"{judgement.seeds} paired seeds" if judgement.seeds else "exact"
    runs = f", {len(judgement.runs)} runs ({judgement.preset})" if judgement.runs else ""
    return f"{seeds}{runs}{_sizes(judgement.scale) if judgement.scale else ''}"


def _sizes(scale: Scale) -> str:
    """Steps and parameters of the runs: the largest, and the smallest where it differs."""
    (few, steps), sizes = scale.steps, [short(size).replace(" ", "") for size in scale.parameters]
    trained = f"{few:,} to {steps:,} steps" if 0 < few < steps else f"{steps:,} steps" if steps else "nothing trained"
    size = sizes[1] if sizes[0] == sizes[1] else " to ".join(sizes)
    seen = f", {short(scale.tokens[1]).replace(' ', '')} tokens" if scale.tokens[1] else ""
    seen += f" ({scale.passes:.2g} passes)" if scale.passes else ""
    tasks = " and ".join(scale.tasks) + (f" ({', '.join(scale.data)})" if scale.data else "")
    return f"; {tasks}, {trained}" + (f", {size} parameters" if scale.parameters[1] else "") + seen


def to_resolve(remedy: Remedy) -> str:
    """The command that would decide an open claim, and what it costs."""
    if not remedy.runs:
        return f"more seeds than the {remedy.preset} preset of {remedy.study} has"
    cost = f"{remedy.runs} runs" + (f", {short(remedy.flops, 'FLOP').replace(' ', FIXED)}" if remedy.flops else "")
    if remedy.flops > GPU_HOUR:
        cost += f", {remedy.flops / GPU_HOUR:,.0f} GPU hours at 100 TFLOP/s"
    elif remedy.preset == "desktop":
        hours = remedy.flops / CORES_HOUR
        time = f"{hours:.1f} hours" if hours >= 1 else f"{max(1, round(60 * hours))} min"
        cost += f", {time} on two cores at 50 GFLOP/s"
    return f"{remedy.command} ({cost})"


def certificate(checked: list[Checked]) -> list[RenderableType]:
    """What became of the check against certified bounds."""
    if not checked:
        return ["[dim]certified bounds: no run here meets their hypotheses[/dim]"]
    least = checked[0]
    checks = f"certified bounds: {len(checked)} runs meet their hypotheses (one layer, two orthonormal points, no MLP)"
    closest = f"the closest, {least.key}: error {least.error:.4f}, at least {least.bound:.4f}"
    verdict = "[bold red]BELOW[/]" if least.violates else "none lies below"
    return [f"[dim]{checks}; {verdict}; {closest}[/dim]"]
