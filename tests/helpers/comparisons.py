"""A small question about shapes."""

from headwise.comparison.question import Question
from headwise.options import ModelOptions

BASE, OTHER, THIRD = "w16-h4-L2", "w16-h2-L2", "w16-h1-L2"


def question(**changes):
    given = {"task": {"name": "recall"}, "options": ModelOptions(), "tokens": 64, "held_out": (2048, 8192)}
    return Question(**{**given, "base": BASE, "budget": 600.0, **changes})
