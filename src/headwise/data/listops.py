"""ListOps as published: Nangia & Bowman's `label TAB expression`, Long-Range Arena's files with a header.

An expression is a number or `[MAX 2 [MIN 4 7 ] 0 ]`. Published files add round brackets that make it a binary tree;
they say nothing the square ones do not, so they are checked and dropped. Every expression is evaluated, and a label
that is not its value is an error. A folder holds the splits that were published; a single file is split by a hash of
the expression, so that equal expressions are never on both sides.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from headwise.spec import SpecError

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = ("", *"0123456789", *OPERATORS, "]")  # a token is a place in this list; 0 pads
FIRST_VALUE, FIRST_OPERATOR, CLOSE = 1, 11, 15
SPLITS = ("train", "validation", "test")
HEADER = "Source\tTarget"
_PUBLISHED = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
_NUMBERS = {symbol: number for number, symbol in enumerate(SYMBOLS) if symbol}
_OUT_OF_TEN = (8, 1, 1)  # shares of the splits


@dataclass(frozen=True)
class Expressions:
    """Many expressions in one array: expression i is `tokens[starts[i] : starts[i + 1]]`."""

    tokens: Any
    starts: Any
    labels: Any

    @property
    def lengths(self) -> Any:
        return np.diff(self.starts)

    def padded(self, numbers: Any, length: int) -> Any:
        """(numbers, length): those expressions, with 0 after the end."""
        places = self.starts[numbers][:, None] + np.arange(length)
        inside = places < self.starts[numbers + 1][:, None]
        return np.where(inside, self.tokens[np.minimum(places, len(self.tokens) - 1)], 0)

    def only(self, kept: Any) -> "Expressions":
        inside = np.repeat(kept, self.lengths)
        return Expressions(self.tokens[inside], np.concatenate([[0], self.lengths[kept].cumsum()]), self.labels[kept])


def value_of(tokens: list[int]) -> int:
    """The value of an expression; ValueError says in a few words why it has none."""
    waiting: list[list[int]] = []  # the operators that are open, each with the arguments it has so far
    values: list[int] = []
    for token in tokens:
        if token >= FIRST_OPERATOR and token != CLOSE:
            waiting.append(values)
            values = [token]
            continue
        if token != CLOSE:
            value = token - FIRST_VALUE
        elif not waiting:
            raise ValueError("a ']' closes nothing")
        elif len(values) < 2:
            raise ValueError("an operator has no argument")
        else:
            value = _apply(values[0], sorted(values[1:]))
            values = waiting.pop()
        values.append(value)
    if waiting:
        raise ValueError("a '[' is not closed")
    if len(values) != 1:
        raise ValueError(f"there are {len(values)} expressions where one is wanted")
    return values[0]


def _apply(operator: int, values: list[int]) -> int:
    """An operator on its sorted arguments. A median between two values is rounded down, as in the published data."""
    kind, last = OPERATORS[operator - FIRST_OPERATOR], len(values) - 1
    if kind == "[MIN":
        return values[0]
    if kind == "[MAX":
        return values[last]
    return sum(values) % 10 if kind == "[SM" else (values[last // 2] + values[(last + 1) // 2]) // 2


def split_of(tokens: Any) -> Any:
    """Which split each row of padded tokens belongs to, as a place in SPLITS: a hash, so equal rows go together."""
    factors = np.random.Philox(key=np.uint64(0)).random_raw(tokens.shape[1])
    mixed = (tokens.astype(np.uint64) * factors).sum(axis=1, dtype=np.uint64)
    return np.searchsorted(np.cumsum(_OUT_OF_TEN), (mixed >> np.uint64(32)) % np.uint64(10), side="right")


def digest(source: str) -> str:
    """A hash of the text of a file, or of the three files of a folder; packed or not does not matter."""
    hashed = hashlib.sha256()
    for path in _files(source).values():
        hashed.update(hashlib.sha256(_text(path)).digest())
    return hashed.hexdigest()[:16]


def read_splits(source: str) -> dict[str, Expressions]:
    """Every split of a published file or folder; read once per process, while the file stays unchanged."""
    files = _files(source)
    return _read(tuple(files.items()), tuple(path.stat().st_mtime_ns for path in files.values()))


@lru_cache(maxsize=2)
def _read(files: tuple[tuple[str, Path], ...], changed: tuple[int, ...]) -> dict[str, Expressions]:
    parsed = {split: _parse(path) for split, path in files}
    return parsed if "all" not in parsed else _split(parsed["all"], files[0][1])


def _split(whole: Expressions, path: Path) -> dict[str, Expressions]:
    some = np.array_split(np.arange(len(whole.labels)), 1 + len(whole.labels) // 1000)  # padded, all would be large
    sides = np.concatenate([split_of(whole.padded(rows, int(whole.lengths[rows].max()))) for rows in some])
    splits = {split: whole.only(sides == number) for number, split in enumerate(SPLITS)}
    for split, part in splits.items():
        if not len(part.labels):
            raise SpecError(
                f"{path} has too few expressions: of {len(whole.labels)}, none falls into the {split} split"
            )
    return splits


def _files(source: str) -> dict[str, Path]:
    """The published files of a folder by split, or a single file under the name 'all'."""
    place = Path(source).expanduser()
    if place.is_file():
        return {"all": place}
    if not place.is_dir():
        raise SpecError(f"no ListOps data at {source}: give a .tsv or .tsv.gz file, or a folder with basic_train.tsv")
    paths = {}
    for split, name in _PUBLISHED.items():
        there = [path for path in (place / name, place / f"{name}.gz") if path.is_file()]
        if not there:
            raise SpecError(f"the folder {source} has no {name}; ListOps needs {', '.join(_PUBLISHED.values())}")
        paths[split] = there[0]
    return paths


def _text(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror or error}") from None
    except (EOFError, zlib.error) as error:
        raise SpecError(f"{path} is damaged or cut short: {error}") from None


def _parse(path: Path) -> Expressions:
    tokens, lengths, labels = bytearray(), [], []
    headed = False
    for number, line in enumerate(_text(path).splitlines(), 1):
        text = line.decode("ascii", "replace")
        if number == 1 and text == HEADER:
            headed = True
            continue
        try:
            symbols, label = _line(text, headed)
        except ValueError as error:
            raise SpecError(f"{path}, line {number}: {error}") from None
        tokens += bytes(symbols)
        lengths.append(len(symbols))
        labels.append(label)
    if not labels:
        raise SpecError(f"{path} has no expressions; a line is 'label TAB expression', or has a '{HEADER}' header")
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Expressions(np.frombuffer(bytes(tokens), dtype=np.uint8), starts, np.array(labels))


def _line(text: str, headed: bool) -> tuple[list[int], int]:
    columns = text.split("\t")
    if len(columns) != 2:
        raise ValueError(f"it has {len(columns)} columns where two are wanted, a label and an expression")
    expression, label = columns if headed else columns[::-1]
    _check_round_brackets(expression)
    symbols = expression.replace("(", " ").replace(")", " ").split()
    try:
        tokens = [_NUMBERS[symbol] for symbol in symbols]
    except KeyError as error:
        raise ValueError(f"{error} is not a symbol of ListOps; there are {' '.join(SYMBOLS[1:])}") from None
    value = value_of(tokens)
    if label != str(value):
        raise ValueError(f"its label is '{label}', but the value of the expression is {value}")
    return tokens, value


def _check_round_brackets(expression: str) -> None:
    letters = np.frombuffer(expression.encode(), dtype=np.uint8)
    depths = ((letters == ord("(")).astype(np.int64) - (letters == ord(")"))).cumsum()
    if len(depths) and (depths.min() < 0 or depths[-1]):
        raise ValueError("its round brackets are not balanced")
