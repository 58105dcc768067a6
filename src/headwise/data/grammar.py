"""Labelled texts from a small grammar, for trying things out without data. They say nothing about language.

`opinions` are sentences about films, good (1) or bad (0): a word of praise or blame that may be negated, and after
"but" only what follows counts. `reviews` are many clauses, most of them of the review's opinion. `papers` are pairs of
texts made of a field's words, of the same field (1) or of two.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

THINGS = ("film", "plot", "cast", "music", "script", "ending", "camera", "story", "dialogue", "pace")
GOOD = ("good", "fine", "lovely", "clever", "moving", "bright", "superb", "funny")
BAD = ("bad", "dull", "clumsy", "weak", "boring", "messy", "awful", "flat")
HOW = ("", "very ", "rather ", "truly ", "quite ")
TOPICS = (
    "parsing grammar tree syntax treebank dependency head phrase",
    "speech acoustic phoneme audio pitch voice speaker signal",
    "translation bilingual alignment target decoder reordering source phrase-table",
    "summary sentence extraction salience document headline compression coverage",
    "dialogue turn user intent slot state response agent",
    "retrieval query ranking index relevance search feedback term",
)
GLUE_WORDS = ("the", "a", "of", "and", "we", "for", "in", "with", "that", "is", "on", "this", "our", "by")

Labelled = tuple[tuple[str, ...], float]


def opinions(count: int) -> list[Labelled]:
    """`count` different sentences with their labels, in random order."""
    return _different(count, 1, _opinion)


def reviews(count: int, length: int) -> list[Labelled]:
    """`count` texts of at most `length` bytes; three of four clauses have the label of the whole."""
    return _different(count, 2, lambda numbers: _review(numbers, length))


def papers(count: int, length: int) -> list[Labelled]:
    """`count` pairs of texts of at most `length` bytes each."""
    return _different(count, 3, lambda numbers: _two_papers(numbers, length))


def _different(count: int, key: int, make: Callable[[Any], Labelled]) -> list[Labelled]:
    """No text is made twice, so that none can be both trained on and held out."""
    numbers = np.random.Generator(np.random.Philox(key=key))
    labelled: dict[tuple[str, ...], float] = {}
    while len(labelled) < count:
        texts, label = make(numbers)
        labelled.setdefault(texts, label)
    return list(labelled.items())


def _opinion(numbers: Any) -> Labelled:
    first, last = (int(good) for good in numbers.integers(2, size=2))
    join = numbers.integers(3)
    if join == 0:
        return (_clause(numbers, last),), last
    if join == 1:
        return (f"{_clause(numbers, first)} but {_clause(numbers, last)}",), last
    return (f"{_clause(numbers, last)} and {_clause(numbers, last)}",), last


def _review(numbers: Any, length: int) -> Labelled:
    label = int(numbers.integers(2))
    clauses = [_clause(numbers, label ^ (numbers.random() < 0.25)) for _ in range(length // 24)]
    return (" . ".join(clauses)[:length],), label


def _two_papers(numbers: Any, length: int) -> Labelled:
    label = int(numbers.integers(2))
    first, second = numbers.choice(len(TOPICS), 2, replace=False)
    return (_paper(numbers, first, length), _paper(numbers, first if label else second, length)), label


def _clause(numbers: Any, good: int) -> str:
    """One thing, said to be good or bad; one in four says so by denying the contrary."""
    denies = numbers.random() < 0.25
    thing, how, word = (_one(numbers, words) for words in (THINGS, HOW, GOOD if good ^ denies else BAD))
    return f"the {thing} was {'not ' if denies else ''}{how}{word}"


def _one(numbers: Any, words: tuple[str, ...]) -> str:
    return words[int(numbers.random() * len(words))]


def _paper(numbers: Any, field: int, length: int) -> str:
    words = numbers.choice([*TOPICS[field].split(), *GLUE_WORDS], size=length // 6)
    return " ".join(words)[:length]
