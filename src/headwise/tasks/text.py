"""Language modelling on any text: predict the next token, or the masked ones.

Tokens are bytes, the characters of the training part, or byte pairs learned from it. `error` is in bits per byte of
text, so that it can be compared across tokenisers: all nats of the scored tokens over all their bytes, over log 2. A
byte of a character that only held-out text has costs what the model gives the unknown token, and the 8 bits that say
which byte it is; `nats_per_token` is then the loss of other character-level models. With `objective="masked"` (15 % of
the tokens, of which 80 % become the mask token, 10 % any token and 10 % stay, as in BERT) `error` is masked-LM bits per
byte, given both sides: another quantity, not to be compared with the first.

Training windows begin anywhere in the training part. Held-out windows tile their part, so that every token but the
first of a segment is scored once; where a part has more windows than `HELD_OUT_WINDOWS`, that many are spread
evenly over it. Text that occurs twice in a corpus may be in two parts: nothing is deduplicated.
"""

import math
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from headwise.data import text
from headwise.data.ngrams import NONE, KneserNey, histories
from headwise.models import build
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import Batch, DataTask, Scores
from headwise.tasks.sequences import in_parts
from headwise.tasks.stream import Draw, Stream, sample_numbers

HELD_OUT_WINDOWS = 2048  # windows of one part that are scored, at most
NOT_SCORED = -100
CHOSEN, HIDDEN, REPLACED = 0.15, 0.8, 0.1
UNKNOWN_NATS = 8 * math.log(2)  # to say which byte an unknown token stands for
BIGRAM_TOKENS = 8 << 20  # tokens that the simple baseline learns from, at most: a second's work
NGRAM_TOKENS = 32 << 20  # the n-gram baselines learn from so many tokens at most: more do not fit a small memory
MASKED_GUESSES = 4 << 20  # candidates weighed by the masked baseline, at most; positions are spread evenly


class Text(DataTask):
    name: ClassVar[str] = "text"
    summary: ClassVar[str] = (
        "language modelling on any text, by bytes, characters or byte pairs: the general test of a shape"
    )
    usual_shape: ClassVar[str] = "w128-h4-L4"

    tokenizer: text.Tokenizer = Field(default="bytes", description="bytes, characters, or bpe: byte pairs")
    vocab: int = Field(default=1024, gt=256, le=65_536, description="number of tokens, with tokenizer bpe")
    objective: Literal["next", "masked"] = Field(default="next", description="which token is predicted")
    context: int = Field(default=256, gt=0, description="tokens a window has")
    field: str = Field(default="", description="column of the text in .jsonl, .parquet or a data set, if not text")

    @model_validator(mode="after")
    def _check(self) -> "Text":
        if self.objective == "masked" and self.context < 2:
            raise SpecError("a masked token is predicted from others: context must be at least 2")
        return self

    def spec(self) -> dict[str, Any]:
        """Without a field that is not given: keys of runs are older than this option."""
        return {name: value for name, value in super().spec().items() if name != "field" or value}

    def digest(self) -> str:
        return text.digest(self.source, self.field)

    @cached_property
    def corpus(self) -> text.Corpus:
        self.check_content()
        return text.open_corpus(self.source, self.tokenizer, self.vocab, self.field)

    @property
    def ahead(self) -> int:
        """Tokens a window has beyond its context: the last one's successor."""
        return int(self.objective == "next")

    @property
    def mask(self) -> int:
        """The number of the mask token, after all others."""
        return self._own_tokens

    @property
    def _own_tokens(self) -> int:
        if self.tokenizer == "characters":
            return self.corpus.vocab
        return self.vocab if self.tokenizer == "bpe" else text.BYTES

    @property
    def tokens(self) -> int:
        return self.context

    def samples(self, stream: Stream) -> int | None:
        return None if stream == "train" else len(self.held_out(stream)[0])

    # ---- batches

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        if stream == "train":
            draw = Draw(seed, stream, index)
            windows = self._windows(self._anywhere(draw, batch))
            counted = torch.full((batch,), self.context)
            inputs, labels = self._conceal(windows, draw) if self.objective == "masked" else _shifted(windows)
        else:
            starts, news = self.held_out(stream)
            which = sample_numbers(seed, stream, index, batch, len(starts))
            windows, counted = self._windows(starts[which]), torch.from_numpy(news[which])
            inputs, labels = self._hidden(stream, which, windows) if self.objective == "masked" else _shifted(windows)
        old = torch.arange(self.context) < self.context - counted[:, None]
        return inputs.to(device), labels.masked_fill(old, NOT_SCORED).to(device)

    def _windows(self, starts: Any) -> Tensor:
        places = starts[:, None] + np.arange(self.context + self.ahead)
        return torch.from_numpy(self.corpus.tokens[places].astype(np.int64))

    def _anywhere(self, draw: Draw, batch: int) -> Any:
        """Starts of windows that lie within a training segment, each as likely as any other."""
        first, rooms = self._rooms
        number = draw.integers(0, int(rooms[-1]), batch).numpy()
        segment = np.searchsorted(rooms, number, side="right") - 1
        return first[segment] + number - rooms[segment]

    @cached_property
    def _rooms(self) -> tuple[Any, Any]:
        """Where training segments begin, and how many windows there are before each."""
        segments = self.corpus.segments["train"]
        rooms = segments[:, 1] - segments[:, 0] - self.context - self.ahead + 1
        fits = rooms > 0
        if not fits.any():
            raise self._too_short("train")
        return segments[fits, 0], np.concatenate([[0], np.cumsum(rooms[fits])])

    def held_out(self, stream: Stream) -> tuple[Any, Any]:
        """Starts of the windows of a held-out part, and how many tokens at its end each scores."""
        return self._all_tiles[stream]

    @cached_property
    def _all_tiles(self) -> dict[Stream, tuple[Any, Any]]:
        return {"validation": self._tiles("validation"), "test": self._tiles("test")}

    def _tiles(self, part: text.Part) -> tuple[Any, Any]:
        """Starts of windows that tile the part's segments, and how many tokens at its end each is the first to score.

        The last window of a segment ends with it, and so overlaps the one before.
        """
        starts, news = [], []
        for first, last in self.corpus.segments[part].tolist():
            whole, rest = divmod(last - first - self.ahead, self.context)
            if whole:
                starts += [first + i * self.context for i in range(whole)]
                starts += [last - self.ahead - self.context] * (rest > 0)
                news += [self.context] * whole + [rest] * (rest > 0)
        if not starts:
            raise self._too_short(part)
        spread = np.linspace(0, len(starts) - 1, min(len(starts), HELD_OUT_WINDOWS)).astype(np.int64)
        return np.array(starts)[spread], np.array(news)[spread]

    def _too_short(self, part: text.Part) -> SpecError:
        needs = self.context + self.ahead
        longest = int(np.max(self.corpus.segments[part] @ [-1, 1]))
        return SpecError(
            f"{self.source or 'the corpus'} is too short: its longest stretch of {part} text has {longest} tokens, and "
            f"a context of {self.context} needs {needs}; give more text or a shorter context"
        )

    # ---- masked tokens

    def _conceal(self, windows: Tensor, draw: Draw) -> Batch:
        chosen, fate = draw.uniform(*windows.shape) < CHOSEN, draw.uniform(*windows.shape)
        other = draw.integers(0, self._own_tokens, *windows.shape)
        seen = torch.where(fate < HIDDEN, self.mask, torch.where(fate < HIDDEN + REPLACED, other, windows))
        return torch.where(chosen, seen, windows), windows.masked_fill(~chosen, NOT_SCORED)

    def _hidden(self, stream: Stream, which: Any, windows: Tensor) -> Batch:
        """The same tokens of a held-out window are masked whatever batch it is in."""
        rows = [self._conceal(window[None], Draw(0, stream, i)) for i, window in zip(which, windows, strict=True)]
        inputs, labels = zip(*rows, strict=True)
        return torch.cat(inputs), torch.cat(labels)

    # ---- the model

    def default_options(self) -> ModelOptions:
        if self.objective == "next":
            return preset("nanochat", vocab=self._own_tokens)
        return preset("bert", vocab=self.mask + 1, context=self.context, segments=0, pooler=False, head="mlm")

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        wanted = self.default_options()
        if options.family != wanted.family or options.head != wanted.head:
            raise SpecError(
                f"objective '{self.objective}' needs a {wanted.family} with head '{wanted.head}', "
                f"not a {options.family} with head '{options.head}'"
            )
        if options.vocab < wanted.vocab:
            raise SpecError(f"this text has {wanted.vocab} tokens, but the model only {options.vocab}")
        return build(shape, options)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        total = F.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=NOT_SCORED, reduction="sum")
        return total / (labels != NOT_SCORED).sum().clamp_min(1)

    def training_loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        whole = in_parts(model)
        if whole is None:
            return super().training_loss(model, inputs, labels)
        scored = labels != NOT_SCORED
        return whole.token_loss(inputs, labels, scored / scored.sum().clamp_min(1))

    def scores(self, output: Tensor, labels: Tensor) -> Scores:
        nats = F.cross_entropy(output.mT, labels, ignore_index=NOT_SCORED, reduction="none")
        scored = labels != NOT_SCORED
        sizes = torch.from_numpy(self.corpus.sizes).to(labels.device)[labels.clamp_min(0)]
        nats = nats + UNKNOWN_NATS * (labels == self.corpus.unknown)
        return {
            "nats": nats.sum(-1),
            "tokens": scored.sum(-1),
            "bytes": (sizes * scored).sum(-1),
            "right": ((output.argmax(-1) == labels) & scored).sum(-1),
        }

    def metrics(self, scores: Scores) -> dict[str, float]:
        nats, tokens, size, right = (
            float(scores[name].double().sum()) for name in ("nats", "tokens", "bytes", "right")
        )
        bits = nats / size / math.log(2)
        name = "bits_per_byte" if self.objective == "next" else "bits_per_masked_byte"
        return {"error": bits, name: bits, "nats_per_token": nats / tokens, "accuracy": right / tokens}

    @property
    def metric_name(self) -> str:
        return "bits per byte" if self.objective == "next" else "masked-LM bits per byte"

    # ---- baselines

    def trivial_error(self) -> float:
        """The training part's frequency of each token, whatever stands around it."""
        return self._frequencies_error

    @cached_property
    def _frequencies_error(self) -> float:
        vocab = self.corpus.vocab
        counts = np.ones(vocab)  # one more than were seen: none has probability 0
        for piece in self.corpus.pieces("train"):
            counts += np.bincount(piece, minlength=vocab)
        labels = torch.cat([labels for _, labels in _test_batches(self)])
        wanted = np.bincount(labels[labels != NOT_SCORED], minlength=vocab)
        bits = 8 * int((labels == self.corpus.unknown).sum()) - (wanted * np.log2(counts / counts.sum())).sum()
        return float(bits / (wanted * self.corpus.sizes).sum())

    def simple_baseline(self) -> tuple[str, float]:
        """A bigram: what the token before tells, or with masked tokens the one on each side."""
        return "bigram" if self.objective == "next" else "bigrams from both sides", _bigram_error(self)

    def baselines(self) -> dict[str, float]:
        """Kneser-Ney n-grams: of the tokens before, also those before a window's start, which a model does not see.

        For masked tokens they use both sides.
        """
        orders = (3, 5) if self.corpus.vocab <= text.BYTES else (3,)
        return {f"{order}-gram, Kneser-Ney": _ngram_error(self, order, NGRAM_TOKENS) for order in orders}


def _shifted(windows: Tensor) -> Batch:
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def _test_batches(task: Text) -> list[Batch]:
    return [task.draw(0, "test", index, 256) for index in range(-(-len(task.held_out("test")[0]) // 256))]


@lru_cache(maxsize=16)
def _bigram_error(task: Text) -> float:
    return _ngram_error(task, 2, BIGRAM_TOKENS)


def _ngram_error(task: Text, order: int, most: int) -> float:
    """The test error of n-grams learned from so many tokens of the training part, evenly thinned where it has more."""
    corpus = task.corpus
    segments = corpus.segments["train"]
    every = max(1, -(-int((segments @ [-1, 1]).sum()) // most))
    known = [np.asarray(corpus.tokens[first:last]) for first, last in segments[::every]]
    wanted, chances = (_next_chances if task.objective == "next" else _masked_chances)(task, known, order)
    nats = UNKNOWN_NATS * (wanted == corpus.unknown).sum() - np.log(chances).sum()
    return float(nats / corpus.sizes[wanted].sum() / math.log(2))


def _next_chances(task: Text, known: list[Any], order: int) -> tuple[Any, Any]:
    """Every scored token of the test part, and its probability after those before it."""
    corpus = task.corpus
    model = KneserNey(known, corpus.vocab, order)
    starts, news = task.held_out("test")
    segments = corpus.segments["test"]
    begins = segments[np.searchsorted(segments[:, 0], starts, side="right") - 1, 0]
    ends = starts + 1 + task.context
    places = np.concatenate([np.arange(end - new, end) for end, new in zip(ends, news, strict=True)])
    wanted = corpus.tokens[places].astype(np.int64)
    return wanted, model.probabilities(histories(corpus.tokens, places, np.repeat(begins, news), order), wanted)


def _masked_chances(task: Text, known: list[Any], order: int) -> tuple[Any, Any]:
    """p(token | left) · p(token | right) / p(token), normalised; neighbours count up to the first masked one.

    A token that is shown may be the right one: it is given the half that the 10 % left as they are make of the 20 %.
    """
    vocab = task.corpus.vocab
    sides = [KneserNey(known, vocab, order), KneserNey([segment[::-1] for segment in known], vocab, order)]
    inputs, labels = (torch.cat(part).numpy() for part in zip(*_test_batches(task), strict=True))
    rows, columns = np.nonzero(labels != NOT_SCORED)
    spread = np.linspace(0, len(rows) - 1, min(len(rows), max(1, MASKED_GUESSES // vocab))).astype(np.int64)
    rows, columns = rows[spread], columns[spread]
    seen = np.where(inputs == task.mask, NONE, inputs)
    around = np.pad(seen, ((0, 0), (order - 1, order - 1)), constant_values=NONE)
    lefts = around[rows[:, None], columns[:, None] + np.arange(order - 1)]
    rights = around[rows[:, None], columns[:, None] + np.arange(2 * order - 2, order - 1, -1)]
    alone = _logs(sides[0], np.full((1, order - 1), NONE))
    guesses = _logs(sides[0], lefts) + _logs(sides[1], rights) - alone
    wanted = labels[rows, columns]
    chances = np.exp(guesses[np.arange(len(rows)), wanted] - np.logaddexp.reduce(guesses, axis=1))
    shown = seen[rows, columns]
    return wanted, np.where(shown == NONE, chances, 0.5 * chances + 0.5 * (shown == wanted))


def _logs(model: KneserNey, pasts: Any) -> Any:
    """(pasts, vocab): the logarithm of every token's probability after each history."""
    different, which = np.unique(pasts, axis=0, return_inverse=True)
    tokens = np.arange(model.vocab)
    rows = [model.probabilities(np.broadcast_to(past, (model.vocab, len(past))), tokens) for past in different]
    return np.log(np.stack(rows))[which.reshape(-1)]


TASK = Text
