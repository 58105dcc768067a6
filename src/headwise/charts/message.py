"""One message for a chart, said in its title: what became of the first claim that its runs are about."""

import textwrap
from collections.abc import Iterable
from typing import Any

from headwise.ledger.judge import Judgement, ledger_order

WIDE = 52, 38  # characters of a line over one panel, and for each panel more
MOST_PANELS = 3  # side by side


def message(judgements: Iterable[Judgement], preset: str) -> str:
    """Of the first claim that a preset's runs decided, else of the first that they are about."""
    about = sorted((one for one in judgements if one.preset == preset), key=ledger_order)
    first = next((one for one in about if one.verdict in ("holds", "fails")), about[0] if about else None)
    return f"{first.claim.id}, {first.verdict}: {first.claim.claim}" if first else ""


def titled(chart: Any, said: str) -> Any:
    """The chart with a message as its title; what it is about becomes the first of its notes."""
    if not said:
        return chart
    panels = len(getattr(chart, "concat", None) or getattr(chart, "hconcat", None) or [chart])
    room = WIDE[0] + WIDE[1] * (min(panels, MOST_PANELS) - 1)
    title = chart.title if not isinstance(chart.title, str) else _plain(chart.title)
    about, notes = title.text, title.subtitle
    notes = [notes] if isinstance(notes, str) else list(notes or [])
    lines = [about] if isinstance(about, str) else list(about)
    title = title.copy()
    title.text, title.subtitle = textwrap.wrap(said, room), [*lines, *notes]
    return chart.properties(title=title)


def _plain(text: str) -> Any:
    import altair as alt

    return alt.TitleParams(text, subtitle=[])
