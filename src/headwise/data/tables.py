"""Labelled texts, alone or in pairs, and the tab-separated files they are published in.

    for line, row in table_rows(Path("train.tsv")): row["sentence"]
    examples = Examples.of([(("a text", "another"), 1), ...])
    examples.texts, examples.pairs, examples.labels

Files are read as published: fields are what stands between tabs, quotation marks mean nothing (QUOTE_NONE). A line with
too few fields is completed by the next, since some published fields hold a line feed; what does not come out even is an
error that names the line.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from headwise.data.text import BYTES, encode, learn_pairs
from headwise.spec import SpecError

PAD, START, END = 0, 1, 2  # numbers of tokens that are no text
SPECIAL = 3


def table_rows(file: Path, names: list[str] | None = None) -> Iterator[tuple[int, dict[str, str]]]:
    """The rows of a file with the number of their line; its first line gives the names of columns, if they do not."""
    for line, fields in _records(file, names):
        if names is None:
            names = fields
        else:
            yield line, dict(zip(names, fields, strict=True))


def _records(file: Path, names: list[str] | None) -> Iterator[tuple[int, list[str]]]:
    width = len(names) if names else 0
    began, unfinished = 0, list[str]()
    for number, text in enumerate(_lines(file), 1):
        fields = text.split("\t")
        if not width:
            width = len(fields)
        if unfinished and len(fields) < width:
            fields = [*unfinished[:-1], f"{unfinished[-1]}\n{fields[0]}", *fields[1:]]
        elif unfinished or not text:
            if unfinished:
                raise _uneven(file, began, unfinished, width)
            continue
        else:
            began = number
        if len(fields) > width:
            raise _uneven(file, began, fields, width)
        unfinished = fields if len(fields) < width else []
        if not unfinished:
            yield began, fields
    if unfinished:
        raise _uneven(file, began, unfinished, width)


def _lines(file: Path) -> Iterator[str]:
    number = 0
    try:
        with file.open(encoding="utf-8-sig", newline="\n") as stream:
            for line in stream:
                number += 1
                yield line.rstrip("\r\n")
    except OSError as error:
        raise SpecError(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SpecError(f"{file} is not UTF-8 text somewhere after line {number}") from None


def _uneven(file: Path, line: int, fields: list[str], width: int) -> SpecError:
    return SpecError(f"{file}, line {line}: {len(fields)} columns instead of {width}; the file is cut short or damaged")


# ---- labelled texts ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Examples:
    """Every different text once; `pairs` (examples, 1 or 2) says which of them each example is made of."""

    texts: list[str]
    pairs: Any
    labels: Any

    @classmethod
    def of(cls, labelled: Iterable[tuple[tuple[str, ...], float]]) -> "Examples":
        numbers: dict[str, int] = {}
        pairs, labels = [], []
        for texts, label in labelled:
            pairs.append([numbers.setdefault(text, len(numbers)) for text in texts])
            labels.append(label)
        return cls(list(numbers), np.array(pairs, dtype=np.int64), np.array(labels))

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, kept: Any) -> "Examples":
        """Some of the examples, with their own texts."""
        used, pairs = np.unique(self.pairs[kept], return_inverse=True)
        return Examples([self.texts[i] for i in used], pairs.reshape(-1, self.pairs.shape[1]), self.labels[kept])

    def column(self, place: int) -> list[str]:
        """The first or second text of every example."""
        return [self.texts[i] for i in self.pairs[:, place]]

    @cached_property
    def digest(self) -> str:
        hashed = hashlib.sha256(self.pairs.tobytes() + self.labels.astype(float).tobytes())
        for text in self.texts:
            data = text.encode("utf-8", "surrogatepass")
            hashed.update(len(data).to_bytes(8, "little") + data)
        return hashed.hexdigest()[:16]


def part_of(examples: Examples, least: int = 10, most: int = 2000) -> tuple[Examples, Examples]:
    """Examples without every n-th, and those: a validation part of a tenth, or `most` where that is less."""
    every = max(least, -(-len(examples) // most))
    held_out = np.arange(len(examples)) % every == every - 1
    return examples.only(~held_out), examples.only(held_out)


# ---- tokens --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Encoded:
    """The texts of examples as token numbers, in one array: text i is `numbers[starts[i] : starts[i + 1]]`."""

    numbers: Any
    starts: Any
    pairs: Any
    labels: Any

    def padded(self, which: Any, length: int, *, apart: bool = False) -> Any:
        """(which, length) of token numbers: START text END, or START text END text END; then PAD.

        What does not fit is cut off the end, of two texts off the longer one. With `apart` each text gets a half of
        the length and both tokens of its own.
        """
        texts = self.pairs.shape[1]
        output = np.zeros((len(which), length), dtype=np.int64)
        for row, places in zip(output, self.pairs[which], strict=True):
            tokens = [self.numbers[self.starts[i] : self.starts[i + 1]] for i in places]
            if apart:
                for half, text in zip(np.split(row, texts), tokens, strict=True):
                    _fill(half, [text[: len(half) - 2]])
            else:
                room = length - 1 - texts
                if texts == 2:
                    tokens[0] = tokens[0][: max(room - len(tokens[1]), (room + 1) // 2)]
                    room -= len(tokens[0])
                _fill(row, [*tokens[:-1], tokens[-1][:room]])
        return output


def _fill(row: Any, texts: list[Any]) -> None:
    row[0], at = START, 1
    for text in texts:
        row[at : at + len(text)] = text
        at += len(text) + 1
        row[at - 1] = END


def encoder(examples: Examples, vocab: int = BYTES) -> Callable[[Examples], Encoded]:
    """How to turn examples into tokens: bytes, or byte pairs learned from the texts of these examples."""
    pairs = learn_pairs(map(_bytes, examples.texts), vocab) if vocab > BYTES else None

    def apply(other: Examples) -> Encoded:
        texts = [_bytes(text) for text in other.texts]
        tokens = [np.frombuffer(text, np.uint8) for text in texts] if pairs is None else encode(pairs, texts)
        starts = np.concatenate([[0], np.cumsum([len(one) for one in tokens])])
        return Encoded(np.concatenate(tokens).astype(np.uint16) + SPECIAL, starts, other.pairs, other.labels)

    return apply


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
