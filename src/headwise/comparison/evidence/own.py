"""Our own claims in the form of published results: a judged claim is a row of the lab `headwise`."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from headwise.comparison.evidence.rows import OWN, Axis, Dose, Effect, EvidenceRow, Held, Knob
from headwise.ledger.claims import BITS, MASKED_BITS
from headwise.ledger.judge import Judgement, Measured

YEAR = 2026


@dataclass(frozen=True)
class Reading:
    """What a claim's comparison is as evidence: the axis, what its variant has more or less of, what was equal."""

    axis: Axis  # also the family: heads, which are divided into families, have no reading
    knob: Knob
    held: Held
    task: str
    dose: Dose | None = "up to 4x"
    comparison: int = 0  # which of the claim's


READINGS = {
    "N1": Reading("head_dim", "more", "params", "text"),
    "N2": Reading("qk_rank", "more", "params", "text"),
    "N4": Reading("kv_heads", "less", "steps", "lookup", None),
    "Q7": Reading("head_dim", "less", "steps", "lookup"),
    "L5": Reading("depth_vs_heads", "less", "steps", "vision"),
    "L6": Reading("depth_vs_heads", "less", "steps", "text"),
    "L7": Reading("depth_vs_heads", "less", "steps", "text"),
    "L8": Reading("depth_vs_heads", "less", "steps", "listops", comparison=1),
    "L9": Reading("mlp_vs_heads", "less", "steps", "vision", comparison=1),
    "L11": Reading("depth_vs_heads", "less", "steps", "text"),
}


def own_rows(judged: Iterable[Judgement]) -> list[EvidenceRow]:
    """A row for every claim that is evidence of an axis and has been measured by runs that could tell."""
    return [
        _row(judgement, reading, judgement.comparisons[reading.comparison])
        for judgement in judged
        if judgement.verdict != "cannot tell"
        and (reading := READINGS.get(judgement.claim.id))
        and len(judgement.comparisons) > reading.comparison
    ]


def _row(judgement: Judgement, reading: Reading, measured: Measured) -> EvidenceRow:
    difference = measured.as_dict()["difference"]
    of_loss = measured.comparison.metric in (BITS, MASKED_BITS)
    values: dict[str, Any] = {"value_base": 1.0, "value_arm": 1.0 + difference["estimate"], "better": "lower"}
    if not of_loss:
        values["stated_effect"] = _effect(difference)
    scale, one = judgement.scale, measured.comparison
    return EvidenceRow(
        id=judgement.claim.id,
        source=f"headwise, claim {judgement.claim.id}",
        url=f"headwise claims --source {judgement.claim.id[0]}",
        year=YEAR,
        lab=OWN,
        trust="measured",
        axis=reading.axis,
        family=reading.axis,
        knob=reading.knob,
        stated_dose=reading.dose,
        task=reading.task,
        base=one.baseline,
        params_base=scale.parameters[1] if scale and scale.parameters[1] else None,
        held=reading.held,
        metric=one.metric,
        unit="loss" if of_loss else "ratio",
        seeds=str(measured.seeds),
        kind="quality",
        note=f"{judgement.claim.claim}: {judgement.verdict}; {one.variant}",
        **values,
    )


def _effect(difference: dict[str, float | None]) -> Effect:
    """Of an error, from its interval."""
    low, high = difference["low"], difference["high"]
    if low is not None and low > 0:
        return "worse"
    return "better" if high is not None and high < 0 else "tie"
