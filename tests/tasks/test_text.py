"""Language modelling: windows, masked tokens, bits per byte, and the predictors it has to beat."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.data.ngrams import KneserNey, histories
from headwise.data.text import PARTS
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import load_task, parse
from headwise.tasks.text import NOT_SCORED, Text
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "very", "old", "dog", "near", "house")
SHAPE = ModelShape.parse("w16-h2")


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Numbered words: every stretch of eight bytes or more stands in one place only."""
    place = tmp_path_factory.mktemp("text") / "story.txt"
    words = random.Random(0).choices(WORDS, k=4000)
    place.write_text(" ".join(f"{word}{number}" for number, word in enumerate(words)))
    return str(place)


def batches(task, stream, batch=7):
    return [task.draw(0, stream, index, batch) for index in range(math.ceil(task.samples(stream) / batch))]


# ---- windows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
@pytest.mark.parametrize("context", [5, 64])
def test_held_out_windows_score_every_token_but_the_first_once(source, tokenizer, context):
    task = Text(source=source, tokenizer=tokenizer, vocab=300, context=context)
    for stream in ("validation", "test"):
        found = [labels[labels != NOT_SCORED] for _, labels in batches(task, stream)]
        expected = [task.corpus.tokens[a + 1 : b] for a, b in task.corpus.segments[stream]]
        assert np.array_equal(torch.cat(found), np.concatenate(expected))


def test_many_windows_are_spread_over_a_part(source, monkeypatch):
    monkeypatch.setattr("headwise.tasks.text.HELD_OUT_WINDOWS", 10)
    task = Text(source=source, context=16)
    starts, _ = task.held_out("test")
    (first, last) = task.corpus.segments["test"][0]
    assert len(starts) == task.samples("test") == 10
    assert starts[0] == first
    assert starts[-1] == last - 17


def test_labels_are_the_inputs_one_later(source):
    inputs, labels = Text(source=source, context=32).draw(0, "train", 0, 50)
    assert torch.equal(inputs[:, 1:], labels[:, :-1])


@given(st.integers(0, 2**40), st.integers(0, 2**40))
def test_no_window_leaves_its_part(source, seed, index):
    """Found again in the text, where no stretch stands twice."""
    task = Text(source=source, context=40)
    everything = bytes(task.corpus.tokens)
    inputs, labels = task.draw(seed, "train", index, 4)
    for window, after in zip(inputs, labels, strict=True):
        data = bytes(window.tolist()) + bytes(after[-1:].tolist())
        at = everything.index(data)
        assert everything.count(data) == 1
        assert any(first <= at and at + 41 <= last for first, last in task.corpus.segments["train"])


def test_training_windows_begin_everywhere(source):
    """Every start that there is, as often as any other."""
    task = Text(source=source, context=400)
    rooms = sum(last - first - 400 for first, last in task.corpus.segments["train"])
    everything = bytes(task.corpus.tokens)
    inputs, _ = task.draw(0, "train", 0, 4000)
    starts = np.array([everything.index(bytes(row[:20].tolist())) for row in inputs])
    assert rooms * 0.95 < len(np.unique(starts)) / (1 - math.exp(-4000 / rooms)) < rooms * 1.05
    for first, last in task.corpus.segments["train"]:
        share = ((first <= starts) & (starts < last)).mean()
        assert share == pytest.approx((last - first - 400) / rooms, abs=0.04)


def test_a_context_that_does_not_fit_is_refused(source):
    with pytest.raises(SpecError, match=r"is too short: .* 5000 needs 5001; give more text or a shorter context"):
        Text(source=source, context=5000).draw(0, "validation", 0, 1)


def test_other_data_than_planned_is_refused(tmp_path):
    place = tmp_path / "mine.txt"
    place.write_text("some text " * 1000)
    task = parse(f"text:{place},context=16")
    assert task.content
    task.draw(0, "train", 0, 1)
    place.write_text("other text " * 1000)
    with pytest.raises(SpecError, match="not the data this run was planned with"):
        load_task(task.spec()).draw(0, "train", 0, 1)


# ---- masked tokens -------------------------------------------------------------------------------------------------


def test_tokens_are_hidden_as_bert_does(source):
    task = Text(source=source, objective="masked", context=128)
    inputs, labels = task.draw(0, "train", 0, 400)
    chosen = labels != NOT_SCORED
    assert chosen.float().mean() == pytest.approx(0.15, abs=0.005)
    hidden, same = inputs[chosen] == task.mask, inputs[chosen] == labels[chosen]
    assert hidden.float().mean() == pytest.approx(0.8, abs=0.015)
    assert same.float().mean() == pytest.approx(0.1 + 0.1 / 256, abs=0.01)
    other = inputs[chosen][~hidden & ~same]
    assert len(other.unique()) > 200, "any token may take its place"
    rest = torch.where(chosen, labels, inputs)
    everything = bytes(task.corpus.tokens)
    assert all(bytes(row.tolist()) in everything for row in rest)


def test_what_is_hidden_does_not_depend_on_the_batch(source):
    task = Text(source=source, objective="masked", context=64)
    together = [torch.cat(part) for part in zip(*batches(task, "test", 7), strict=True)]
    alone = [torch.cat(part) for part in zip(*batches(task, "test", 1), strict=True)]
    assert all(torch.equal(a, b) for a, b in zip(together, alone, strict=True))


def test_a_masked_window_without_a_hidden_token_has_no_loss(source):
    task = Text(source=source, objective="masked")
    nothing = torch.full((2, 256), NOT_SCORED)
    assert task.loss(torch.zeros(2, 256, 257), nothing) == 0


# ---- metrics -------------------------------------------------------------------------------------------------------


def test_knowing_nothing_costs_eight_bits_a_byte(source):
    task = Text(source=source)
    found = [task.scores(torch.zeros(*labels.shape, 256), labels) for _, labels in batches(task, "test")]
    metrics = task.metrics({name: torch.cat([row[name] for row in found]) for name in found[0]})
    assert metrics["error"] == metrics["bits_per_byte"] == pytest.approx(8, abs=1e-5)
    assert metrics["nats_per_token"] == pytest.approx(math.log(256), abs=1e-5)


def test_pairs_are_paid_by_their_bytes(source):
    task = Text(source=source, tokenizer="bpe", vocab=300)
    found = [task.scores(torch.zeros(*labels.shape, 300), labels) for _, labels in batches(task, "test")]
    metrics = task.metrics({name: torch.cat([row[name] for row in found]) for name in found[0]})
    scored = np.concatenate([task.corpus.tokens[a + 1 : b] for a, b in task.corpus.segments["test"]])
    assert metrics["error"] == pytest.approx(math.log2(300) * len(scored) / task.corpus.sizes[scored].sum(), rel=1e-5)


@pytest.mark.parametrize("objective", ["next", "masked"])
@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_the_trivial_error_is_that_of_the_frequencies(source, tokenizer, objective):
    """A model that outputs the logarithms of the training part's counts has it."""
    task = Text(source=source, tokenizer=tokenizer, vocab=300, objective=objective, context=64)
    train = np.concatenate([task.corpus.tokens[a:b] for a, b in task.corpus.segments["train"]])
    logits = torch.tensor([math.log(1 + (train == token).sum()) for token in range(task.corpus.vocab)])
    found = [task.scores(logits.expand(*labels.shape, -1), labels) for _, labels in batches(task, "test")]
    metrics = task.metrics({name: torch.cat([row[name] for row in found]) for name in found[0]})
    assert task.trivial_error() == pytest.approx(metrics["error"], rel=1e-5)


# ---- baselines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", ["bytes", "bpe"])
def test_ngrams_are_measured_on_the_same_tokens(source, tokenizer):
    task = Text(source=source, tokenizer=tokenizer, vocab=300, context=50)
    corpus = task.corpus
    model = KneserNey([corpus.tokens[a:b] for a, b in corpus.segments["train"]], corpus.vocab, 3)
    nats = size = 0.0
    for first, last in corpus.segments["test"]:
        for place in range(first + 1, last):
            past = histories(corpus.tokens, [place], [first], 3)
            nats -= math.log(model.probabilities(past, corpus.tokens[place : place + 1].astype(int))[0])
            size += corpus.sizes[corpus.tokens[place]]
    assert task.baselines()["3-gram, Kneser-Ney"] == pytest.approx(nats / size / math.log(2))


def test_neighbours_tell_something_and_both_sides_more(source):
    task = Text(source=source, context=64)
    one, both = task.baselines(), task.replace(objective="masked").baselines()
    assert all(both[name] < one[name] < task.trivial_error() for name in both)


# ---- models --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["next", "masked"])
def test_a_model_learns(source, objective):
    task = Text(source=source, context=32, objective=objective)
    recipe = Recipe(batch=16, learning_rate=0.01)
    run = Run(
        task=task.spec(), shape="w32-h2-L1", options=task.default_options(), recipe=recipe, steps=60, evaluations=1
    )
    result = train_run(run)
    assert result.status == "done", result.message
    name = "bits_per_byte" if objective == "next" else "bits_per_masked_byte"
    assert result.metrics["error"] == result.metrics[name] < task.trivial_error()


def test_the_next_token_cannot_be_seen(source):
    task = Text(source=source, context=32)
    model = task.build(SHAPE, task.default_options())
    inputs, _ = task.draw(0, "train", 0, 2)
    changed = inputs.clone()
    changed[:, 20:] = 0
    assert torch.equal(model(inputs)[:, :20], model(changed)[:, :20])
    with pytest.raises(SpecError, match="objective 'next' needs a decoder"):
        task.build(SHAPE, Text(objective="masked").default_options())
    with pytest.raises(SpecError, match="has 256 tokens, but the model only 9"):
        task.build(SHAPE, task.default_options().replace(vocab=9))


def test_parts_do_not_overlap(source):
    """Stretches of one part, in a text where none stands twice, are in no other."""
    task = Text(source=source)
    pieces = {part: b"".join(bytes(piece) + b"\0" for piece in task.corpus.pieces(part)) for part in PARTS}
    for part in PARTS:
        for other in set(PARTS) - {part}:
            assert not any(pieces[part][i : i + 12] in pieces[other] for i in range(0, len(pieces[part]) - 12, 12))
