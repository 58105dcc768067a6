"""The classical language model: interpolated Kneser-Ney with three discounts (Chen and Goodman's "modified").

    model = KneserNey(segments, vocab=256, order=5)       # token arrays, none of which continues another
    model.probabilities(history, token)                   # (positions, order - 1) and (positions,)

The highest order counts n-grams; each lower order counts in how many different contexts an n-gram stood. An n-gram is
one whole number, and its count is found by binary search among the sorted numbers of those that were seen.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from headwise.spec import SpecError

NONE = -1  # in a history: nothing is known from here back


@dataclass(frozen=True)
class _Order:
    """One order: what an n-gram keeps of its probability, and what its history leaves to the lower orders."""

    grams: Any  # sorted numbers
    kept: Any  # discounted count over the history's total, by n-gram
    histories: Any  # sorted numbers
    left: Any  # by history

    def lookup(self, history: Any, gram: Any) -> tuple[Any, Any]:
        """What the n-gram keeps (0 where it was never seen) and its history leaves (1 where that was never seen)."""
        return _find(self.grams, self.kept, gram, 0.0), _find(self.histories, self.left, history, 1.0)


class KneserNey:
    """A model of `order` n-grams over `vocab` tokens."""

    def __init__(self, segments: Iterable[Any], vocab: int, order: int) -> None:
        if float(vocab) ** order >= 2**63:
            raise SpecError(f"{order}-grams of {vocab} tokens are too many to number; use a lower order")
        self.vocab, self.order = vocab, order
        numbers = np.concatenate([_grams(segment, vocab, order) for segment in segments])
        grams, counts = np.unique(numbers, return_counts=True)
        self.orders: list[_Order] = []
        for n in range(order, 0, -1):
            self.orders.insert(0, _discounted(grams, counts, vocab))
            grams, counts = np.unique(grams % vocab ** (n - 1), return_counts=True)

    def probabilities(self, history: Any, token: Any) -> Any:
        """Of each token after its history (oldest first, `NONE` where there is none)."""
        probability = np.full(len(token), 1 / self.vocab)
        number = np.zeros(len(token), dtype=np.int64)
        known = np.ones(len(token), dtype=bool)
        for n, order in enumerate(self.orders):
            if n:
                older = history[:, -n]
                known = known & (older != NONE)
                number = number + older * self.vocab ** (n - 1)
            kept, left = order.lookup(number, number * self.vocab + token)
            probability = np.where(known, kept + left * probability, probability)
        return probability


def histories(tokens: Any, places: Any, first: Any, order: int) -> Any:
    """(places, order - 1): the tokens before each place, none of them from before its `first`."""
    back = np.asarray(places)[:, None] + np.arange(1 - order, 0)
    return np.where(back >= np.asarray(first)[:, None], tokens[np.maximum(back, 0)].astype(np.int64), NONE)


def _grams(segment: Any, vocab: int, order: int) -> Any:
    """The number of every n-gram of a segment, the oldest token first."""
    tokens = np.asarray(segment).astype(np.int64)
    count = max(0, len(tokens) - order + 1)
    numbers = np.zeros(count, dtype=np.int64)
    for i in range(order):
        numbers = numbers * vocab + tokens[i : i + count]
    return numbers


def _discounted(grams: Any, counts: Any, vocab: int) -> _Order:
    discount = _discounts(counts)[np.minimum(counts, 3)]
    histories, which = np.unique(grams // vocab, return_inverse=True)
    totals = np.bincount(which, counts, len(histories))
    left = np.bincount(which, discount, len(histories)) / totals
    return _Order(grams, (counts - discount) / totals[which], histories, left)


def _discounts(counts: Any) -> Any:
    """What is taken from an n-gram seen once, twice, or more often, from how many were seen how often.

    Where there is too little to estimate from, half of what may be: nothing taken would leave 0 to what is new.
    """
    seen = np.bincount(np.minimum(counts, 5), minlength=6).astype(float)
    times = np.array([1, 2, 3])
    if seen[1:5].all():
        share = seen[1] / (seen[1] + 2 * seen[2])
        discounts = times - (times + 1) * share * seen[2:5] / seen[1:4]
        if (discounts > 0).all():
            return np.array([0.0, *discounts])
    return np.array([0.0, *times / 2])


def _find(known: Any, values: Any, asked: Any, otherwise: float) -> Any:
    at = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    return np.where(known[at] == asked, values[at], otherwise)
