"""The evidence as a page of the docs: how far it predicts itself, what it says, and a chart of each axis."""

from pathlib import Path
from typing import Any

from headwise.comparison.evidence.leave_out import CHOSEN_AFTER, METHODS, LeaveOneOut, held_too
from headwise.comparison.evidence.rows import OWN, EvidenceRow
from headwise.comparison.evidence.table import ASKED, FAMILIES, Evidence
from headwise.comparison.evidence.weigh import LEAST_LABS, select
from headwise.comparison.suggest import suggest_for
from headwise.report.evidence import WORDS, contradiction, directions, number_or_why, sizes_of, trend_text
from headwise.report.suggest import forecast_text

NAME = "evidence.md"
PAGE = """# What others published, and how far it predicts itself

<!-- written by: headwise evidence --out docs/results -->

{headline}. `headwise evidence` shows them;
[the table](../../src/headwise/comparison/evidence/README.md) is part of the package, with links to every source.

## The literature hardly predicts itself

Leave one lab out, and predict the direction of each of its comparisons (better; even, within 0.2 % of the loss or 0.5
points; worse) from the other labs. Each lab and axis counts once. Over all {all[labs]} of them, the forecast behind
`headwise suggest` names {all[forecast]:.0%}; the majority of the other labs {all[majority]:.0%}; "no difference"
{all[no difference]:.0%}; "more of it is better" {all[more is better]:.0%}. On the axes with {least} labs or more:
{enough[forecast]:.0%}, against {enough[majority]:.0%}, {enough[no difference]:.0%} and {enough[more is better]:.0%}.
Its Brier score is {all[brier]:.2f}; guessing has 0.67.

It names more than all three baselines on: {best}.
It does not on: {rest}.

How dose and distance in scale count in the forecast was chosen among 72 ways by looking at these same rows, so its
column says what is right *after the fact*, and a lead of a few hundredths is nothing; the baselines were not chosen.
What was held does not count: rows of the same dose and the same held, where two labs have them, name
{held:.0%} on the axes with {least} labs or more. Which of our own
claims count (those whose runs could tell, as one lab; not those on lookup tasks) was settled after a look at them.
Nearly all rows are one seed.

{scores}

![Share of directions that came so, against the probability forecast](evidence-calibration.png)

## What the rows say

Labs are counted, not rows. A number (the mean of the labs' means, with a 95 % t-interval over labs) takes {least} labs
that measured a loss. *Spent*: what was saved was spent elsewhere, at equal parameters or FLOPs.

{cells}

## Where labs contradict each other

{conflicts}

## With scale

The change of the loss for ten times the parameters, where five labs that measured a loss span two decades; positive:
it costs more in larger models.

{trends}

## What suggest makes of it

`headwise suggest MODEL --goal memory`, best first. [The guide](../guides/choosing.md) says what the words mean; without
five labs that made such a change there is no forecast. Where the words begin and end was settled after a look at these
four models, so the table shows what the rule says and does not test it.

{advice}
"""
ADVISED = ("gpt2", "nanochat-d20", "qwen3-0.6b", "llama-3-8b")


def write_evidence(shown: Evidence, folder: Path) -> list[Path]:
    """The page with its calibration chart, and a chart of effect against scale for each family."""
    from headwise.charts.evidence import against_scale, calibration

    folder.mkdir(parents=True, exist_ok=True)
    test, weighed = shown.leave_one_out(), shown.weighed()
    points = [{**point, "label": f"{point['labs']:.0f} labs"} for point in test.calibration() if point["labs"] >= 1]
    notes = ["each lab's directions, forecast from the other labs; bins with at least one lab"]
    files = [_png(calibration(points, "Did the forecasts come true?", notes), folder, "evidence-calibration")]
    for family in (name for name in FAMILIES if name in weighed):
        marks = [mark for row in select(shown.rows, family) if (mark := _mark(row))]
        title = WORDS[family, weighed[family].knob]
        note = f"{weighed[family].labs} labs, nearly all with one seed; dashed: no difference"
        if len(marks) > 2:
            chart = against_scale(marks, title[0].upper() + title[1:], [note])
            files.append(_png(chart, folder, f"evidence-{family.replace('_', '-')}"))
    page = folder / NAME
    page.write_text(page_text(shown, test), encoding="utf-8")
    return [page, *files]


def page_text(shown: Evidence, test: LeaveOneOut) -> str:
    """Markdown."""
    *axes, enough, everything = test.records()
    methods = [f"{name} (after the fact)" if name in CHOSEN_AFTER else name for name in METHODS]
    heading = ["what changes", "saving", "by", "labs", "better / even / worse", "change of the loss", "scale"]
    cells = [
        [WORDS[name, it.knob], "spent" if refilled else "kept", (dose or "not said").replace("x", "×"), str(it.labs),
         directions(it), number_or_why(it), sizes_of(it)]
        for name, refilled, dose, it in shown.cells()
    ]  # fmt: skip
    named = {WORDS[name, it.knob]: it for name, it in shown.weighed().items()}
    conflicts = [f"- {what}: {contradiction(it)}" for what, it in named.items() if it.conflict]
    trends = [f"- {what}: {trend_text(it)}, {it.loss_labs} labs" for what, it in named.items() if it.trend]
    return PAGE.format_map(
        {
            "headline": shown.headline,
            "all": everything,
            "enough": enough,
            "least": LEAST_LABS,
            "held": held_too(shown.rows),
            "best": ", ".join(row["axis"] for row in axes if row["best"]) or "none",
            "rest": ", ".join(row["axis"] for row in axes if row["best"] is False) or "none",
            "scores": _markdown([["axis", "labs", *methods, "Brier", "best"], *map(_score, test.records())]),
            "cells": _markdown([heading, *cells]),
            "conflicts": "\n".join(conflicts),
            "trends": "\n".join(trends),
            "advice": _markdown(advised()),
        }
    )


def advised(goal: str = "memory") -> list[list[str]]:
    """What is suggested for the models that the page shows, from the rows and the results that are shipped."""
    heading = ["model", "change", "KV cache", "advice", "better / even / worse", "labs"]
    found = [(name, one) for name in ADVISED for one in suggest_for(name, goal).as_dict()]
    return [heading, *([name, one["change"], f"{one['kv_bytes_difference']:+.0%}", one["advice"], forecast_text(one),
                        str(one["labs"])] for name, one in found)]  # fmt: skip


def _score(row: dict[str, Any]) -> list[str]:
    if row["brier"] is None:
        return [row["axis"], str(row["labs"]), "too few labs", "", "", "", "", ""]
    hits = [f"{row[name]:.2f}" for name in METHODS]
    return [row["axis"], str(row["labs"]), *hits, f"{row['brier']:.2f}", "yes" if row["best"] else "no"]


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


def _markdown(rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
