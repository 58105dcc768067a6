"""The evidence as a call: `headwise.evidence(axis="kv_heads", near="gpt2").table`."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args

from headwise.comparison.evidence.leave_out import LeaveOneOut, leave_one_out
from headwise.comparison.evidence.own import own_rows
from headwise.comparison.evidence.rows import AXES, OWN, Dose, EvidenceRow, Held, published
from headwise.comparison.evidence.weigh import Weighed, distance, select, weigh
from headwise.cost import cost_of
from headwise.known import Known, find
from headwise.ledger.judge import Judgement
from headwise.ledger.standing import ledger_of
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.opening import StoreLike, opened, shipped_results
from headwise.store.store import Store
from headwise.studies import load

FAMILIES = (
    "kv_heads", "kv_latent", "head_dim", "heads_split", "heads_added", "qk_rank", "depth_vs_heads", "depth_vs_width",
    "mlp_vs_heads", "convert",
)  # fmt: skip
ASKED = {"kv_latent": "more", "head_dim": "more", "heads_split": "more", "heads_added": "more"}  # else: what less does
STUDIES = (
    "head-size", "asymmetric", "sharing", "latent", "rank-cliff", "thinner-gpt", "thinner-vit", "thinner-bert",
    "thinner-lra", "mlp-or-heads", "thin-stories", "value-rank", "shared-cache", "ladder",
)  # fmt: skip


@dataclass(frozen=True)
class Evidence(Shown):
    """Rows, published and our own, in one form; `cells` weighs them by family, what was held and dose."""

    rows: tuple[EvidenceRow, ...]
    axis: str = ""
    near: str = ""
    parameters: int | None = None  # of `near`

    @property
    def labs(self) -> int:
        return len({row.lab for row in self.rows if row.lab != OWN})

    @property
    def headline(self) -> str:
        sources = len({row.source for row in self.rows if row.lab != OWN})
        own = sum(row.lab == OWN for row in self.rows)
        mine = f", and {own} of our own" if own else ""
        return f"{len(self.rows) - own} published comparisons from {self.labs} labs ({sources} sources){mine}"

    def weighed(self) -> dict[str, Weighed]:
        """Of each family that the rows have."""
        return {name: weigh(rows, ASKED.get(name, "less")) for name in FAMILIES if (rows := select(self.rows, name))}

    def cells(self) -> list[tuple[str, bool, Dose | None, Weighed]]:
        """Family, whether what was saved was spent again, dose, and what the rows of that cell say."""
        found = []
        for family in FAMILIES:
            mine = select(self.rows, family)
            keys = dict.fromkeys((row.refilled, row.dose) for row in mine if row.effect and row.lab != OWN)
            for refilled, dose in sorted(keys, key=lambda key: (not key[0], key[1] is None, key[1] != "up to 4x")):
                some = [row for row in mine if (row.refilled, row.dose) == (refilled, dose)]
                found.append((family, refilled, dose, weigh(some, ASKED.get(family, "less"))))
        return found

    def leave_one_out(self) -> LeaveOneOut:
        return leave_one_out(self.rows)

    def as_dict(self) -> list[Any]:
        """What `headwise evidence --json` prints: the rows, with what follows from them."""
        return self.records()

    def records(self) -> list[dict[str, Any]]:
        return [row.as_dict() for row in self.rows]


def evidence(
    axis: str = "",
    near: str | Known = "",
    held: str = "",
    *,
    own: bool = True,
    store: StoreLike = None,
    results: str | Path | None = None,
) -> Evidence:
    """Published comparisons of shapes, and our own claims in the same form; `.table` is a frame.

    `axis` is one of `AXES` (or heads_split, heads_added), `near` a model that rows are sorted by their distance to (in
    parameters), `held` what was equal. Our own rows are judged from the shipped results, or from a store.
    """
    if axis and axis not in (*AXES, *FAMILIES):
        raise SpecError(f"no axis '{axis}'; there are {', '.join(dict.fromkeys((*AXES, *FAMILIES)))}")
    if held and held not in get_args(Held):
        raise SpecError(f"cannot select held '{held}'; there are {', '.join(get_args(Held))}")
    known = find(near) if isinstance(near, str) and near else near or None
    size = cost_of(known).parameters["total"] if isinstance(known, Known) else None
    rows = [*published(), *(own_rows(judged_claims(store, results)) if own else ())]
    rows = [row for row in rows if axis in ("", row.axis, row.family) and held in ("", row.held)]
    if size:
        rows.sort(key=lambda row: distance(row, size))
    name = (known.name or str(known.shape)) if isinstance(known, Known) else ""
    return Evidence(tuple(rows), axis, name, size)


def judged_claims(store: StoreLike = None, results: str | Path | None = None) -> list[Judgement]:
    """The claims that are evidence, judged from a store, from exported files, or from the results that are shipped."""
    shipped = shipped_results() if store is None and results is None else None
    if shipped:
        return list(_judged_once(shipped))
    with opened(store, results) as source:
        return _judged(source)


@cache
def _judged_once(shipped: Path) -> tuple[Judgement, ...]:
    """What is shipped does not change."""
    with opened(results=shipped) as source:
        return tuple(_judged(source))


def _judged(source: Store) -> list[Judgement]:
    return ledger_of([load(name) for name in STUDIES], source)
