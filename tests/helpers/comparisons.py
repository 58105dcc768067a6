"""A small question about shapes, and rows of invented runs."""

from headwise.comparison.question import Question
from headwise.options import ModelOptions
from headwise.store.rows import Row

BASE, OTHER, THIRD = "w16-h4-L2", "w16-h2-L2", "w16-h1-L2"


def question(**changes):
    given = {"task": {"name": "recall"}, "options": ModelOptions(), "tokens": 64, "held_out": (2048, 8192)}
    return Question(**{**given, "base": BASE, "budget": 600.0, **changes})


def rows_of(errors, **metrics):
    """Rows from errors by arm; None is a run that is missing, infinity one that diverged."""
    return [
        Row({"arm": arm}, seed, {"error": error, **metrics}, f"{arm}-{seed}")
        for arm, values in errors.items()
        for seed, error in enumerate(values)
        if error is not None
    ]


def arm(found, name):
    return next(one for one in found.arms if one.arm == name)
