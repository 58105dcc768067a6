"""What a conversion was, what it cost, and the card that lies beside the model."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from headwise.checkpoints.conversion.allocation import Sensitivity
from headwise.checkpoints.conversion.fitting import FittedLayer
from headwise.checkpoints.conversion.healing import Healed
from headwise.checkpoints.conversion.importance import Importance
from headwise.checkpoints.conversion.text import Change
from headwise.checkpoints.swap.saved import PREFIX, auto_classes
from headwise.shown import Shown


@dataclass(frozen=True)
class Tried:
    """A way to meet a budget, and what it scored on text that it was not fitted to (nor the result measured on)."""

    shape: str
    kv: float  # of the original's cache
    loss: float


@dataclass(frozen=True)
class Conversion(Shown):
    """A smaller model and what it cost. Losses are those of the folder loaded back, on held-out text."""

    source: str
    out: Path
    architecture: str  # the class of transformers that loads it
    before: str
    after: str
    parameters_before: int
    parameters_after: int
    kv_bytes_before: int  # per token
    kv_bytes_after: int
    tokens: int = 0  # held-out, that losses are measured on
    loss_before: float | None = None
    converted: Change | None = None
    healed: Change | None = None
    healing: Healed | None = None
    decode_before: float | None = None  # milliseconds/token with a cache, here
    decode_after: float | None = None
    layers: tuple[FittedLayer, ...] = ()
    dropped: tuple[int, ...] = ()
    tried: tuple[Tried, ...] = ()
    sensitivity: tuple[Sensitivity, ...] = ()  # with --per-layer
    importance: tuple[Importance, ...] = ()  # where heads or layers go

    @property
    def loading(self) -> str:
        """The call that loads the folder, and whether it is the family's own."""
        if not self.architecture.startswith(PREFIX):
            return f"{self.architecture}.from_pretrained('{self.out}')"
        return (
            f"{auto_classes(self.architecture)[0]}.from_pretrained('{self.out}', trust_remote_code=True), whose code "
            "imports headwise,"
        )

    @property
    def kv(self) -> float:
        return self.kv_bytes_after / self.kv_bytes_before if self.kv_bytes_before else 1.0

    @property
    def final(self) -> Change | None:
        return self.healed or self.converted

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"out": str(self.out), "kv": self.kv}

    @classmethod
    def read(cls, facts: dict[str, Any]) -> "Conversion":
        """What `as_dict` gave, as it comes back from JSON."""
        kinds = {"converted": Change, "healed": Change, "healing": Healed}
        parts = {"layers": FittedLayer, "tried": Tried, "sensitivity": Sensitivity}
        parts |= {"importance": Importance}
        read = {name: value for name, value in facts.items() if name != "kv"} | {"out": Path(facts["out"])}
        read |= {name: kind(**facts[name]) for name, kind in kinds.items() if facts[name] is not None}
        read |= {name: tuple(kind(**one) for one in facts[name]) for name, kind in parts.items()}
        return cls(**read | {"dropped": tuple(facts["dropped"])})

    def records(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"what": "parameters", "before": self.parameters_before, "after": self.parameters_after},
            {"what": "KV cache bytes/token", "before": self.kv_bytes_before, "after": self.kv_bytes_after},
        ]
        if self.decode_before is not None:
            rows.append({"what": "decoding, ms/token", "before": self.decode_before, "after": self.decode_after})
        return rows

    @property
    def headline(self) -> str:
        text = f"{self.before} to {self.after}"
        text += f": {self.kv:.0%} of the KV cache" if self.kv_bytes_before else ""
        if self.final is not None:
            text += f", loss {self.final.change:+.2%} [{self.final.low:+.2%}, {self.final.high:+.2%}]"
        return f"{text}; {self.loading} loads it"

    def chart(self) -> Any:
        """Heat maps: the error of every layer, worked out and fitted, and what it was measured to need."""
        from headwise.checkpoints.conversion.page import layer_charts

        return layer_charts((self,))

    def card(self) -> str:
        """The text of README.md."""
        lines = ["---", "library_name: transformers", "tags: [headwise, attention-conversion]", "---", ""]
        lines += [f"# {Path(self.source).name}, converted", ""]
        lines += [f"Attention of `{self.source}` in another shape, written by headwise.", "", "| | before | after |"]
        lines += ["|---|---|---|", f"| shape | `{self.before}` | `{self.after}` |"]
        lines += [f"| {row['what']} | {row['before']:,.4g} | {row['after']:,.4g} |" for row in self.records()[2:]]
        lines += [f"| {row['what']} | {row['before']:,} | {row['after']:,} |" for row in self.records()[:2]]
        if self.loss_before is not None and self.converted is not None:
            lines += ["", f"Loss (nats/token) on {self.tokens:,} held-out tokens, this folder loaded back:", ""]
            lines += [
                "| | loss | change | 95 % interval |",
                "|---|---|---|---|",
                f"| original | {self.loss_before:.4f} | | |",
            ]
            for name, change in (("converted", self.converted), ("healed", self.healed)):
                if change is not None:
                    interval = f"{change.low:+.2%} to {change.high:+.2%}"
                    lines.append(f"| {name} | {change.loss:.4f} | {change.change:+.2%} | {interval} |")
        if self.healing is not None:
            lines += ["", f"Healed: {self.healing.steps:,} steps of distillation from the original, "]
            lines[-1] += f"{self.healing.tokens:,} tokens, {self.healing.seconds:.0f} s."
        if self.converted is None:
            lines += ["", "Converted from the weights alone, without text: its loss was not measured."]
        lines += [
            "",
            f"{self.loading} loads it. Tested with transformers; vLLM and SGLang are not tested.",
        ]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Frontier(Shown):
    """Several budgets of one model."""

    conversions: tuple[Conversion, ...]

    def as_dict(self) -> dict[str, Any]:
        return {"conversions": [one.as_dict() for one in self.conversions]}

    def records(self) -> list[dict[str, Any]]:
        rows = []
        for one in self.conversions:
            row: dict[str, Any] = {"shape": one.after, "kv": one.kv, "parameters": one.parameters_after}
            for name in ("converted", "healed"):
                change: Change | None = getattr(one, name)
                row |= {name: None if change is None else change.change}
                row |= {f"{name}_low": change.low, f"{name}_high": change.high} if change else {}
            rows.append(row | {"out": str(one.out)})
        return rows

    @property
    def headline(self) -> str:
        return f"{self.conversions[0].before} at {len(self.conversions)} budgets of the KV cache"

    def chart(self) -> Any:
        """Budget against the change of the loss, with a slider, over heat maps of what each layer lost."""
        from headwise.checkpoints.conversion.page import frontier_chart

        return frontier_chart(self)
