"""Language modelling: windows, masked tokens, bits per byte, and the predictors it has to beat."""

import math
import random
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.data.ngrams import NONE, KneserNey, histories
from headwise.data.text import PARTS, cut
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


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
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


def test_a_field_is_part_of_a_run_where_it_is_given(tmp_path):
    """And of none where it is not: keys are older than the option."""
    place = tmp_path / "mine.jsonl"
    place.write_text('{"title": "no", "body": "some words to read"}\n' * 500)
    task = parse(f"text:{place},field=body,context=16")
    assert load_task(task.spec()).draw(0, "train", 0, 1)[0].shape == (1, 16)
    assert bytes(task.corpus.tokens[:38]) == b"some words to read\n" * 2
    assert task.spec()["field"] == "body"
    assert "field" not in Text().spec()
    with pytest.raises(SpecError, match="columns of text: title, body"):
        parse(f"text:{place}")


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


@pytest.fixture
def with_unknown(tmp_path):
    """Of its held-out text only the test part has three characters of seven bytes more, and one of them twice."""
    place = tmp_path / "letters.txt"
    data = bytearray("".join(random.Random(0).choices("abcde \n", k=40_000)), "ascii")
    ((first, _),) = cut(40_000)["test"]
    data[first + 100 : first + 109] = "é€éü".encode()
    place.write_bytes(bytes(data[:-1]) + b"\n")
    return str(place)


def test_unknown_characters_are_paid_by_their_bytes(with_unknown):
    """A model that knows nothing gives each token the same; a byte of an unknown character costs 8 bits more."""
    task = Text(source=with_unknown, tokenizer="characters", context=64)
    assert task.default_options().vocab == 8
    found = [task.scores(torch.zeros(*labels.shape, 8), labels) for _, labels in batches(task, "test")]
    metrics = task.metrics({name: torch.cat([row[name] for row in found]) for name in found[0]})
    scored = sum(last - first - 1 for first, last in task.corpus.segments["test"])
    assert metrics["error"] == pytest.approx((3 * scored + 8 * 9) / scored, rel=1e-6)
    assert metrics["nats_per_token"] == pytest.approx(metrics["error"] * math.log(2))
    alone = task.replace(source=with_unknown, objective="masked")
    assert alone.mask == 8
    assert alone.default_options().vocab == 9


@pytest.mark.parametrize("objective", ["next", "masked"])
@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_the_trivial_error_is_that_of_the_frequencies(source, tokenizer, objective):
    """A model that outputs the logarithms of the training part's counts has it."""
    task = Text(source=source, tokenizer=tokenizer, vocab=300, objective=objective, context=64)
    train = np.concatenate([task.corpus.tokens[a:b] for a, b in task.corpus.segments["train"]])
    logits = torch.tensor([math.log(1 + (train == token).sum()) for token in range(task.corpus.vocab)])
    found = [task.scores(logits.expand(*labels.shape, -1), labels) for _, labels in batches(task, "test")]
    metrics = task.metrics({name: torch.cat([row[name] for row in found]) for name in found[0]})
    assert task.trivial_error() == pytest.approx(metrics["error"], rel=1e-5)


def test_the_trivial_error_pays_for_unknown_characters(with_unknown):
    task = Text(source=with_unknown, tokenizer="characters", context=64)
    train = np.concatenate([task.corpus.tokens[a:b] for a, b in task.corpus.segments["train"]])
    logits = torch.log(1 + torch.tensor(np.bincount(train, minlength=8)))
    found = [task.scores(logits.expand(*labels.shape, -1), labels) for _, labels in batches(task, "test")]
    metrics = task.metrics({name: torch.cat([row[name] for row in found]) for name in found[0]})
    assert task.trivial_error() == pytest.approx(metrics["error"], rel=1e-5)


# ---- baselines -----------------------------------------------------------------------------------------------------


def bigram_by_hand(train, scored, vocab):
    """Interpolated Kneser-Ney of two tokens, from dictionaries: the probability of each (before, token)."""
    pairs = Counter(pair for segment in train for pair in pairwise(segment))
    endings = Counter(token for _, token in pairs)

    def discounts(counts):
        seen = Counter(counts.values())
        share = seen[1] / (seen[1] + 2 * seen[2]) if all(seen[i] for i in (1, 2, 3, 4)) else 0
        found = {i: i - (i + 1) * share * seen[i + 1] / seen[i] for i in (1, 2, 3)} if share else {1: 0}
        return found if min(found.values()) > 0 else {1: 0.5, 2: 1.0, 3: 1.5}

    of_pairs, of_endings = discounts(pairs), discounts(endings)
    begun, given = Counter(), Counter()
    for (before, _), count in pairs.items():
        begun[before] += count
        given[before] += of_pairs[min(count, 3)]
    spare = sum(of_endings[min(count, 3)] for count in endings.values()) / endings.total()

    def probability(before, token):
        count = endings[token]
        lower = (count - of_endings[min(count, 3)] if count else 0) / endings.total() + spare / vocab
        if not begun[before]:
            return lower
        count = pairs[before, token]
        return (count - of_pairs[min(count, 3)] if count else 0) / begun[before] + given[before] / begun[before] * lower

    return [probability(*pair) for pair in scored]


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_the_bigram_is_what_counting_says(source, with_unknown, tokenizer):
    place = with_unknown if tokenizer == "characters" else source
    task = Text(source=place, tokenizer=tokenizer, vocab=300, context=50)
    corpus = task.corpus
    train, test = ([corpus.tokens[a:b].tolist() for a, b in corpus.segments[part]] for part in ("train", "test"))
    scored = [pair for segment in test for pair in pairwise(segment)]
    bits = -np.log2(bigram_by_hand(train, scored, corpus.vocab)).sum() + 8 * sum(t == corpus.unknown for _, t in scored)
    name, error = task.simple_baseline()
    assert name == "bigram"
    assert error == pytest.approx(bits / sum(corpus.sizes[token] for _, token in scored), rel=1e-9)
    assert error < task.trivial_error()


def test_both_sides_are_weighed_as_bayes_would(source):
    """Of masked tokens, one at a time, with the two models' own probabilities."""
    task = Text(source=source, objective="masked", context=20)
    segments = [task.corpus.tokens[a:b] for a, b in task.corpus.segments["train"]]
    left, right = KneserNey(segments, 256, 2), KneserNey([segment[::-1] for segment in segments], 256, 2)
    inputs, labels = (torch.cat(part).numpy() for part in zip(*batches(task, "test"), strict=True))
    tokens, bits = np.arange(256), []
    for row, column in zip(*np.nonzero(labels != NOT_SCORED), strict=True):
        line = [NONE, *(NONE if token == task.mask else token for token in inputs[row]), NONE]
        sides = [
            model.probabilities(np.full((256, 1), line[at]), tokens)
            for model, at in ((left, column), (right, column + 2))
        ]
        chances = sides[0] * sides[1] / left.probabilities(np.full((256, 1), NONE), tokens)
        chances /= chances.sum()
        if line[column + 1] != NONE:
            chances = chances / 2 + (tokens == line[column + 1]) / 2
        bits.append(-np.log2(chances[labels[row, column]]))
    name, error = task.simple_baseline()
    assert name == "bigrams from both sides"
    assert error == pytest.approx(np.mean(bits), rel=1e-9)


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


@pytest.mark.parametrize("tokenizer", ["bytes", "characters"])
@pytest.mark.parametrize("objective", ["next", "masked"])
def test_a_model_learns(source, objective, tokenizer):
    task = Text(source=source, context=32, objective=objective, tokenizer=tokenizer)
    # BERT's first weights are small: masked tokens stay at their frequencies for some hundred steps
    rate, steps = (0.01, 60) if objective == "next" else (0.003, 400)
    settings = {"shape": "w32-h2-L1", "recipe": Recipe(batch=16, learning_rate=rate), "steps": steps, "evaluations": 1}
    result = train_run(Run(task=task.spec(), options=task.default_options(), **settings))
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
