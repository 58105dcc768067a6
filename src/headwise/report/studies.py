"""Studies for a terminal of 80 columns: the list, one study with its presets, its price, and what its runs say."""

from rich.console import RenderableType
from rich.markup import escape

from headwise.report.ledger import ledger
from headwise.report.tables import published_errors, short
from headwise.studies._catalogue import Catalogue, Description
from headwise.studies._running import StudyPrice, StudyResult


def study_lines(studies: Catalogue) -> list[RenderableType]:
    return [escape(f"{row['name']:16} {row['about']} ({', '.join(row['claims'])})") for row in studies.rows]


def pilot_lines(result: StudyResult) -> list[RenderableType]:
    """What the gates say of a pilot: whether its registration could tell anything."""
    lines: list[RenderableType] = ["A pilot decides nothing. Its gates:"]
    for claim, condition, gate in result.pilot:
        verdict = "[green]passes[/]" if gate.passed else "[red]fails [/]"
        text = f"{claim}, {condition}: {gate.detail}" if condition else f"{claim}: {gate.detail}"
        lines.append(f"  {verdict} {gate.name:<9} {escape(text)}")
    return lines


def study_card(study: Description) -> list[RenderableType]:
    lines: list[RenderableType] = [escape(study.facts["about"].strip()), ""]
    for preset, settings in study.facts["presets"].items():
        fields = ", ".join(f"{name} {value}" for name, value in settings.items() if name != "grid")
        lines.append(escape(f"{preset:8} {fields}"))
    return lines


def price_lines(priced: StudyPrice) -> list[RenderableType]:
    price = priced.price
    time = f"about {price.seconds / 60:.0f} minutes on {price.workers} processes of this machine"
    return [
        priced.headline,
        f"{short(price.parameters)} parameters in all, {short(price.flops, 'FLOP')}",
        f"{time}, from a few steps measured now",
    ]


def study_result_lines(result: StudyResult) -> list[RenderableType]:
    counts = ", ".join(f"{count} {what}" for what, count in result.summary.as_dict().items() if count)
    lines: list[RenderableType] = [escape(f"{result.study.name} ({result.preset}): {counts}"), ""]
    lines += pilot_lines(result) if result.pilot else ledger(result.claims)
    lines += ["", published_errors(result.published)] if result.published else []
    lines += [f"Chart: {escape(result.chart_file)}, and .svg, .pdf, .html beside it"] if result.chart_file else []
    return lines
