"""GLUE: nine published tests of language understanding, each with its own metric, read from their files.

`source` is the folder of one of them (train.tsv, dev.tsv) or of all, or a data set name (nyu-mll/glue). The labels of
GLUE's test files are secret, so its dev files are the test part here, and validation is split off train. The error is
1 - the official metric, or 1 - the mean of the two where GLUE averages them. A model whose run begins with no
pre-training sees only the task's own training texts: do not compare it with fine-tuned ones.

With no source there is only `task="sst-2"`, made by a small grammar; it is there to try things, and measures nothing.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from headwise.data import grammar, hub, stamp
from headwise.data.tables import END, PAD, SPECIAL, Encoded, Examples, encoder, part_of, table_rows
from headwise.data.text import BYTES, Tokenizer
from headwise.data.words import predict_by_words
from headwise.models import Bert
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import Batch, DataTask, Scores, Task
from headwise.tasks.stream import Stream, sample_numbers
from headwise.tasks.text import Text

Splits = dict[Stream, Examples]
GENERATED_SENTENCES = 6000  # sentences where there is no source


# ---- what every task of labelled texts shares ----------------------------------------------------------------------


class Reading(DataTask):
    """Texts, alone or in pairs, into classes (or one number): tokens in, class logits out."""

    tokenizer: Tokenizer = Field(default="bytes", description="bytes, or bpe: byte pairs")
    vocab: int = Field(default=4096, gt=256, le=65_000, description="number of tokens, with tokenizer bpe")

    @abstractmethod
    def read(self) -> Splits:
        """The examples of each part; remembered by the reader while the files stay as they are."""

    @cached_property
    def parts(self) -> Splits:
        self.check_content()
        return self.read()

    @property
    @abstractmethod
    def classes(self) -> int:
        """How many there are; 1 where a number is predicted."""

    def judge(self, labels: Any, predictions: Any) -> dict[str, float]:
        """The field's metrics, with `error` among them."""
        right = accuracy(labels, predictions)
        return {"error": 1 - right, "accuracy": right}

    def digest(self) -> str:
        return "".join(examples.digest[:6] for examples in self.read().values())

    @cached_property
    def encoded(self) -> dict[Stream, Encoded]:
        apply = encoder(self.parts["train"], self._texts_tokens)
        return {stream: apply(examples) for stream, examples in self.parts.items()}

    @property
    def _texts_tokens(self) -> int:
        return self.vocab if self.tokenizer == "bpe" else BYTES

    def labels(self, stream: Stream) -> Any:
        return self.parts[stream].labels

    def inputs(self, stream: Stream, which: Any) -> Any:
        """(which, tokens) of token numbers."""
        return self.encoded[stream].padded(which, self.tokens)

    def samples(self, stream: Stream) -> int:
        return len(self.labels(stream))

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        labels = self.labels(stream)
        which = sample_numbers(seed, stream, index, batch, len(labels))
        kind = torch.float32 if self.classes == 1 else torch.int64
        return torch.from_numpy(self.inputs(stream, which)).to(device), torch.from_numpy(labels[which]).to(device, kind)

    def default_options(self) -> ModelOptions:
        """A BERT with norms before each part, which from nothing learns in fewer steps than the published one."""
        size = {"vocab": self._texts_tokens + SPECIAL, "context": self.tokens, "classes": self.classes}
        return preset("bert", norm_place="pre", final_norm=True, head="classes", **size)

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        self.check_options(options)
        return TextClassifier(shape, options)

    def check_options(self, options: ModelOptions) -> None:
        wanted = self.default_options()
        if (options.family, options.head, options.classes) != ("bert", "classes", wanted.classes):
            raise SpecError(f"the task '{self.name}' needs a bert with head 'classes' and classes={wanted.classes}")
        for name in ("vocab", "context"):
            if getattr(options, name) < getattr(wanted, name):
                raise SpecError(f"this task needs {name}={getattr(wanted, name)}, not {getattr(options, name)}")

    def check_pretraining(self, first: Task) -> None:
        """Text with masked bytes: byte pairs learned from two texts would differ."""
        if not isinstance(first, Text) or first.objective != "masked":
            raise SpecError(f"a pre-training for the task '{self.name}' is on text with objective 'masked'")
        if (first.tokenizer, self.tokenizer) != ("bytes", "bytes"):
            raise SpecError(
                "byte pairs learned from two texts differ: a pre-training and its run need tokenizer 'bytes'"
            )

    def carry_over(self, weights: dict[str, Tensor], model: nn.Module) -> None:
        """The table's rows for bytes stand behind those of tokens that are no text, which begin anew."""
        bert = next(module for module in model.modules() if isinstance(module, Bert))
        bert.begin_with(weights, slice(SPECIAL, SPECIAL + BYTES), slice(BYTES))

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return F.mse_loss(output[:, 0], labels) if self.classes == 1 else F.cross_entropy(output, labels)

    def scores(self, output: Tensor, labels: Tensor) -> Scores:
        predictions = output[:, 0] if self.classes == 1 else output.argmax(-1)
        return {"prediction": predictions, "label": labels}

    def metrics(self, scores: Scores) -> dict[str, float]:
        return self.judge(scores["label"].numpy(), scores["prediction"].numpy())

    def trivial_error(self) -> float:
        """One answer for all: the one that does best on the training part. For a number, no correlation at all."""
        if self.classes == 1:
            return 1.0
        train, test = self.labels("train"), self.labels("test")
        best = min(range(self.classes), key=lambda answer: self.judge(train, np.full_like(train, answer))["error"])
        return self.judge(test, np.full_like(test, best))["error"]

    def baselines(self) -> dict[str, float]:
        """Regression on words and pairs of words, of the whole texts: also of what is cut off for a model."""
        train, validation, test = (self.parts[stream] for stream in ("train", "validation", "test"))
        predictions = predict_by_words(
            train, validation, test, lambda *answers: self.judge(*answers)["error"], scores=self.classes == 1
        )
        name = "ridge regression on words" if self.classes == 1 else "logistic regression on words"
        return {name: self.judge(test.labels, predictions)["error"]}


class TextClassifier(nn.Module):
    """A BERT that finds padding and the second text of a pair by itself."""

    def __init__(self, shape: ModelShape, options: ModelOptions) -> None:
        super().__init__()
        self.bert = Bert(shape, options)

    def forward(self, tokens: Tensor) -> Tensor:
        ends = (tokens == END).long()
        second = (ends.cumsum(1) - ends).clamp_max(1) if self.bert.segments is not None else None
        return self.bert(tokens, second, padding=tokens != PAD)


# ---- metrics -------------------------------------------------------------------------------------------------------


def accuracy(labels: Any, predictions: Any) -> float:
    return float(np.mean(labels == predictions))


def f1(labels: Any, predictions: Any) -> float:
    """Of class 1; 0 where neither it is nor anybody says it is."""
    hits = int(np.sum((labels == 1) & (predictions == 1)))
    said = int(np.sum(predictions == 1) + np.sum(labels == 1))
    return 2 * hits / said if said else 0.0


def matthews(labels: Any, predictions: Any) -> float:
    return pearson(np.asarray(labels, float), np.asarray(predictions, float))


def pearson(labels: Any, predictions: Any) -> float:
    """Correlation; 0 where either is constant."""
    a, b = (np.asarray(x, float) - np.mean(x, dtype=float) for x in (labels, predictions))
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 1e-12 * len(a) else 0.0


def spearman(labels: Any, predictions: Any) -> float:
    return pearson(_ranks(labels), _ranks(predictions))


def _ranks(values: Any) -> Any:
    """Places in order of size; equal values share the mean of theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which]


METRICS = {"accuracy": accuracy, "f1": f1, "matthews": matthews, "pearson": pearson, "spearman": spearman}


# ---- the published tasks -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Published:
    """How a task's files and its data set look, and what it is measured by."""

    folder: str
    configuration: str
    texts: tuple[str, ...]
    label: str
    labels: tuple[str, ...] = ("0", "1")  # none: a number from 0 to 5
    metrics: tuple[str, ...] = ("accuracy",)
    names: tuple[str, ...] = ()  # of the columns, where a file does not say
    dev: str = "dev"
    hub_texts: tuple[str, ...] = ()  # where they are not `texts`
    hub_dev: str = "validation"


_ENTAILS = ("entailment", "not_entailment")
_SENTENCES = ("sentence1", "sentence2")
_MNLI = _Published(
    "MNLI",
    "mnli",
    _SENTENCES,
    "gold_label",
    labels=("entailment", "neutral", "contradiction"),
    hub_texts=("premise", "hypothesis"),
    dev="dev_matched",
    hub_dev="validation_matched",
)
GLUE_TASKS: dict[str, _Published] = {
    "cola": _Published(
        "CoLA", "cola", ("sentence",), "label", metrics=("matthews",), names=("source", "label", "star", "sentence")
    ),
    "sst-2": _Published("SST-2", "sst2", ("sentence",), "label"),
    "mrpc": _Published(
        "MRPC",
        "mrpc",
        ("#1 String", "#2 String"),
        "Quality",
        metrics=("f1", "accuracy"),
        hub_texts=_SENTENCES,
    ),
    "qqp": _Published("QQP", "qqp", ("question1", "question2"), "is_duplicate", metrics=("f1", "accuracy")),
    "sts-b": _Published("STS-B", "stsb", _SENTENCES, "score", labels=(), metrics=("pearson", "spearman")),
    "mnli": _MNLI,
    "mnli-mm": replace(_MNLI, dev="dev_mismatched", hub_dev="validation_mismatched"),
    "qnli": _Published("QNLI", "qnli", ("question", "sentence"), "label", labels=_ENTAILS),
    "rte": _Published("RTE", "rte", _SENTENCES, "label", labels=_ENTAILS),
    "wnli": _Published("WNLI", "wnli", _SENTENCES, "label"),
}


class Glue(Reading):
    name: ClassVar[str] = "glue"
    summary: ClassVar[str] = "GLUE's tests of language understanding, from their files: encoders on short texts"
    usual_shape: ClassVar[str] = "w64-h2-L2"

    task: Literal["cola", "sst-2", "mrpc", "qqp", "sts-b", "mnli", "mnli-mm", "qnli", "rte", "wnli"] = Field(
        default="sst-2", description="which of them; mnli-mm is MNLI tested on other genres"
    )
    tokenizer: Tokenizer = Field(default="bpe", description="bytes, or bpe: byte pairs")
    length: int = Field(default=128, ge=8, description="tokens of a text or pair; what is longer is cut")

    @model_validator(mode="after")
    def _check(self) -> "Glue":
        if not self.source and self.task != "sst-2":
            raise SpecError(
                f"the texts of {self.task} are not on this machine: give source=, the folder of its published files"
            )
        return self

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def classes(self) -> int:
        return max(1, len(GLUE_TASKS[self.task].labels))

    def read(self) -> Splits:
        return _parts(self.source, self.task, stamp(self.source) if self.source else ())

    def judge(self, labels: Any, predictions: Any) -> dict[str, float]:
        values = {name: METRICS[name](labels, predictions) for name in GLUE_TASKS[self.task].metrics}
        return {"error": 1 - sum(values.values()) / len(values), **values}


@lru_cache(maxsize=4)
def _parts(source: str, task: str, state: object) -> Splits:
    if not source:
        made = Examples.of(grammar.opinions(GENERATED_SENTENCES))
        held_out = np.arange(GENERATED_SENTENCES) % 10 == 0
        train, test = made.only(~held_out), made.only(held_out)
    elif hub.is_dataset(source):
        train, test = (_from_hub(source, GLUE_TASKS[task], dev) for dev in (False, True))
    else:
        folder = _folder(source, GLUE_TASKS[task])
        train, test = (_from_file(folder, GLUE_TASKS[task], dev) for dev in (False, True))
    train, validation = part_of(train)
    return {"train": train, "validation": validation, "test": test}


def _folder(source: str, published: _Published) -> Path:
    place = Path(source)
    if not place.is_dir():
        raise hub.no_source(source, "folder")
    return place / published.folder if (place / published.folder).is_dir() else place


def _from_file(folder: Path, published: _Published, dev: bool) -> Examples:
    file = folder / f"{published.dev if dev else 'train'}.tsv"
    examples = []
    for line, row in table_rows(file, list(published.names) or None):
        if absent := [name for name in (*published.texts, published.label) if name not in row]:
            raise SpecError(
                f"{file} has no column '{absent[0]}'; {published.folder} has one: is it another task's file?"
            )
        label = _label(row[published.label], published)
        if label is None:
            raise SpecError(f"{file}, line {line}: '{row[published.label]}' is no label; {_allowed(published)}")
        examples.append((tuple(row[name] for name in published.texts), label))
    return _enough(Examples.of(examples), str(file))


def _from_hub(source: str, published: _Published, dev: bool) -> Examples:
    place = source if ":" in source or Path(source).exists() else f"{source}:{published.configuration}"
    split = published.hub_dev if dev else "train"
    examples = []
    for number, row in enumerate(hub.load_split(place, split)):
        names = published.hub_texts or published.texts
        if absent := [name for name in (*names, "label") if name not in row]:
            raise SpecError(f"data set '{place}' has no column '{absent[0]}'; {published.folder} has one")
        label = _number(row["label"], published)
        if label is None:
            raise SpecError(f"data set '{place}', split '{split}', row {number}: label {row['label']} is unknown")
        examples.append((tuple(row[name] for name in names), label))
    return _enough(Examples.of(examples), f"data set '{place}', split '{split}'")


def _enough(examples: Examples, what: str) -> Examples:
    if len(examples) < 20:
        raise SpecError(f"{what} has only {len(examples)} examples; 20 are the least that can be learned from")
    return examples


def _label(text: str, published: _Published) -> float | None:
    if published.labels:
        return published.labels.index(text) if text in published.labels else None
    try:
        return _number(float(text), published)
    except ValueError:
        return None


def _number(value: Any, published: _Published) -> float | None:
    """A label that is a number already, if it is one that can be."""
    if published.labels:
        return value if value in range(len(published.labels)) else None
    return value if 0 <= value <= 5 else None


def _allowed(published: _Published) -> str:
    return f"there are {', '.join(published.labels)}" if published.labels else "it should be a number from 0 to 5"


TASK = Glue
