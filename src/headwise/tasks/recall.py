"""Associative recall with many queries (Arora et al., "Zoology"): tests whether heads can bind and look up.

A sequence opens with pairs of a key and its value; then each key is asked for once, and the label at that place is its
value (-100 elsewhere: not counted). Between queries stand random tokens. With key tokens in capitals:

    A x  C z  B y | C q  r x  A s  t z  B p
    . .  . .  . . | z .  . .  x .  . .  y .

Queries lie in slots of two tokens; slot i after the pairs is asked with weight i^(power - 1), as in the paper: most
queries come soon (power 0.01), or anywhere alike (power 1). Two things differ from the paper's sets, so that what is
measured is binding alone: which key is asked in which of the chosen slots is shuffled (there, earlier pairs tend to be
asked earlier), and a filler is never one of the sequence's keys (a second, false pair; rare with the paper's large
vocabulary, common with a small one).

Error is the part of all queries that is answered wrongly.
"""

from math import perm
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field, model_validator
from torch import Tensor, nn

from headwise.models import build
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import Batch, Scores, Task
from headwise.tasks.sequences import in_parts
from headwise.tasks.stream import Draw, Stream

UNCOUNTED = -100
FEWEST_SAMPLES = 2**40  # different ones, so that a trained-on sequence is never met again in a test
BASELINE_SAMPLES = 4096


class Recall(Task):
    name: ClassVar[str] = "recall"
    summary: ClassVar[str] = "give the value of a key seen before, for many keys: tests binding and look-up"
    usual_shape: ClassVar[str] = "w32-h1-L2"

    vocab: int = Field(default=128, gt=3, description="tokens: 0 for padding, then keys, and values as the upper half")
    length: int = Field(default=32, gt=3, multiple_of=2, description="of a sequence")
    pairs: int = Field(default=4, gt=0, description="most pairs of key and value in a sequence")
    fewest: int = Field(default=2, gt=0, description="least pairs; a sequence has the most, a half, a quarter, ...")
    power: float = Field(default=0.01, ge=0, le=1, description="of the gaps: near 0 queries come soon, 1 anywhere")

    @model_validator(mode="after")
    def _check(self) -> "Recall":
        keys = self.vocab // 2 - 1
        if self.fewest > self.pairs:
            raise SpecError(f"the fewest pairs are {self.fewest}, but the most only {self.pairs}")
        if self.pairs > keys:
            raise SpecError(f"{self.pairs} pairs need as many keys, and a vocabulary of {self.vocab} has {keys}")
        if 4 * self.pairs > self.length:
            raise SpecError(
                f"{self.pairs} pairs and their queries need a length of {4 * self.pairs}, not {self.length}"
            )
        fillers = self.length - 3 * self.fewest
        different = perm(keys, self.fewest) * perm(keys + 1, self.fewest) * (keys - 1) ** fillers
        if different < FEWEST_SAMPLES:
            raise SpecError("there are so few such sequences that a test repeats the training; use a larger vocab")
        return self

    @property
    def tokens(self) -> int:
        return self.length

    @property
    def counts(self) -> list[int]:
        """Numbers of pairs that a sequence may have, all equally likely; the largest first."""
        counts = [self.pairs]
        while counts[-1] // 2 >= self.fewest:
            counts.append(counts[-1] // 2)
        return counts

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        draw = Draw(seed, stream, index, device)
        most, half = self.pairs, self.vocab // 2
        pairs = torch.tensor(self.counts, device=device)[draw.integers(0, len(self.counts), batch)][:, None]
        keys = 1 + draw.uniform(batch, half - 1).topk(most).indices
        values = half + draw.uniform(batch, self.vocab - half).topk(most).indices
        slots = self._slots(draw, pairs)
        used = torch.arange(most, device=device) < pairs
        tokens = draw.integers(1, self.vocab, batch, self.length)
        false = (tokens[..., None] == torch.where(used, keys, 0)[:, None]).any(-1)
        tokens = torch.where(false, draw.integers(half, self.vocab, batch, self.length), tokens)
        labels = torch.full_like(tokens, UNCOUNTED)
        row, pair = used.nonzero(as_tuple=True)
        tokens[row, 2 * pair] = tokens[row, 2 * slots[used]] = keys[used]
        tokens[row, 2 * pair + 1] = labels[row, 2 * slots[used]] = values[used]
        return tokens, labels

    def _slots(self, draw: Draw, pairs: Tensor) -> Tensor:
        """(batch, most pairs) slots after the pairs, different ones; of a row only the first `pairs` count."""
        places = torch.arange(self.length // 2, device=pairs.device) - pairs + 1
        weights = places.clamp_min(1).float() ** (self.power - 1) * (places > 0)
        # the least of exponential times at these rates are a draw by weight without replacement
        times = -draw.uniform(*weights.shape).clamp_min(1e-12).log() / weights
        chosen = times.topk(self.pairs, largest=False).indices
        shuffled = draw.uniform(*chosen.shape) + (torch.arange(self.pairs, device=pairs.device) >= pairs)
        return chosen.gather(1, shuffled.argsort(1))

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        if options.family != "decoder" or options.vocab < self.vocab:
            given = f"family={options.family}, vocab={options.vocab}"
            raise SpecError(f"a model of recall needs family=decoder and vocab={self.vocab}, not {given}")
        return build(shape, options)

    def default_options(self) -> ModelOptions:
        return preset("nanochat", vocab=self.vocab, context=self.length)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy over each sequence's queries; sequences count alike."""
        losses = F.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=UNCOUNTED, reduction="none")
        return (losses.view_as(labels).sum(1) / (labels != UNCOUNTED).sum(1)).mean()

    def training_loss(self, model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
        whole = in_parts(model)
        if whole is None:
            return super().training_loss(model, inputs, labels)
        queries = labels != UNCOUNTED
        return whole.token_loss(inputs, labels, queries / (queries.sum(1, keepdim=True) * len(labels)))

    def scores(self, output: Tensor, labels: Tensor) -> Scores:
        return _scores(output.argmax(-1), labels)

    def metrics(self, scores: Scores) -> dict[str, float]:
        right, asked = scores["right"].double(), scores["asked"].double()
        accuracy = float(right.sum() / asked.sum())
        by_pairs = {
            f"accuracy_{pairs}_pairs": float(right[asked == pairs].sum() / asked[asked == pairs].sum())
            for pairs in self.counts
            if (asked == pairs).any()
        }
        return {"error": 1 - accuracy, "accuracy": accuracy} | by_pairs

    def trivial_error(self) -> float:
        """Of any value of the sequence's own: it knows what values are and where, but not whose. Each sequence then
        has one right answer on average, out of as many as it has pairs."""
        return 1 - len(self.counts) / sum(self.counts)

    def floor(self) -> float:
        return 0.0

    def baselines(self) -> dict[str, float]:
        """The value before the first query (no binding), and the look-up that the task asks for, in plain Python."""
        tokens, labels = self.draw(0, "test", 0, BASELINE_SAMPLES)
        asked = labels != UNCOUNTED
        last = tokens.gather(1, 2 * asked.sum(1, keepdim=True) - 1).expand_as(tokens)
        looked_up = torch.tensor([_look_up(row) for row in tokens.tolist()])
        answers = {"last value": last, "look-up": looked_up}
        return {name: self.metrics(_scores(answer, labels))["error"] for name, answer in answers.items()}


def _scores(answers: Tensor, labels: Tensor) -> Scores:
    return {"right": (answers == labels).sum(1), "asked": (labels != UNCOUNTED).sum(1)}


def _look_up(tokens: list[int]) -> list[int]:
    """At each token the one that followed it when it was first seen; 0 where it is new."""
    followed: dict[int, int] = {}
    answers = []
    for place, token in enumerate(tokens):
        answers.append(followed.get(token, 0))
        if place + 1 < len(tokens):
            followed.setdefault(token, tokens[place + 1])
    return answers


TASK = Recall
