"""One form for results on the shape of attention, published or our own: a base, an arm, what was equal, two values.

`evidence.csv` holds facts with their sources; what follows from them (the relative change, the direction, how large a
change it is) is computed here and stored nowhere. README.md beside it says how to add a row.
"""

import csv
import math
import re
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, model_validator

from headwise.shape import ModelShape
from headwise.spec import Spec, SpecError

FILE = Path(__file__).with_name("evidence.csv")
OWN = "headwise"  # the lab that we are

Axis = Literal[
    "heads", "head_dim", "qk_rank", "kv_heads", "kv_latent", "depth_vs_heads", "depth_vs_width", "mlp_vs_heads",
    "convert",
]  # fmt: skip
Family = Literal[Axis, "heads_split", "heads_added"]
Knob = Literal["more", "less"]
Held = Literal["params", "flops", "tokens", "steps", "nothing", "unknown"]
Effect = Literal["better", "tie", "worse"]
Dose = Literal["up to 4x", "more than 4x"]
Unit = Literal[
    "loss", "perplexity", "percent of loss", "loss difference", "points", "fraction", "ratio", "seconds", "none"
]
AXES: tuple[Axis, ...] = get_args(Axis)
EFFECTS: tuple[Effect, ...] = get_args(Effect)
LARGE_DOSE = 4.0
SAME_LOSS, SAME_POINTS = 0.002, 0.5  # differences within which a base and an arm are tied
NOISE_LOSS, NOISE_POINTS = 0.003, 1.0  # what one run may differ from another by, for no reason
REFILLED = ("params", "flops")  # what an arm saved was spent on something else
OPPOSITE: dict[Effect, Effect] = {"better": "worse", "tie": "tie", "worse": "better"}


class EvidenceRow(Spec):
    """A comparison as its source printed it. `effect` is stated only where the values do not say it."""

    id: str
    source: str = Field(min_length=3)
    url: str = Field(description="where it can be read: a link, or for our own rows a command")
    year: int = Field(ge=2017, le=2100)
    lab: str = Field(min_length=1, description="who measured: the unit that counts")
    trust: Literal["read-primary", "read-secondary", "measured"]
    axis: Axis
    family: Family
    knob: Knob | None = Field(default=None, description="what the arm has of the axis's quantity")
    stated_dose: Dose | None = Field(default=None, description="where shapes do not say how large the change is")
    task: str
    base: str
    base_shape: str = ""
    arm_shape: str = ""
    params_base: int | None = Field(default=None, gt=0)
    params_arm: int | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, gt=0)
    held: Held
    metric: str
    unit: Unit
    better: Literal["higher", "lower"] | None = None
    value_base: float | None = None
    value_arm: float | None = None
    stated_effect: Effect | None = None
    seeds: str
    throughput_base: str = ""
    throughput_arm: str = ""
    kind: Literal["quality", "speed"]
    note: str = ""

    @model_validator(mode="after")
    def _check(self) -> "EvidenceRow":
        for text in (self.base_shape, self.arm_shape):
            if text:
                ModelShape.parse(text)
        if (self.value_base is None) != (self.value_arm is None):
            raise SpecError(f"{self.id}: give both values or none")
        if self.relative is not None and self.stated_effect:
            raise SpecError(f"{self.id}: its values say the effect; leave effect empty")
        if self.relative is not None and self.better is None:
            raise SpecError(f"{self.id}: say which way {self.metric} is better")
        if self.trust != "measured" and not re.fullmatch(r"https://[^\s/]+/\S+", self.url):
            raise SpecError(f"{self.id}: '{self.url}' is no https link to the source")
        if not self.family.startswith(self.axis):
            raise SpecError(f"{self.id}: the family '{self.family}' is not of the axis '{self.axis}'")
        return self

    # ---- what follows ----------------------------------------------------------------------------------------------

    @cached_property
    def relative(self) -> float | None:
        """Positive where the arm is better: the change as a part of the loss, or in points; None where neither."""
        before, after = self.value_base, self.value_arm
        if before is None or after is None:
            return None
        sign = 1.0 if self.better == "higher" else -1.0
        if self.unit == "perplexity":
            return sign * math.log(after / before) / math.log(before)
        if self.unit == "loss":
            return sign * (after - before) / before
        scales = {"percent of loss": 0.01, "points": 1.0, "fraction": 100.0}
        return sign * (after - before) * scales[self.unit] if self.unit in scales else None

    @property
    def loss_change(self) -> float | None:
        """The relative change of the loss, positive where the arm is worse; None of a benchmark."""
        return -self.relative if self.relative is not None and self.of_loss else None

    @property
    def of_loss(self) -> bool:
        return self.unit in ("loss", "perplexity", "percent of loss")

    @property
    def effect(self) -> Effect | None:
        """Better, tied or worse than the base; None where the axis has no order, or nobody says."""
        if self.kind == "speed" or self.knob is None:
            return None
        if self.relative is None:
            return self.stated_effect
        if abs(self.relative) < (SAME_LOSS if self.of_loss else SAME_POINTS):
            return "tie"
        return "better" if self.relative > 0 else "worse"

    @property
    def within_noise(self) -> bool:
        """Whether the change is no larger than what one run may differ from another by."""
        floor = NOISE_LOSS if self.of_loss else NOISE_POINTS
        return self.relative is not None and abs(self.relative) < floor

    @property
    def of_more(self) -> Effect | None:
        """What more of the knob does: the effect, turned around where the arm has less."""
        return OPPOSITE[self.effect] if self.effect and self.knob == "less" else self.effect

    @property
    def refilled(self) -> bool:
        return self.held in REFILLED

    @cached_property
    def sizes(self) -> tuple[float, float] | None:
        """How much of the axis's quantity the base and the arm have, as the shapes say."""
        if not (self.base_shape and self.arm_shape):
            return None
        base, arm = (knob_size(self.axis, ModelShape.parse(text)) for text in (self.base_shape, self.arm_shape))
        return base, arm

    @property
    def factor(self) -> float | None:
        """How many times the knob changes, as the shapes say."""
        return max(self.sizes) / min(self.sizes) if self.sizes and min(self.sizes) else None

    @property
    def shapes_agree(self) -> bool:
        """Whether the shapes change as the knob says; true where they do not say."""
        if not self.sizes or not self.knob or self.axis == "kv_latent":
            return True
        base, arm = self.sizes
        return arm > base if self.knob == "more" else arm < base

    @property
    def dose(self) -> Dose | None:
        return dose_of(self.factor) if self.factor else self.stated_dose

    @property
    def scale(self) -> int | None:
        """Parameters: as the source says, else of the shape's layers."""
        return self.params_base or self.params_arm or _body(self.base_shape or self.arm_shape)

    def as_dict(self) -> dict[str, Any]:
        """All columns: those of evidence.csv, and what follows from them."""
        stated = self.model_dump(exclude={"stated_effect", "stated_dose"})
        found = {"effect": self.effect, "relative": self.relative, "within_noise": self.within_noise}
        return {**stated, "dose": self.dose, **found, "scale": self.scale}


def knob_size(axis: str, shape: ModelShape) -> float:
    """How much of an axis's quantity a shape has; of a latent and a conversion, the cache that is left."""
    layer = shape.layers[0]
    sizes = {"heads": layer.heads, "head_dim": layer.qk_rank, "qk_rank": layer.qk_rank, "kv_heads": layer.kv_heads}
    sizes |= {"depth_vs_heads": shape.depth, "depth_vs_width": shape.depth, "mlp_vs_heads": shape.mlps[0]}
    return sizes.get(axis, layer.cached_per_token)


def dose_of(factor: float) -> Dose:
    return "up to 4x" if max(factor, 1 / factor) <= LARGE_DOSE + 1e-9 else "more than 4x"


def _body(shape: str) -> int | None:
    """Of a source that does not say how large its models are: the layers' parameters, where the depth is known."""
    from headwise.cost import parameters
    from headwise.options import ModelOptions

    parsed = ModelShape.parse(shape) if shape else None
    return parameters(parsed, ModelOptions())["body"] if parsed and parsed.depth > 1 else None


@cache
def published() -> tuple[EvidenceRow, ...]:
    """Every row of evidence.csv."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(read_row(row) for row in csv.DictReader(file))


def read_row(cells: dict[str, str]) -> EvidenceRow:
    """A row from its cells as text; a wrong one says which."""
    values: dict[str, Any] = {name: text for name, text in cells.items() if text != ""}
    for name, kind in (("year", int), ("params_base", int), ("params_arm", int), ("tokens", int),
                       ("value_base", float), ("value_arm", float)):  # fmt: skip
        if name in values:
            values[name] = kind(values[name])
    for name in ("effect", "dose"):
        if name in values:
            values[f"stated_{name}"] = values.pop(name)
    try:
        return EvidenceRow(**values)
    except SpecError as error:
        raise SpecError(f"evidence {cells.get('id', '?')}: {error}") from None
