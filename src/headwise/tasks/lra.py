"""Long-Range Arena, what is read from files: long texts by bytes, pairs of papers, images by pixels.

`part="text"` sorts IMDB's reviews (the published folders, or the archive as it is), `part="retrieval"` says whether one
paper of the ACL Anthology cites another (new_aan_pairs.train|eval|test.tsv; each text is read alone, and only their
vectors meet), `part="image"` sorts grey images read pixel by pixel (CIFAR-10, or whatever the images task reads).
Each may be a data set name as well, but for retrieval. ListOps and Pathfinder are tasks of their own.

Texts may have any length; the published one is 4,000 bytes. With no source, texts and papers are made by a small
grammar, which is there to try things and measures nothing, and images are scikit-learn's digits.
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from headwise.data import grammar, hub, images, stamp
from headwise.data.reviews import read_reviews
from headwise.data.tables import PAD, SPECIAL, START, Examples, part_of, table_rows
from headwise.models import Bert
from headwise.models.blocks import init_linear
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks.glue import Reading, Splits
from headwise.tasks.images import Images
from headwise.tasks.stream import Stream

GENERATED_TEXTS = 4000  # texts or pairs where there is no source
SHORTEST_MADE = 64  # bytes: shorter ones could not all be different
_PAPERS: dict[Stream, str] = {"train": "train", "validation": "eval", "test": "test"}
_COLUMNS = ["label", "id1", "id2", "text1", "text2"]
_YES_NO = {"0": 0, "0.0": 0, "1": 1, "1.0": 1}


class LongRangeArena(Reading):
    name: ClassVar[str] = "lra"
    summary: ClassVar[str] = "Long-Range Arena's texts, paper pairs and pixel sequences: attention over long inputs"
    usual_shape: ClassVar[str] = "w64-h2-L2"

    part: Literal["text", "retrieval", "image"] = Field(default="text", description="which of them")
    length: int = Field(default=256, ge=8, description="tokens of one text; what is longer is cut")

    @model_validator(mode="after")
    def _check(self) -> "LongRangeArena":
        if not self.source and self.length < SHORTEST_MADE:
            raise SpecError(f"made texts need a length of at least {SHORTEST_MADE}, not {self.length}")
        return self

    @property
    def tokens(self) -> int:
        if self.part == "image":
            return 1 + self._images.side**2
        return self.length * (2 if self.part == "retrieval" else 1)

    @property
    def classes(self) -> int:
        return len(self._images.classes) if self.part == "image" else 2

    @cached_property
    def _images(self) -> images.ImageSet:
        self.check_content()
        return images.load_images(self.source)

    def digest(self) -> str:
        return images.digest(self.source) if self.part == "image" else super().digest()

    def read(self) -> Splits:
        length = 0 if self.source else self.length
        return _parts(self.source, self.part, length, stamp(self.source) if self.source else ())

    def labels(self, stream: Stream) -> Any:
        return getattr(self._images, stream).labels if self.part == "image" else super().labels(stream)

    def inputs(self, stream: Stream, which: Any) -> Any:
        if self.part == "image":
            pixels = images.grey(getattr(self._images, stream).take(which)).reshape(len(which), -1)
            return np.pad(pixels.astype(np.int64) + SPECIAL, ((0, 0), (1, 0)), constant_values=START)
        return self.encoded[stream].padded(which, self.tokens, apart=self.part == "retrieval")

    def default_options(self) -> ModelOptions:
        options = super().default_options()
        return options.replace(context=self.length, segments=0) if self.part == "retrieval" else options

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        if self.part != "retrieval":
            return super().build(shape, options)
        self.check_options(options)
        return _TwoTexts(shape, options)

    def baselines(self) -> dict[str, float]:
        if self.part == "image":
            return Images(source=self.source, content=self.content, grey=True).baselines()
        return super().baselines()


class _TwoTexts(nn.Module):
    """One BERT reads each text; what they are together is told from their vectors, as the arena does it."""

    def __init__(self, shape: ModelShape, options: ModelOptions) -> None:
        super().__init__()
        self.bert = Bert(shape, options.replace(head="none", classes=0))
        self.head = nn.Linear(4 * shape.width, options.classes)
        init_linear(self.head)

    def forward(self, tokens: Tensor) -> Tensor:
        texts = torch.cat(tokens.chunk(2, dim=1))
        first, second = self.bert.pooled(self.bert(texts, padding=texts != PAD)).chunk(2)
        return self.head(torch.cat([first, second, first * second, first - second], dim=1))


@lru_cache(maxsize=2)
def _parts(source: str, part: str, length: int, state: object) -> Splits:
    if not source:
        make = grammar.reviews if part == "text" else grammar.papers
        train, test = part_of(Examples.of(make(GENERATED_TEXTS, length)))
        return _with_validation(train, test)
    return _papers(source) if part == "retrieval" else _reviews(source)


def _reviews(source: str) -> Splits:
    """IMDB has no validation part: where none was published beside train, it is split off."""
    if hub.is_dataset(source):
        train, test = (Examples.of(_dataset_rows(source, split)) for split in ("train", "test"))
        return _with_validation(train, test)
    splits = read_reviews(source)
    if "train" in splits and "val" in splits:
        return {"train": splits["train"], "validation": splits["val"], "test": splits["test"]}
    return _with_validation(splits.get("train") or splits["val"], splits["test"])


def _with_validation(train: Examples, test: Examples) -> Splits:
    train, validation = part_of(train)
    return {"train": train, "validation": validation, "test": test}


def _dataset_rows(source: str, split: str) -> Iterator[tuple[tuple[str], int]]:
    rows = hub.load_split(source, split)
    column = hub.text_column(rows, source)
    for number, row in enumerate(rows):
        if row.get("label") not in (0, 1):
            raise SpecError(
                f"data set '{source}', split '{split}', row {number}: label {row.get('label')} is not 0 or 1"
            )
        yield (row[column],), row["label"]


def _papers(source: str) -> Splits:
    if not Path(source).is_dir():
        raise hub.no_source(source, "folder")
    return {stream: Examples.of(_paper_rows(Path(source), name)) for stream, name in _PAPERS.items()}


def _paper_rows(folder: Path, split: str) -> Iterator[tuple[tuple[str, str], int]]:
    file = folder / f"new_aan_pairs.{split}.tsv"
    for line, row in table_rows(file, _COLUMNS):
        if row["label"] not in _YES_NO:
            raise SpecError(f"{file}, line {line}: '{row['label']}' is no label; there are 0 and 1")
        yield (row["text1"], row["text2"]), _YES_NO[row["label"]]


TASK = LongRangeArena
