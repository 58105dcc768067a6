"""The fitted law of all shapes (`ledger.law`, of the study predict-the-trade) as plain data, for a page that computes.

`predict` does not use it: it reads the registered ladder alone. No torch here.
"""

from typing import Any

from headwise.comparison.prediction import FARTHEST, trained_on
from headwise.ledger.law import LEAST_POINTS, Law, features, fit
from headwise.ledger.statistics import LEVEL, t_quantile
from headwise.ledger.study import study_rows
from headwise.store.store import Store
from headwise.studies.predict_the_trade import PRESETS, STUDY, points


def law_in_numbers(source: Store) -> dict[str, Any] | None:
    """From the largest preset with enough runs; None where there are too few."""
    for preset in ("paper", "laptop"):
        rows = study_rows(STUDY, preset, source)
        if len(points(rows)) >= LEAST_POINTS:
            return in_numbers(fit(points(rows)), PRESETS[preset].steps) | {"trained": trained_on(source, rows)}
    return None


def in_numbers(law: Law, steps: int) -> dict[str, Any]:
    """A law as plain data, for models that train for so many steps."""
    known = [features(point.shape, point.steps) for point in law.points]
    within = {name: {"low": min(at[name] for at in known), "high": max(at[name] for at in known)} for name in known[0]}
    numbers: dict[str, Any] = {name: getattr(law, name).tolist() for name in ("centre", "scale", "slopes", "cover")}
    about: dict[str, Any] = {
        "steps": steps,
        "points": len(law.points),
        "level": LEVEL,
        "quantile": t_quantile(law.freedom, LEVEL),
    }
    about |= {"farthest": FARTHEST, "within": within, "names": list(law.names), "floor": float(law.floor)}
    return {**numbers, **about, "spread": law.spread, "farthest_leverage": law.farthest}
