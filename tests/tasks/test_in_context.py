"""In-context regression: labels against the covariance they must have, classical methods against other libraries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from headwise import cost
from headwise.layers.attention import Attention
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks.in_context import (
    STRENGTHS,
    TUNING_FITS,
    InContext,
    _averaging,
    _forest,
    _greedy_tree,
    _lasso,
    _least_squares,
    _nearest,
    _network,
    _on_signs,
    _ridge,
    _walk,
)
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run

KINDS = ["linear", "sparse", "tree", "relu"]


def prompts(task, batch, stream="test", index=0):
    tokens, y = task.draw(0, stream, index, batch)
    return tokens[:, 0::2], y


# ---- functions -----------------------------------------------------------------------------------------------------


def covariance(task, a, b):
    """E f(a)·f(b) over functions, in closed form; for networks it is the arc-cosine kernel of Cho and Saul."""
    if task.kind == "tree":
        return ((a > 0) == (b > 0)).double().mean(-1) ** task.tree_depth  # every question is answered alike
    product = (a * b).sum(-1)
    if task.kind == "relu":
        lengths = a.norm(dim=-1) * b.norm(dim=-1)
        angle = (product / lengths).clamp(-1, 1).acos()
        return lengths * (angle.sin() + (math.pi - angle) * angle.cos()) / math.pi
    return product * (task.sparsity / task.dim if task.kind == "sparse" else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_functions_have_the_covariance_of_their_kind(kind):
    task = InContext(kind=kind, dim=6, points=2, hidden=10)
    x, y = (tensor.double() for tensor in prompts(task, 60_000))
    for a, b in ((0, 0), (0, 1)):
        known = covariance(task, x[:, a], x[:, b])
        ratios = y[:, a] * y[:, b] * known / known.square().mean()  # their mean is that of the covariance to `known`
        error = ratios.std().item() / 60_000**0.5
        assert ratios.mean().item() == pytest.approx(1.0, abs=4 * error)
        assert error < 0.03


@pytest.mark.parametrize("kind", ["linear", "sparse"])
def test_linear_functions_are_linear_and_sparse_ones_sparse(kind):
    task = InContext(kind=kind, dim=9, points=12)
    x, y = prompts(task, 200)
    weights = torch.linalg.lstsq(x.double(), y.double()[..., None]).solution[..., 0]
    torch.testing.assert_close((x.double() @ weights[..., None])[..., 0], y.double(), atol=1e-5, rtol=0)
    counted = (weights.abs() > 1e-5).sum(-1)
    assert (counted == (3 if kind == "sparse" else 9)).all()
    assert weights[weights.abs() > 1e-5].var() == pytest.approx(1.0, abs=0.2)
    assert (weights.abs() > 1e-5).any(0).all()


@given(st.integers(1, 4), st.integers(0, 1000))
def test_trees_give_the_leaf_that_a_walk_by_hand_comes_to(depth, seed):
    numbers = np.random.default_rng(seed)
    questions, leaves = numbers.integers(0, 3, (2, 2**depth - 1)), numbers.standard_normal((2, 2**depth))
    x = numbers.standard_normal((2, 5, 3))

    def leaf(prompt, point, node, first, last):
        """Leaves first to last are under the node."""
        if last - first == 1:
            return leaves[prompt, first]
        middle = (first + last) // 2
        if x[prompt, point, questions[prompt, node]] > 0:
            return leaf(prompt, point, 2 * node + 2, middle, last)
        return leaf(prompt, point, 2 * node + 1, first, middle)

    found = _walk(*(torch.from_numpy(array) for array in (questions, leaves, x)))
    wanted = [[leaf(prompt, point, 0, 0, 2**depth) for point in range(5)] for prompt in range(2)]
    assert found.tolist() == wanted


def test_a_prompt_holds_examples_before_questions():
    task = InContext(dim=3, points=4)
    tokens, y = task.draw(0, "train", 0, 5)
    assert tokens.shape == (5, 7, 3)
    assert torch.equal(tokens[:, 1::2, 0], y[:, :-1])
    assert (tokens[:, 1::2, 1:] == 0).all()


# ---- errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_predicting_nothing_is_the_trivial_error(kind):
    task = InContext(kind=kind)
    _, y = task.draw(0, "test", 0, 20_000)
    errors = task.scores(torch.zeros_like(y), y)["error"].mean(1)
    assert errors.mean().item() == pytest.approx(task.trivial_error(), abs=5 * errors.std().item() / 20_000**0.5)
    assert task.loss(torch.zeros_like(y), y).item() == pytest.approx(errors.mean().item(), rel=1e-5)


def test_metrics_are_errors_after_so_many_examples():
    task = InContext(dim=8, points=9)
    output, labels = torch.zeros(2, 9), torch.arange(9.0).expand(2, 9)
    found = task.metrics(task.scores(output, labels))
    assert found == {
        "error": pytest.approx(204 / 9 / 8),
        **{f"error_at_{k}": pytest.approx(k * k / 8) for k in (0, 2, 4, 6, 8)},
    }


def test_least_squares_reaches_the_floor_at_every_number_of_examples():
    task = InContext(dim=6, points=10)
    errors = task.baselines_by_examples()["least squares"]
    for k, error in enumerate(errors):
        assert error == pytest.approx(max(0.0, 1 - k / 6), abs=0.12)
    assert max(errors[6:]) < 1e-6
    assert sum(errors) / 10 == pytest.approx(task.floor(), abs=0.03)
    assert task.baselines()["least squares"] == pytest.approx(sum(errors) / 10)


def test_the_paper_s_floor():
    assert InContext(dim=20, points=41).floor() == pytest.approx(10.5 / 41)
    assert InContext(kind="tree").floor() is None


# ---- classical methods ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("examples", [1, 2, 5, 9])
def test_classical_methods_agree_with_other_libraries(examples):
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor

    x, y = (tensor.double() for tensor in prompts(InContext(dim=5, points=10), 6))
    known, values, asking = x[:, :examples], y[:, :examples], x[:, examples]
    neighbours = KNeighborsRegressor(min(3, examples))
    found = {
        "least squares": _least_squares(known, values, asking),
        "ridge": _ridge(0.3)(known, values, asking),
        "nearest": _nearest(known, values, asking),
        "averaging": _averaging(known, values, asking),
    }
    for i, (a, b, q) in enumerate(zip(known.numpy(), values.numpy(), asking.numpy(), strict=True)):
        wanted = {
            "least squares": q @ np.linalg.pinv(a) @ b,
            "ridge": Ridge(alpha=0.3, fit_intercept=False).fit(a, b).predict(q[None])[0],
            "nearest": neighbours.fit(a, b).predict(q[None])[0],
            "averaging": q @ (a.T @ b) / examples,
        }
        assert {name: found[name][i].item() for name in wanted} == pytest.approx(wanted)


def error(task, predict, examples, count=200):
    x, y = (tensor.double() for tensor in prompts(task, count))
    missed = predict(x[:, :examples], y[:, :examples], x[:, examples]) - y[:, examples]
    return missed.square().mean().item() / task.variance


def test_few_weights_are_found_from_few_examples():
    """Lasso solves what least squares cannot: 12 examples, 20 unknowns, of which 2 are not 0."""
    task = InContext(kind="sparse", dim=20, points=13, sparsity=2)
    assert error(task, _lasso(1e-3), 12) < 0.05
    assert error(task, _least_squares, 12) > 0.2


def test_trees_are_learned_best_by_trees():
    task = InContext(kind="tree", dim=6, points=61)
    raw, on_signs = error(task, _greedy_tree(1), 60), error(task, _on_signs(_greedy_tree(1)), 60)
    forest = error(task, _on_signs(_forest()), 60, count=60)
    assert forest < 0.3
    assert on_signs < raw < error(task, _ridge(10.0), 60)


def test_networks_are_learned_best_by_networks():
    task = InContext(kind="relu", dim=4, points=31, hidden=20)
    assert error(task, _network(20), 30) < 0.5 * min(error(task, _ridge(1.0), 30), error(task, _nearest, 30))


@pytest.mark.parametrize(("dim", "points"), [(5, 11), (8, 30)])
def test_one_gradient_step_is_what_algebra_says(dim, points):
    """Of the best length after k examples, its weights leave (dim + 1) / (k + dim + 1) of the function."""
    name, error = InContext(dim=dim, points=points).simple_baseline()
    assert name == "one gradient step"
    assert error == pytest.approx(sum((dim + 1) / (k + dim + 1) for k in range(points)) / points, rel=0.04)


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("linear", set()),
        ("sparse", {"lasso"}),
        ("tree", {"greedy tree", "greedy tree on signs", "forest on signs"}),
        ("relu", {"network by gradient descent"}),
    ],
)
def test_every_kind_has_its_methods(kind, own, monkeypatch):
    monkeypatch.setattr("headwise.tasks.in_context.SLOW_FITS", 30)
    monkeypatch.setattr("headwise.tasks.in_context.TUNING_FITS", 30)
    found = InContext(kind=kind, points=3).baselines()
    assert set(found) == {"least squares", "ridge", "nearest neighbours", "averaging"} | own
    assert all(0 < value < 1000 for value in found.values())


def test_the_setting_of_a_method_is_the_best_on_validation():
    task = InContext(kind="tree", points=6)
    chosen = task._tuned(_ridge, STRENGTHS)
    count = max(1, TUNING_FITS // 6)
    errors = [sum(task._errors(_ridge(strength), count, "validation")) for strength in STRENGTHS]
    assert sum(task._errors(chosen, count, "validation")) == min(errors)
    assert min(errors) < errors[0]


@pytest.mark.slow
def test_a_small_model_learns_from_examples():
    """Beyond what needs no model; least squares, the floor, stays ahead of it."""
    task = InContext()
    recipe = Recipe(optimizer="muon", learning_rate=0.02, batch=64, clip=1.0)
    run = Run(task=task.spec(), shape=task.usual_shape, options=task.default_options(), recipe=recipe, steps=1500)
    found = train_run(run).metrics
    others = task.baselines()
    assert task.floor() < found["error"] < 0.5 * min(others["nearest neighbours"], others["averaging"], 1.0)
    assert found["error_at_10"] < 0.2 < found["error_at_1"]


# ---- curriculum ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "step", "dim", "points"),
    [
        ("linear", 0, 5, 11),
        ("linear", 1999, 5, 11),
        ("linear", 2000, 6, 13),
        ("sparse", 29_999, 19, 39),
        ("linear", 30_000, 20, 41),
        ("linear", 500_000, 20, 41),
        ("tree", 0, 5, 26),
        ("relu", 4000, 7, 36),
    ],
)
def test_a_curriculum_is_the_paper_s(kind, step, dim, points):
    task = InContext(kind=kind, dim=20, points=101 if kind in ("tree", "relu") else 41, curriculum=2000)
    tokens, y = task.draw(0, "train", step, 4)
    assert tokens.shape == (4, task.tokens, 20)
    assert (tokens[:, 0::2] != 0).any(0).any(0).tolist() == [True] * dim + [False] * (20 - dim)
    assert y.isfinite().all(0).tolist() == [True] * points + [False] * (task.points - points)
    assert task.draw(0, "validation", step, 4)[1].isfinite().all()


def test_points_that_are_not_counted_change_nothing():
    task = InContext(dim=8, points=15, curriculum=10)
    tokens, y = task.draw(0, "train", 0, 4)
    output = torch.randn(4, 15, requires_grad=True)
    loss = task.loss(output, y)
    assert loss.item() == pytest.approx(((output - y)[:, :11].square().mean() / 8).item())
    loss.backward()
    assert output.grad.isfinite().all()
    assert (output.grad[:, 11:] == 0).all()
    assert tokens.isfinite().all()


# ---- model ---------------------------------------------------------------------------------------------------------


def test_predictions_read_nothing_but_examples_before_them():
    task = InContext(dim=4, points=6)
    model = task.build(ModelShape.parse("w16-h2-L2"), task.default_options())
    tokens, _ = task.draw(0, "test", 0, 3)
    before = model(tokens)
    changed = tokens.clone()
    changed[:, 5:] += 1.0  # from the third example's value on
    after = model(changed)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert ((after - before)[:, 3:].abs() > 1e-4).all()


@pytest.mark.parametrize("shape", ["w16-h2-L2", "w24-h2-r8-g1-L1-m8"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_the_price_of_a_run_is_that_of_the_model(shape, positions):
    task = InContext(dim=4, points=6)
    shape, options = ModelShape.parse(shape), task.default_options().replace(positions=positions)
    model = task.build(shape, options)
    assert sum(p.numel() for p in model.parameters()) == cost.parameters(shape, options)["total"]
    for module in model.modules():
        if isinstance(module, Attention):
            module.path = "plain"
    tokens, _ = task.draw(0, "test", 0, 1)
    with FlopCounterMode(display=False) as counter:
        model(tokens)
    assert counter.get_total_flops() == cost.forward_flops(shape, options, task.tokens)


def test_the_paper_s_model_can_be_built():
    task = InContext(dim=20, points=41, curriculum=2000)
    model = task.build(ModelShape.parse("w256-h8-L12"), task.default_options())
    body = 12 * (12 * 256**2 + 13 * 256) + 2 * 256  # GPT-2's blocks and last norm
    assert sum(p.numel() for p in model.parameters()) == body + 256 * (20 + 81 + 1)
    assert model(task.draw(0, "train", 0, 2)[0]).shape == (2, 41)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"family": "encoder"}, "needs family=decoder, not encoder"),
        ({"vocab": 50}, "needs vocab=6, not 50"),
        ({"softcap": 15.0}, "needs softcap=0.0, not 15.0"),
        ({"context": 20}, "21 tokens do not fit a context of 20"),
    ],
)
def test_models_that_would_not_be_what_their_options_say_are_refused(changes, message):
    task = InContext()
    with pytest.raises(SpecError, match=message):
        task.build(ModelShape.parse("w16-h2"), task.default_options().replace(**changes))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sparse", "sparsity": 9}, "9 weights of 5 cannot be other than 0; use at most 5"),
        ({"points": 1}, "points is 1"),
        ({"kind": "cubic"}, "kind is 'cubic'"),
    ],
)
def test_impossible_tasks_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        InContext(**options)
