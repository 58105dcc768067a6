"""Constructions are ordinary models: each is evaluated as one, and compared with what is known about it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom

from headwise.models import build
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import load_task
from headwise.tasks.nearest_neighbor import NearestNeighbor
from headwise.theory.bounds import free_bound, graded_bound, scalar_bound
from headwise.theory.constructions import _points, asymptotic_error, construct, soft_error, vote_error
from headwise.theory.needs import CONSTRUCTIONS, needed
from headwise.theory.random_features import draw_heads
from headwise.theory.sphere import alternating_sign, zonal_spectrum
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run


def built(begin, dim, heads=1, rank=1, seed=0):
    """The task, the model as its construction begins, and what is known of it."""
    shape, options, task = needed(begin, dim, heads, rank)
    task = load_task(task)
    model = task.build(ModelShape.parse(shape), options)
    return task, model, construct(begin, model, seed)


@torch.no_grad()
def measured(task, model, samples=8192, batch=1024, seed=0):
    """The mean error and its standard error, on an ordinary test stream."""
    parts = [task.draw(seed, "test", index, batch) for index in range(math.ceil(samples / batch))]
    errors = torch.cat([task.scores(model(inputs), labels)["error"] for inputs, labels in parts]).double()
    return float(errors.mean()), float(errors.std()) / math.sqrt(len(errors))


def assert_as_predicted(begin, dim, heads=1, samples=8192, **more):
    task, model, known = built(begin, dim, heads, **more)
    error, scatter = measured(task, model, samples)
    assert error == pytest.approx(known["predicted_error"], abs=4 * scatter + 1e-6)
    return error


# ---- one full-rank head --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("points", [2, 16])
@pytest.mark.parametrize("layout", ["orthogonal", "uniform"])
def test_a_hard_full_rank_head_makes_no_error(points, layout):
    task, model, known = built({"name": "full-rank-head", "points": points, "layout": layout}, 16)
    assert measured(task, model, 512)[0] < 1e-10
    assert known == {"predicted_error": 0.0}


def test_a_hard_full_rank_head_finds_the_farthest_of_its_own_set():
    begin = {"name": "full-rank-head", "points": 16, "layout": "uniform", "farthest": True}
    task, model, _ = built(begin, 8)
    assert measured(task, model, 512)[0] < 1e-10


@pytest.mark.parametrize("dim", [2, 3, 8, 16, 64])
@pytest.mark.parametrize("beta", [0.5, 10.0, 100.0])
def test_the_error_of_softmax_between_two_points_is_exact(dim, beta):
    """The ordinary model on the ordinary task, and quadrature over t by another library."""
    assert_as_predicted({"name": "full-rank-head", "inverse_temperature": beta}, dim)
    peak = math.exp(math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2)) / math.sqrt(math.pi)

    def missed(psi):  # t = sin ψ
        return math.cos(psi) ** (dim - 2) * (1 - math.tanh(beta * math.sin(psi) / math.sqrt(2))) ** 2

    whole = quad(missed, 0, math.pi / 2, points=[min(1.0, 5 / beta)], epsabs=1e-12)[0]
    assert soft_error(dim, beta) == pytest.approx(peak * whole, abs=1e-10)


def test_the_error_of_softmax_at_known_places():
    found = [soft_error(16, beta) for beta in (10.0, 100.0, 1000.0)]
    assert found == pytest.approx([0.0809, 0.0083, 0.00083], rel=0.01)
    known = [asymptotic_error(16, 2, beta) for beta in (10.0, 100.0, 1000.0)]
    assert known == pytest.approx([0.0830, 0.0083, 0.00083], rel=0.005)


@given(st.integers(2, 300))
def test_between_two_points_the_asymptote_is_that_of_the_exact_error(dim):
    beta = 1e4 * math.sqrt(dim)
    assert soft_error(dim, beta) == pytest.approx(asymptotic_error(dim, 2, beta), rel=1e-4)


@pytest.mark.parametrize(("points", "expected"), [(2, 0.218), (8, 0.550), (16, 0.682), (64, 0.905)])
def test_both_layouts_have_one_limit_in_high_dimension(points, expected):
    for layout in ("orthogonal", "uniform"):
        assert asymptotic_error(10**5, points, math.sqrt(10**5), layout) == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize(
    ("dim", "points", "layout"), [(4, 2, "uniform"), (16, 2, "uniform"), (6, 5, "uniform"), (8, 8, "orthogonal")]
)
def test_the_asymptote_holds_in_every_dimension(dim, points, layout):
    """Where two points nearly tie is rare, so the sample is large, and drawn and weighed here."""
    random, beta, samples = np.random.default_rng(0), 40 * math.sqrt(dim), 100_000
    x = random.standard_normal((samples, points, dim))
    x = np.linalg.qr(x.transpose(0, 2, 1))[0].transpose(0, 2, 1) if layout == "orthogonal" else x
    x /= np.linalg.norm(x, axis=2, keepdims=True)
    y = random.standard_normal((samples, dim))
    logits = beta * np.einsum("snd,sd->sn", x, y / np.linalg.norm(y, axis=1, keepdims=True))
    weights = np.exp(logits - logits.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    weights[np.arange(samples), logits.argmax(1)] -= 1
    errors = np.sum(np.einsum("sn,snd->sd", weights, x) ** 2, axis=1)
    scatter = errors.std() / math.sqrt(samples)
    expected = asymptotic_error(dim, points, beta, layout)
    assert errors.mean() == pytest.approx(expected, abs=4 * scatter + 0.01 * expected)  # terms of the next order in 1/β


def test_many_points_and_self_search_follow_the_asymptote():
    """Known before, for 16 points in 64 dimensions that ask for their farthest: 0.541, 0.054 and 0.005."""
    for beta, expected in ((100.0, 0.054), (1000.0, 0.005)):
        begin = {"name": "full-rank-head", "points": 16, "layout": "uniform", "farthest": True}
        task, model, known = built(begin | {"inverse_temperature": beta}, 64)
        error, scatter = measured(task, model, 2048)
        assert error == pytest.approx(expected, abs=5 * scatter + 0.0005)
        assert error == pytest.approx(known["asymptotic_error"], abs=5 * scatter + 0.02 * error)


# ---- random heads --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dim", "heads", "keys"),
    [(8, 64, "uniform"), (8, 64, "independent"), (8, 64, "equal"), (16, 128, "uniform"), (3, 1, "uniform")],
)
def test_random_heads_have_the_error_of_the_closed_form(dim, heads, keys):
    error = assert_as_predicted({"name": "random-heads", "keys": keys}, dim, heads)
    assert error > scalar_bound(dim, 1, heads)


@pytest.mark.parametrize("values", ["scalar", "free"])
def test_fitted_values_agree_with_the_best_there_are(values):
    """The same heads: least squares on a sample can only be a little worse than the closed form; free values better."""
    best = built({"name": "random-heads", "keys": "uniform"}, 6, 24)[2]["predicted_error"]
    task, model, known = built({"name": "fitted-heads", "keys": "uniform", "values": values, "samples": 20_000}, 6, 24)
    error, scatter = measured(task, model)
    assert error == pytest.approx(known["fitted_error"], abs=5 * scatter + 0.01)
    if values == "scalar":
        assert best - 4 * scatter < error < best + 4 * scatter + 0.005
    else:
        assert free_bound(6, 1, 24) < error < best - 0.005


def test_fitted_values_are_a_minimum():
    """On the sample they were fitted to, the layer itself has the error that least squares says."""
    begin = {"name": "fitted-heads", "values": "free", "samples": 512}
    _, model, known = built(begin, 5, 3, rank=2)
    layer = model.body.blocks[0].attention
    points, query = _points(np.random.default_rng([0, 2]), 512, 2, 5)  # as the fit draws them
    wanted = points[np.arange(512), np.einsum("snd,sd->sn", points, query).argmax(1)]
    tokens = torch.from_numpy(np.concatenate([points, query[:, None]], axis=1)).float()

    def error():
        with torch.no_grad():
            return float((model(tokens)[:, 0] - torch.from_numpy(wanted)).square().sum(-1).mean())

    found = error()
    assert found == pytest.approx(known["fitted_error"], abs=1e-5)
    for _ in range(3):
        change = 0.02 * torch.randn_like(layer.output.weight)
        layer.output.weight.data += change
        assert error() > found
        layer.output.weight.data -= change


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_more_rank_helps_random_heads(rank):
    task, model, _ = built({"name": "fitted-heads", "keys": "equal", "samples": 8192}, 6, 32, rank)
    error, _ = measured(task, model)
    assert scalar_bound(6, rank, 32) < error < {1: 0.33, 2: 0.25, 3: 0.20}[rank]


# ---- biased nearest neighbours -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "points", "bias"), [(8, 2, 0.3), (8, 5, 0.3), (3, 3, -0.2)])
def test_one_biased_head_is_the_biased_search(dim, points, bias):
    task, model, _ = built({"name": "biased-heads", "points": points, "bias": bias}, dim)
    assert measured(task, model, 2048)[0] < 1e-10


@pytest.mark.parametrize(("dim", "jumps"), [(3, 7), (4, 9), (5, 11), (6, 13), (8, 21)])
def test_biased_heads_add_up_to_the_oscillating_target(dim, jumps):
    """One sample in thousands lies on a jump to single precision."""
    task, model, _ = built({"name": "biased-heads", "jumps": jumps}, dim)
    with torch.no_grad():
        inputs, labels = task.draw(0, "test", 0, 4096)
        misses = task.scores(model(inputs), labels)["error"]
    assert float(misses.median()) < 1e-10
    assert float((misses > 1e-6).double().mean()) < 5e-4


@pytest.mark.parametrize(("dim", "jumps", "beta"), [(4, 9, 100.0), (5, 11, 30.0), (6, 13, 5.0)])
def test_soft_biased_heads_have_the_error_of_the_closed_form(dim, jumps, beta):
    assert_as_predicted({"name": "biased-heads", "jumps": jumps, "inverse_temperature": beta}, dim)


@pytest.mark.parametrize(("dim", "jumps"), [(2, 3), (3, 7), (4, 9), (7, 5)])
def test_the_task_oscillates_as_the_theory_does(dim, jumps):
    """The task counts jumps, the theory takes the sign of a cosine (or sine) of the angle."""
    task = NearestNeighbor(
        dim=dim, points=2, layout="orthogonal", queries="separate", target="oscillating", jumps=jumps
    )
    tokens, labels = task.draw(0, "train", 0, 2000)
    first, second, query = tokens.double().unbind(1)
    t = ((first - second) * query).sum(-1) / math.sqrt(2)
    sign, places = alternating_sign(dim, jumps)
    wanted = torch.where(torch.from_numpy(sign(t.clamp(-1, 1).numpy()) > 0)[:, None], first, second)
    clear = (t[:, None] - torch.tensor(places)).abs().min(1).values > 1e-6
    assert clear.double().mean() > 0.99
    torch.testing.assert_close(labels[:, 0].double()[clear], wanted[clear])


@pytest.mark.parametrize("rank", [1, 2])
@pytest.mark.parametrize("values", ["scalar", "free"])
def test_low_rank_heads_learn_nothing_of_the_oscillating_target(rank, values):
    begin = {"name": "fitted-heads", "values": values, "thresholds": True, "target": "oscillating", "jumps": 13}
    task, model, known = built(begin | {"samples": 4096}, 6, 16, rank)
    error, scatter = measured(task, model)
    sign, places = alternating_sign(6, 13)
    assert error > graded_bound(6, rank, 16, zonal_spectrum(6, sign, 60, places), values=values) - 4 * scatter
    assert 0.49 < error < 0.5 + 0.05  # the points' mean has 1/2, which 16 heads come near to and cannot reach
    assert known["fitted_error"] == pytest.approx(error, abs=5 * scatter + 0.02)


# ---- the majority vote ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dim", "heads"), [(2, 1), (3, 11), (8, 101), (64, 101)])
def test_the_error_of_a_vote_is_exact(dim, heads):
    """Many families of few heads: the closed form is the mean over heads as well."""
    errors = []
    for seed in range(8):
        task, model, known = built({"name": "majority-vote"}, dim, heads, seed=seed)
        errors.append(measured(task, model, 1024, batch=256, seed=seed)[0])
    scatter = np.std(errors, ddof=1) / math.sqrt(8)
    assert np.mean(errors) == pytest.approx(known["predicted_error"], abs=5 * scatter)


@pytest.mark.parametrize(
    ("dim", "heads", "expected"),
    [(8, 101, 0.241), (8, 1001, 0.080), (8, 4001, 0.040), (64, 1001, 0.238), (64, 4001, 0.123)],
)
def test_the_error_of_a_vote_at_known_places(dim, heads, expected):
    assert vote_error(dim, heads) == pytest.approx(expected, abs=0.0006)
    assert vote_error(dim, heads) == pytest.approx(math.sqrt(dim / heads), rel=0.3)


@pytest.mark.parametrize(("dim", "heads"), [(3, 5), (8, 101), (20, 1001)])
def test_the_error_of_a_vote_by_another_quadrature(dim, heads):
    peak = math.exp(math.lgamma(dim / 2) - math.lgamma((dim - 1) / 2)) / math.sqrt(math.pi)

    def wrong(t):
        odds = binom.cdf((heads - 1) // 2, heads, 0.5 + math.asin(t) / math.pi)
        return 2 * peak * (1 - t * t) ** ((dim - 3) / 2) * odds

    whole = quad(wrong, 0, 1, points=[0.02, 0.1, 0.5], limit=200)[0]
    assert vote_error(dim, heads) == pytest.approx(2 * whole, abs=1e-9)


@pytest.mark.parametrize("farthest", [False, True])
@pytest.mark.parametrize("points", [3, 6])
def test_of_many_points_the_one_with_most_votes_is_fetched(points, farthest):
    """The same heads, counted by hand; where counts are equal, either point will do."""
    begin = {"name": "majority-vote", "points": points, "layout": "uniform", "farthest": farthest}
    task, model, known = built(begin, 7, 40, seed=3)
    assert known == {}
    tokens, _ = task.draw(0, "test", 0, 200)
    with torch.no_grad():
        fetched = model(tokens)[..., -7:].double().numpy()
    vectors = tokens[..., :7].double().numpy()
    directions = draw_heads(7, 40, "equal", seed=3).queries
    for sample, answers in zip(vectors, fetched, strict=True):
        asking = sample if farthest else sample[-1:]
        for query, answer in zip(asking, answers, strict=True):
            logits = (directions @ query)[:, None] * (directions @ sample[:points].T)
            votes = np.bincount((logits * (-1 if farthest else 1)).argmax(1), minlength=points)
            distances = np.linalg.norm(sample[:points] - answer, axis=1)
            assert votes[distances.argmin()] == votes.max()
            assert distances.min() < 1e-5


def test_a_vote_gets_harder_with_more_points():
    errors = []
    for points in (2, 4, 8):
        task, model, _ = built({"name": "majority-vote", "points": points}, 16, 101)
        errors.append(measured(task, model, 512, batch=128)[0])
    assert errors[0] < 0.6 * errors[1] < 0.6 * errors[2]


# ---- what fits, and what a run makes of it -------------------------------------------------------------------------

EXAMPLES = [
    ({"name": "full-rank-head"}, 8, 1, 1),
    ({"name": "full-rank-head", "inverse_temperature": 10.0}, 8, 1, 1),
    ({"name": "random-heads"}, 8, 5, 1),
    ({"name": "fitted-heads", "samples": 100}, 8, 5, 3),
    ({"name": "fitted-heads", "samples": 100, "thresholds": True}, 8, 5, 3),
    ({"name": "biased-heads", "jumps": 3}, 8, 1, 1),
    ({"name": "majority-vote"}, 8, 5, 1),
    ({"name": "majority-vote", "points": 5}, 8, 4, 1),
]


CHANGES = [{"residual": None}, {"hardmax": None}, {"norm": "rms-plain"}, {"bias": "all"}]
CHANGES += [{"mlp": 4}, {"depth": 3}, {"v_rank": 11}, {"kv_heads": 1}]


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
def test_every_construction_runs_as_an_ordinary_run(example):
    begin, dim, heads, rank = example
    shape, options, task = needed(begin, dim, heads, rank)
    result = train_run(Run(task=task, shape=shape, options=options, begin=begin, steps=0, recipe=Recipe(batch=1024)))
    assert result.status == "done", result.message
    known = built(begin, dim, heads, rank)[2]
    assert known.items() <= result.metrics.items()
    assert all(type(value) is float for value in known.values())


def test_every_construction_is_tried():
    assert {example[0]["name"] for example in EXAMPLES} == set(CONSTRUCTIONS)


@pytest.mark.parametrize("example", EXAMPLES, ids=str)
@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_models_that_do_not_fit_are_refused(example, change):
    begin, dim, heads, rank = example
    shape, options, _ = needed(begin, dim, heads, rank)
    name, value = next(iter(change.items()))
    if name in ModelOptions.model_fields:
        options = options.replace(**{name: value if value is not None else not getattr(options, name)})
    else:
        parsed = ModelShape.parse(shape)
        sizes = {field: getattr(parsed, field) for field in ("width", "heads", "qk_rank", "v_rank", "depth", "mlp")}
        if name == "kv_heads" and parsed.layers[0].heads == 1:
            pytest.skip("one head shares its keys with nobody")
        if parsed.depth > 1 and name == "depth":
            sizes |= {field: getattr(parsed.layers[0], field) for field in ("heads", "qk_rank", "v_rank")}
        shape = str(ModelShape(**sizes | change))
    model = build(shape, options)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(SpecError, match=rf"'{begin['name']}' needs a shape like w\d+-h.* with the options norm='none'"):
        construct(begin, model, 0)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_refusal_says_what_is_needed():
    with pytest.raises(SpecError) as refused:
        construct({"name": "random-heads"}, build("w8-h4"), 0)
    assert str(refused.value) == (
        "the construction 'random-heads' needs a shape like w8-h4-r1-v8-m0 with the options norm='none', "
        "residual=False, hardmax=True; this model is w8-h4 with norm='rms-plain', residual=True, hardmax=False"
    )


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        ({"name": "magic"}, "no construction 'magic'; there are full-rank-head, random-heads"),
        ({"name": "random-heads", "colour": 1}, "RandomHeads has no field 'colour'"),
        ({"name": "random-heads", "points": 3}, "points is 3"),
        ({"name": "full-rank-head", "inverse_temperature": -1.0}, "inverse_temperature is -1.0"),
        ({"name": "full-rank-head", "farthest": True}, "equally far from each other; use layout='uniform'"),
        ({"name": "biased-heads", "jumps": 4}, "odd number of heads adds up to one; use 5"),
        ({"name": "biased-heads", "jumps": 3, "bias": 0.5}, "leave points and bias out"),
        ({"name": "fitted-heads", "target": "oscillating", "jumps": 2}, "an odd number of jumps"),
        ({"name": "majority-vote"}, "4 heads may tie between two points; use 5"),
    ],
)
def test_impossible_constructions_are_refused(begin, message):
    with pytest.raises(SpecError, match=message):
        needed(begin, 8, 4)


def test_a_model_without_an_encoder_is_refused():
    with pytest.raises(SpecError, match="fills an encoder"):
        construct({"name": "random-heads"}, torch.nn.Linear(2, 2), 0)


@settings(max_examples=10)
@given(st.integers(2, 12), st.integers(1, 9), st.integers(0, 2**40))
def test_weights_follow_from_the_seed_alone(dim, heads, seed):
    outputs = []
    for noise in (1, 2):
        torch.manual_seed(noise)
        task, model, _ = built({"name": "random-heads"}, dim, heads, seed=seed)
        outputs.append(model(task.draw(0, "test", 0, 4)[0]))
    assert torch.equal(*outputs)


# ---- the task's further columns ------------------------------------------------------------------------------------


def test_known_specs_draw_what_they_drew():
    """Numbers drawn before tokens could have more columns."""
    known = {
        "self": NearestNeighbor(dim=4, points=3),
        "separate": NearestNeighbor(dim=4, points=3, queries="separate", layout="orthogonal", bias=0.2),
    }
    more = {"tags": True, "notes": 2, "answer": "apart"}
    for task in known.values():
        tokens, labels = task.draw(3, "train", 5, 6)
        wide, same = task.replace(**more).draw(3, "train", 5, 6)
        assert tokens.shape[-1] == 4
        assert wide.shape[-1] == task.replace(**more).width == 4 + 3 + 2 + 4
        assert torch.equal(wide[..., :4], tokens)
        assert torch.equal(labels, same)
        assert torch.equal(wide[:, :3, 4:7], torch.eye(3).expand(6, 3, 3))
        assert not wide[..., 7:].any()
        assert not wide[:, 3:, 4:].any()
        assert task.replace(**more).trivial_error() == task.trivial_error()


def test_the_answer_is_read_where_it_is_to_be():
    task = NearestNeighbor(dim=4, points=3, tags=True)
    _, labels = task.draw(0, "test", 0, 5)
    output = torch.cat([labels, torch.randn(5, 3, 3)], dim=-1)
    assert task.loss(output, labels) == 0
    apart = task.replace(answer="apart")
    assert apart.loss(torch.cat([torch.randn(5, 3, 7), labels], dim=-1), labels) == 0


@pytest.mark.parametrize(
    "options",
    [
        {"target": "oscillating"},
        {"target": "oscillating", "points": 2, "layout": "orthogonal", "queries": "separate", "jumps": 2},
        {"notes": -1},
    ],
)
def test_impossible_targets_are_refused(options):
    with pytest.raises(SpecError):
        NearestNeighbor(**options)


def test_a_width_without_the_further_columns_is_refused():
    with pytest.raises(SpecError, match="points of 4 dimensions with 3 columns more need width 7, not 4"):
        NearestNeighbor(dim=4, points=3, tags=True).build(ModelShape.parse("w4-h1"), ModelOptions())
