"""Associative recall: sequences against a solver that reads them, gaps against their exact distribution."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import chisquare

from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks.recall import Recall, _scores
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run


def solve(tokens, pairs):
    """What each later key asks for, from the pairs alone."""
    known = dict(zip(tokens[0 : 2 * pairs : 2], tokens[1 : 2 * pairs : 2], strict=True))
    return [known.get(token, -100) if place >= 2 * pairs else -100 for place, token in enumerate(tokens)]


@given(
    st.integers(8, 300),
    st.integers(1, 12),
    st.integers(1, 4),
    st.integers(0, 20),
    st.sampled_from([0.01, 0.5, 1.0]),
)
def test_labels_are_what_a_solver_finds(vocab, pairs, fewest, spare, power):
    assume(fewest <= pairs < vocab // 2)
    length = 4 * pairs + 2 * spare
    try:
        task = Recall(vocab=vocab, length=length, pairs=pairs, fewest=fewest, power=power)
    except SpecError as error:
        assume("so few such sequences" not in str(error))
        raise
    tokens, labels = task.draw(3, "train", 5, 20)
    assert tokens.shape == labels.shape == (20, length)
    for row, wanted in zip(tokens.tolist(), labels.tolist(), strict=True):
        count = sum(label != -100 for label in wanted)
        assert count in task.counts
        keys, values = row[0 : 2 * count : 2], row[1 : 2 * count : 2]
        assert solve(row, count) == wanted
        assert len(set(keys)) == len(set(values)) == count
        assert all(0 < key < vocab // 2 <= value < vocab for key, value in zip(keys, values, strict=True))
        assert 0 not in row
        asked = Counter(token for token in row[2 * count :] if token in keys)
        assert asked == Counter(keys), "each key is asked for once, and no filler is a key"


def slots_of(task, batch):
    """(batch, pairs): the slot, after the pairs, in which each pair is asked for."""
    tokens, labels = task.draw(0, "test", 0, batch)
    values = tokens[:, 1 : 2 * task.pairs : 2]
    return (labels[:, None] == values[..., None]).int().argmax(-1) // 2 - task.pairs


@pytest.mark.parametrize("power", [0.01, 0.6, 1.0])
def test_gaps_follow_the_power_law(power):
    """One pair: the weights themselves. Two: a slot is drawn first, or second after another."""
    single = slots_of(Recall(pairs=1, fewest=1, length=20, power=power), 20_000)[:, 0]
    weights = np.arange(1, 10) ** (power - 1.0)
    weights /= weights.sum()
    assert chisquare(np.bincount(single, minlength=9), 20_000 * weights).pvalue > 1e-3

    both = slots_of(Recall(pairs=2, fewest=2, length=20, power=power), 20_000)
    weights = np.arange(1, 9) ** (power - 1.0)
    weights /= weights.sum()
    second = [sum(weights[j] * p / (1 - weights[j]) for j in range(8) if j != i) for i, p in enumerate(weights)]
    found = np.bincount(both.flatten(), minlength=8) / 20_000
    np.testing.assert_allclose(found, weights + np.array(second), atol=0.015)


def test_which_pair_is_asked_first_says_nothing():
    slots = slots_of(Recall(pairs=3, fewest=3), 20_000)
    orders = Counter(tuple(order) for order in slots.argsort(1).tolist())
    assert len(orders) == 6
    assert chisquare(list(orders.values())).pvalue > 1e-3


def test_numbers_of_pairs_are_equally_likely():
    task = Recall(pairs=12, fewest=3, length=64)
    assert task.counts == [12, 6, 3]
    _, labels = task.draw(0, "train", 0, 9000)
    counts = Counter((labels != -100).sum(1).tolist())
    assert set(counts) == {3, 6, 12}
    assert chisquare(list(counts.values())).pvalue > 1e-3


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pairs", "fewest"), [(8, 2), (8, 8), (4, 1)])
def test_the_trivial_error_is_that_of_any_value_of_the_sequence(pairs, fewest):
    task = Recall(pairs=pairs, fewest=fewest, length=64)
    tokens, labels = task.draw(0, "test", 0, 20_000)
    counts = (labels != -100).sum(1, keepdim=True)
    guessed = (torch.rand(labels.shape) * counts).long()
    scores = _scores(tokens.gather(1, 2 * guessed + 1), labels)
    assert task.metrics(scores)["error"] == pytest.approx(task.trivial_error(), abs=0.01)


def test_the_trivial_error_of_one_number_of_pairs():
    assert Recall(pairs=8, fewest=8, length=64).trivial_error() == pytest.approx(7 / 8)
    assert Recall(pairs=8, fewest=2, length=64).trivial_error() == pytest.approx(1 - 3 / 14)


def test_a_look_up_is_right_everywhere_and_the_last_value_by_chance():
    found = Recall().baselines()
    assert found["look-up"] == Recall().floor() == 0
    assert found["last value"] == pytest.approx(Recall().trivial_error(), abs=0.02)


def test_metrics_by_the_number_of_pairs():
    task = Recall(pairs=8, length=64)
    labels = torch.full((3, 64), -100)
    labels[0, [10, 20]], labels[1, [10, 20]], labels[2, [40, 50, 60, 62]] = 70, 70, 71
    logits = torch.zeros(3, 64, 128)
    logits[:, :, 70] = 1.0
    logits[1, 20, 99] = 2.0
    found = task.metrics(task.scores(logits, labels))
    assert found == pytest.approx(
        {"error": 1 - 3 / 8, "accuracy": 3 / 8, "accuracy_2_pairs": 3 / 4, "accuracy_4_pairs": 0.0}
    )


def test_the_loss_is_the_mean_of_its_parts():
    """So that a batch computed in parts is the same batch."""
    task = Recall(pairs=8, length=64)
    _, labels = task.draw(0, "train", 0, 8)
    logits = torch.randn(8, 64, 128, dtype=torch.float64)
    chances = logits.log_softmax(-1)
    by_hand = []
    for row, wanted in zip(chances, labels.tolist(), strict=True):
        asked = [(place, label) for place, label in enumerate(wanted) if label != -100]
        by_hand.append(sum(-row[place, label].item() for place, label in asked) / len(asked))
    assert task.loss(logits, labels).item() == pytest.approx(sum(by_hand) / 8)
    halves = [task.loss(*half).item() for half in zip(logits.chunk(2), labels.chunk(2), strict=True)]
    assert sum(halves) / 2 == pytest.approx(sum(by_hand) / 8)


# ---- model and options ---------------------------------------------------------------------------------------------


def test_the_paper_s_largest_sets_can_be_drawn():
    task = Recall(vocab=8192, length=512, pairs=64, fewest=4)
    tokens, labels = task.draw(0, "train", 0, 16)
    assert tokens.max() > 8000
    assert solve(tokens[0].tolist(), int((labels[0] != -100).sum())) == labels[0].tolist()


@pytest.mark.slow
def test_a_small_model_learns_to_look_up():
    task = Recall()
    recipe = Recipe(optimizer="muon", learning_rate=0.02, batch=64, clip=1.0)
    run = Run(task=task.spec(), shape=task.usual_shape, options=task.default_options(), recipe=recipe, steps=800)
    assert train_run(run).metrics["error"] < 0.05


def test_other_models_are_refused():
    task = Recall()
    with pytest.raises(SpecError, match="needs family=decoder and vocab=128, not family=decoder, vocab=64"):
        task.build(ModelShape.parse("w16-h2"), task.default_options().replace(vocab=64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pairs": 9}, "9 pairs and their queries need a length of 36, not 32"),
        ({"pairs": 8, "vocab": 16}, "8 pairs need as many keys, and a vocabulary of 16 has 7"),
        ({"pairs": 1}, "the fewest pairs are 2, but the most only 1"),
        ({"length": 63}, "length is 63"),
        ({"vocab": 8, "pairs": 2, "length": 8}, "so few such sequences"),
    ],
)
def test_impossible_tasks_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        Recall(**options)
