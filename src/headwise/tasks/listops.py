"""ListOps: the value of a nested expression such as `[MAX 2 [MIN 4 7 ] 0 ]`, read as one sequence of symbols.

Generated as Long-Range Arena defines it: each node is an operator with probability 1/4 and else a value, an operator
has 2 to `arguments` arguments, the root is at depth 1 and at depth `depth` there are only values, and an expression
counts only if its length is in range. Long-Range Arena's own setting is shortest=501, longest=1999, depth=10,
arguments=10; the defaults are small enough for a laptop. Short expressions may come up twice, so the streams are kept
apart by a hash of the expression: one that is tested is never trained on. The answer is read off the first token,
which is the outermost operator.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from headwise.data import listops as published
from headwise.data.linear import error_by_least_squares
from headwise.data.listops import CLOSE, FIRST_OPERATOR, FIRST_VALUE, OPERATORS, SPLITS, SYMBOLS
from headwise.extras import extra
from headwise.models import Bert
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import Batch, DataTask
from headwise.tasks.sequences import class_scores, symbol_options
from headwise.tasks.stream import Draw, Stream, sample_numbers

OPERATOR_SHARE = 0.25
VALUES = 10
KNOWN_SAMPLES, FITTED_SAMPLES = 4096, 16384  # for the no-skill baseline, and to fit the classical methods on
MOST_TRIED = 50_000  # candidates without a single expression of the right length, before giving up
LINEAR_SAMPLES, LINEAR_SYMBOLS, LINEAR_BATCH = 8192, 2_000_000, 512  # at most, of each endless stream
ROUND = 4096  # most candidates at once


class ListOps(DataTask):
    name: ClassVar[str] = "listops"
    summary: ClassVar[str] = "the value of a nested expression of MIN, MAX, MED and sums: tests hierarchy"
    usual_shape: ClassVar[str] = "w64-h4-L2"

    shortest: int = Field(default=8, gt=0, description="fewest symbols of an expression, closing brackets included")
    longest: int = Field(default=32, gt=0, description="most symbols; longer expressions of a file are left out")
    depth: int = Field(default=3, gt=0, description="most levels of an expression that is generated")
    arguments: int = Field(default=5, gt=1, description="most arguments of an operator that is generated")

    @model_validator(mode="after")
    def _check(self) -> "ListOps":
        if self.shortest > self.longest:
            raise SpecError(f"no expression has at least {self.shortest} and at most {self.longest} symbols")
        largest = 1
        for _ in range(self.depth - 1):
            largest = min(2 + self.arguments * largest, self.shortest)
        if not self.source and largest < self.shortest:
            raise SpecError(
                f"{self.depth} levels of at most {self.arguments} arguments have at most {largest} symbols, "
                f"not {self.shortest}; raise depth or arguments"
            )
        return self

    @property
    def tokens(self) -> int:
        return self.longest

    def samples(self, stream: Stream) -> int | None:
        return len(_read(self)[stream].labels) if self.source else None

    def digest(self) -> str:
        return published.digest(self.source) if self.source else ""

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        if self.source:
            data = _read(self)[stream]
            numbers = sample_numbers(seed, stream, index, batch, len(data.labels))
            tokens, labels = data.padded(numbers, self.longest), data.labels[numbers]
        else:
            tokens, labels = self._generate(Draw(seed, stream, index), SPLITS.index(stream), batch)
        return torch.from_numpy(tokens).long().to(device), torch.from_numpy(labels).to(device)

    def _generate(self, draw: Draw, split: int, batch: int) -> tuple[Any, Any]:
        """Candidates until a batch of them has the right length and belongs to the split."""
        kept: list[tuple[Any, Any]] = []
        count = tried = 0
        while count < batch:
            candidates = int(min(1.2 * (batch - count) * (tried + 1) / (count + 1) + 8, ROUND))
            tokens, labels = _write(_grow(self, draw, candidates), draw, self.longest)
            mine = published.split_of(tokens) == split
            kept.append((tokens[mine], labels[mine]))
            count, tried = count + int(mine.sum()), tried + candidates
            if not count and tried > MOST_TRIED:
                raise SpecError(
                    f"of {tried} expressions none has {self.shortest} to {self.longest} symbols; "
                    "change depth or arguments"
                )
        tokens, labels = (np.concatenate(part)[:batch] for part in zip(*kept, strict=True))
        return tokens, labels

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        if options.family != "bert" or options.classes != VALUES or options.vocab < len(SYMBOLS):
            raise SpecError(
                f"ListOps needs a model of family 'bert' with {VALUES} classes and a vocab of {len(SYMBOLS)} or more"
            )
        return _Padded(shape, options)

    def default_options(self) -> ModelOptions:
        return symbol_options(len(SYMBOLS), self.longest, VALUES)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output, labels)

    def scores(self, output: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return class_scores(output, labels)

    def trivial_error(self) -> float:
        """The commonest value, always."""
        return _trivial_error(self)

    def floor(self) -> float:
        return 0.0

    def simple_baseline(self) -> tuple[str, float]:
        """A linear classifier of how often each symbol occurs: it knows nothing of their order but the first one."""
        return "linear classifier of symbol counts", _linear_error(self)

    def baselines(self) -> dict[str, float]:
        return {"commonest value": self.trivial_error(), "bag of symbols": _bag_of_symbols(self)}


class _Padded(Bert):
    """A BERT that sees from the tokens themselves which are padding."""

    def forward(self, tokens: Tensor, segments: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        return super().forward(tokens, segments, tokens > 0 if padding is None else padding)


# ---- expressions, level by level -----------------------------------------------------------------------------------


class _Level:
    """All nodes of one depth, tree by tree: `arguments` is 0 for a value, and the arguments are the next level."""

    values: Any
    operators: Any

    def __init__(self, trees: Any, arguments: Any) -> None:
        self.trees, self.arguments = trees, arguments
        self.sizes = np.ones_like(arguments)  # in symbols

    def only(self, kept: Any) -> "_Level":
        """The nodes of the trees that are kept, which get new numbers."""
        mine = kept[self.trees]
        return _Level((np.cumsum(kept) - 1)[self.trees[mine]], self.arguments[mine])


def _grow(task: ListOps, draw: Draw, candidates: int) -> list[_Level]:
    """Trees without contents, of those candidates that have the right length."""
    levels: list[_Level] = []
    lengths = np.zeros(candidates, dtype=np.int64)
    trees = np.arange(candidates)
    for depth in range(1, task.depth + 1):
        operator = draw.uniform(len(trees)).numpy() < (OPERATOR_SHARE if depth < task.depth else 0)
        if depth == 1 and task.shortest > 1:
            operator[:] = True  # a lone value would be too short
        arguments = operator * draw.integers(2, task.arguments + 1, len(trees)).numpy()
        lengths += np.bincount(trees, weights=1 + operator, minlength=candidates).astype(np.int64)
        arguments *= (lengths <= task.longest)[trees]  # what is too long already need not grow
        levels.append(_Level(trees, arguments))
        trees = np.repeat(trees, arguments)
    kept = (lengths >= task.shortest) & (lengths <= task.longest)
    return [level.only(kept) for level in levels]


def _write(levels: list[_Level], draw: Draw, longest: int) -> tuple[Any, Any]:
    """Contents for the trees: padded tokens and the values of the expressions."""
    for level in levels:
        level.values = draw.integers(0, VALUES, len(level.trees)).numpy()
        level.operators = draw.integers(0, len(OPERATORS), len(level.trees)).numpy()
    for level, below in zip(levels[-2::-1], levels[:0:-1], strict=True):
        _evaluate(level, below)
    tokens = np.zeros((len(levels[0].trees), longest), dtype=np.int64)
    places = np.zeros(len(levels[0].trees), dtype=np.int64)
    for number, level in enumerate(levels, 1):
        inner = level.arguments > 0
        tokens[level.trees, places] = np.where(inner, FIRST_OPERATOR + level.operators, FIRST_VALUE + level.values)
        tokens[level.trees[inner], (places + level.sizes - 1)[inner]] = CLOSE
        if number < len(levels):  # arguments stand one after the other, behind their operator
            before = np.cumsum(levels[number].sizes) - levels[number].sizes
            firsts = np.cumsum(level.arguments) - level.arguments
            places = np.repeat(places[inner] + 1 - before[firsts[inner]], level.arguments[inner]) + before
    return tokens, levels[0].values


def _evaluate(level: _Level, below: _Level) -> None:
    """Values and lengths of the operators of one level, from those of the level below."""
    inner = level.arguments > 0
    counts = level.arguments[inner]
    real = np.arange(counts.max(initial=1)) < counts[:, None]
    table = np.full(real.shape, VALUES)  # one row per operator; beyond its arguments more than any value
    lengths = np.zeros(real.shape, dtype=np.int64)
    table[real], lengths[real] = below.values, below.sizes
    ordered = np.sort(table, axis=1)
    rows = np.arange(len(counts))
    middle = (ordered[rows, (counts - 1) // 2] + ordered[rows, counts // 2]) // 2
    choices = [ordered[:, 0], ordered[rows, counts - 1], middle, (table * real).sum(1) % VALUES]
    level.values[inner] = np.choose(level.operators[inner], choices)  # in the order of OPERATORS
    level.sizes[inner] = 2 + lengths.sum(1)


# ---- baselines: no skill, and learning without attention -----------------------------------------------------------


@lru_cache(maxsize=2)
def _read(task: ListOps) -> dict[str, published.Expressions]:
    task.check_content()
    splits = {}
    for split, data in published.read_splits(task.source).items():
        splits[split] = data.only((data.lengths >= task.shortest) & (data.lengths <= task.longest))
        if not len(splits[split].labels):
            raise SpecError(f"{task.source} has no {split} expression of {task.shortest} to {task.longest} symbols")
    return splits


def _known(task: ListOps, stream: Stream, most: int) -> tuple[Any, Any]:
    """Tokens and labels of a stream's beginning, or of all of it."""
    inputs, labels = task.draw(0, stream, 0, min(most, task.samples(stream) or most))
    return inputs.numpy(), labels.numpy()


@lru_cache(maxsize=16)
def _trivial_error(task: ListOps) -> float:
    commonest = np.bincount(_known(task, "train", KNOWN_SAMPLES)[1]).argmax()
    return float((_known(task, "test", KNOWN_SAMPLES)[1] != commonest).mean())


def _features(tokens: Any) -> Any:
    """How often each symbol occurs, alone and with each outermost operator, and the outermost operator itself."""
    counts = (tokens[..., None] == np.arange(1, len(SYMBOLS))).sum(1)
    first = tokens[:, :1] == np.arange(1, len(SYMBOLS))
    return np.concatenate([counts, first, (first[:, :, None] * counts[:, None]).reshape(len(tokens), -1)], axis=1)


@lru_cache(maxsize=16)
def _bag_of_symbols(task: ListOps) -> float:
    """Logistic regression on counts of symbols, with weights of its own for each outermost operator."""
    with extra("baselines", "baselines"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    tokens, labels = _known(task, "train", FITTED_SAMPLES)
    model.fit(_features(tokens), labels)
    tokens, labels = _known(task, "test", FITTED_SAMPLES)
    return float((model.predict(_features(tokens)) != labels).mean())


@lru_cache(maxsize=16)
def _linear_error(task: ListOps) -> float:
    def rows(stream: Stream) -> Iterator[tuple[Any, Any]]:
        total = task.samples(stream) or min(LINEAR_SAMPLES, LINEAR_SYMBOLS // task.longest)
        for index in range(-(-total // LINEAR_BATCH)):
            tokens, labels = task.draw(0, stream, index, LINEAR_BATCH)
            yield _features(tokens.numpy()), labels.numpy()

    return error_by_least_squares(rows, VALUES)


TASK = ListOps
