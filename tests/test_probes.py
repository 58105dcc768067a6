"""Probes against numpy, autograd and closed forms; on other libraries' tensors; and that they disturb nothing."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import entropy
from torch import nn

from headwise import Attention, AttentionShape, MultiheadAttention, build, preset, probes
from headwise.attention import KVCache
from headwise.probes import PROBES, attention_entropy, head_overlap, measure, sharpness
from headwise.run import ProbeName
from headwise.spec import SpecError
from headwise.spectra import (
    EXACT_SIZE,
    TOLERANCE,
    condition_number,
    effective_rank,
    jacobian,
    jacobian_extremes,
    rank_of,
    singular_values,
)

sizes = st.integers(1, 7)
seeds = st.integers(0, 2**32 - 1)


def normal(seed, *size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def only(found):
    (value,) = found.values()
    return value


def layer_of(shape, **options):
    return Attention(AttentionShape.parse(shape), dtype=torch.float64, **options)


def geometric_mean(values):
    return math.exp(np.mean(np.log(values)))


# ---- singular values -----------------------------------------------------------------------------------------------


@given(sizes, sizes, seeds)
def test_condition_numbers_are_numpys(rows, columns, seed):
    matrix = normal(seed, rows, columns)
    assert float(condition_number(matrix)) == pytest.approx(np.linalg.cond(matrix.numpy()), rel=1e-6)


@given(st.integers(2, 7), sizes, seeds)
def test_centring_projects_the_mean_out(rows, columns, seed):
    matrix = normal(seed, rows, columns)
    basis = np.linalg.qr(np.hstack([np.ones((rows, 1)), np.eye(rows)[:, 1:]]))[0][:, 1:]  # at right angles to ones
    wanted = np.linalg.cond(basis.T @ matrix.numpy())
    assert float(condition_number(matrix, centred=True)) == pytest.approx(wanted, rel=1e-6)


def test_a_singular_matrix_has_an_infinite_condition_number():
    assert math.isinf(condition_number(torch.ones(3, 3)))
    assert math.isinf(condition_number(normal(0, 64, 3) @ normal(1, 3, 64)))
    assert math.isinf(condition_number(torch.zeros(2, 5)))
    assert math.isnan(condition_number(torch.ones(1, 5), centred=True))


@given(sizes, sizes, sizes, seeds)
def test_a_product_is_known_by_its_factors(rank, left, right, seed):
    a, b = normal(seed, 2, rank, left), normal(seed + 1, 2, rank, right)
    found = singular_values(a, b)
    whole = np.linalg.svd(a.numpy().transpose(0, 2, 1) @ b.numpy(), compute_uv=False)
    kept = min(found.shape[-1], whole.shape[-1])
    assert found.shape[-1] <= min(max(rank, left), max(rank, right))
    np.testing.assert_allclose(found[:, :kept], whole[:, :kept], atol=1e-12)
    assert float(found[:, kept:].sum() + whole[:, kept:].sum()) < 1e-12


def test_effective_ranks_by_hand():
    values = torch.tensor([2.0, 1.0], dtype=torch.float64)
    assert float(rank_of(values, "stable")) == pytest.approx(5 / 4)
    assert float(rank_of(values, "participation")) == pytest.approx(25 / 17)
    assert float(rank_of(values)) == pytest.approx(3 / 4 ** (1 / 3))  # exp(log 3 − 2/3 log 2)
    assert float(effective_rank(torch.diag(values) @ torch.linalg.qr(normal(0, 2, 2)).Q, "stable")) == pytest.approx(
        1.25
    )
    with pytest.raises(SpecError, match="no effective rank 'mood'; there are"):
        rank_of(values, "mood")


@pytest.mark.parametrize("form", ["entropy", "stable", "participation"])
def test_effective_rank_counts_equal_values(form):
    assert float(effective_rank(7 * torch.eye(5), form)) == pytest.approx(5)
    assert float(effective_rank(normal(0, 6, 1) @ normal(1, 1, 4), form)) == pytest.approx(1)
    assert float(effective_rank(torch.zeros(3, 3), form)) == 0


@given(sizes, sizes, seeds)
def test_effective_ranks_are_ordered(rows, columns, seed):
    stable, participation, shannon = (
        float(effective_rank(normal(seed, rows, columns), form)) for form in ("stable", "participation", "entropy")
    )
    assert 1 - 1e-12 <= stable <= participation + 1e-12
    assert participation <= shannon + 1e-12
    assert shannon <= min(rows, columns) + 1e-12


# ---- Jacobians -----------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.integers(2, 40), seeds)
def test_lanczos_finds_the_extremes_of_any_matrix(size, seed):
    """To the end; the values are those of a linear map, so numpy knows them."""
    matrix = normal(seed, size, size)
    values = np.linalg.svd(matrix.numpy(), compute_uv=False)
    found = jacobian_extremes(lambda x: matrix @ x, normal(seed + 1, size), exact_size=0, steps=size)
    assert found.largest == pytest.approx(values[0], abs=found.largest_error + 1e-9)
    assert found.smallest == pytest.approx(values[-1], abs=found.smallest_error + 1e-9)
    assert found.at_least <= values[0] / values[-1] * (1 + 1e-9)
    assert found.condition == pytest.approx(values[0] / values[-1], rel=2 * TOLERANCE)


@pytest.mark.parametrize("outliers", [[0.3], [30.0, 0.5]])
def test_lanczos_survives_values_that_cluster(outliers):
    """Where vectors are made orthogonal only once, rounding grows here until the range is far too wide."""
    values = torch.cat([1 + 0.01 * normal(0, 300).sigmoid(), torch.tensor(outliers, dtype=torch.float64)])
    found = jacobian_extremes(lambda x: values * x, torch.zeros_like(values), exact_size=0, steps=100)
    assert found.found
    assert 0 <= values.max() - found.largest + 1e-12 <= found.largest_error + 2e-12
    assert 0 <= found.smallest - values.min() + 1e-12 <= found.smallest_error + 2e-12


@pytest.mark.parametrize("steps", [1, 5, 20, 60])
@pytest.mark.parametrize("shape", ["w16-h4", "w16-h1", "w16-h8-r4"])
def test_lanczos_says_how_far_off_it_is(shape, steps):
    """Errors bound the distance to a true singular value, and the range never reaches beyond the true one."""
    layer, x = layer_of(shape, path="plain"), normal(1, 1, 6, 16)
    values = torch.linalg.svdvals(jacobian(lambda t: t + layer(t), x))
    found = jacobian_extremes(lambda t: t + layer(t), x, exact_size=0, steps=steps)
    for value, error in ((found.largest, found.largest_error), (found.smallest, found.smallest_error)):
        assert float((values - value).abs().min()) <= error + 1e-12
    assert found.largest <= values[0] + 1e-12
    assert found.smallest >= values[-1] - 1e-12
    assert found.at_least <= values[0] / values[-1] + 1e-9
    if found.found:
        assert found.condition == pytest.approx(float(values[0] / values[-1]), rel=2 * TOLERANCE)
    else:
        assert math.isnan(found.condition)


def test_lanczos_finds_a_residual_block_in_fewer_steps_than_it_has_inputs():
    layer, x = layer_of("w64-h4", path="plain"), normal(1, 1, 16, 64)
    wanted = jacobian_extremes(lambda t: t + layer(t), x)
    found = jacobian_extremes(lambda t: t + layer(t), x, exact_size=0, steps=400)
    assert found.found
    assert found.condition == pytest.approx(wanted.condition, rel=0.01)
    bare = jacobian_extremes(lambda t: layer(t), x, exact_size=0, steps=100)
    assert math.isnan(bare.condition)  # honestly not found
    assert bare.at_least < jacobian_extremes(lambda t: layer(t), x).condition


@pytest.mark.parametrize("exact_size", [0, 100])
def test_extremes_of_functions_that_are_simple(exact_size):
    def of(function):
        return jacobian_extremes(function, normal(0, 3, 4), exact_size=exact_size)

    assert of(lambda x: -3 * x).condition == pytest.approx(1)
    assert of(lambda x: -3 * x).largest == pytest.approx(3)
    assert math.isinf(of(lambda x: 0 * x).condition)
    assert math.isinf(of(lambda x: x - x.mean(0)).condition)
    assert of(lambda x: x + x.mean(0)).condition == pytest.approx(2)


def test_the_jacobian_is_autograds():
    layer, x = layer_of("w6-h2", causal=True), normal(0, 1, 4, 6)
    wanted = torch.autograd.functional.jacobian(layer, x).reshape(24, 24)
    layer.path = "plain"
    torch.testing.assert_close(jacobian(layer, x), wanted)


# ---- attention patterns --------------------------------------------------------------------------------------------


def test_uniform_attention_is_flat_and_shared():
    weights = torch.full((2, 3, 4, 5), 0.2, dtype=torch.float64)
    assert attention_entropy(weights) == pytest.approx(math.log(5))
    assert sharpness(weights) == pytest.approx(0.2)
    assert head_overlap(weights) == pytest.approx(1)


def test_heads_that_look_at_different_tokens_share_nothing():
    weights = torch.stack([torch.eye(4).roll(k, 0) for k in range(3)])
    assert attention_entropy(weights) == 0
    assert sharpness(weights) == 1
    assert head_overlap(weights) == 0
    assert math.isnan(head_overlap(weights[:1]))


def test_patterns_by_brute_force():
    weights = normal(0, 2, 3, 4, 5).softmax(-1)
    flat = weights.numpy()
    assert attention_entropy(weights) == pytest.approx(entropy(flat, axis=-1).mean())
    assert sharpness(weights) == pytest.approx(flat.max(-1).mean())
    pairs = [(a, b) for a in range(3) for b in range(a)]
    wanted = np.mean([1 - 0.5 * np.abs(flat[:, a] - flat[:, b]).sum(-1) for a, b in pairs])  # 1 − total variation
    assert head_overlap(weights) == pytest.approx(wanted)


# ---- layers with known answers -------------------------------------------------------------------------------------


def identity_layer(width=4, **options):
    """One head with Q = K = V = O = I."""
    layer = layer_of(f"w{width}-h1", **options)
    with torch.no_grad():
        layer.input.weight.copy_(torch.eye(width).repeat(3, 1))
        layer.output.weight.copy_(torch.eye(width))
    return layer


def test_attention_of_every_token_to_itself_is_the_identity():
    layer = identity_layer(inverse_temperature=1e6)
    x = torch.diag(torch.tensor([1.0, 1.0, 1.0, 2.0], dtype=torch.float64))[None]
    found = {name: only(measure(name, layer, x)) for name in PROBES}
    for name in ("heads-condition", "block-condition", "residual-block-condition"):
        assert found[name] == pytest.approx(2)
    for name in ("jacobian-condition", "residual-jacobian-condition", "qk-condition", "input-weight-condition"):
        assert found[name] == pytest.approx(1)
    for name in ("qk-rank", "vo-rank", "qk-stable-rank", "vo-participation-rank"):
        assert found[name] == pytest.approx(4)
    assert found["attention-entropy"] == pytest.approx(0)
    assert found["sharpness"] == pytest.approx(1)


def test_uniform_attention_has_rank_one_and_a_residual_derivative_of_condition_two():
    layer = identity_layer()
    with torch.no_grad():
        layer.input.weight[:4] = 0
    x = normal(0, 1, 5, 4)
    assert math.isinf(only(measure("heads-condition", layer, x)))
    assert math.isinf(only(measure("jacobian-condition", layer, x)))
    assert only(measure("residual-jacobian-condition", layer, x)) == pytest.approx(2)  # I + 11ᵀ/5
    assert only(measure("attention-entropy", layer, x)) == pytest.approx(math.log(5))


SHAPES = ["w12-h3", "w12-h2-r5-v3", "w12-h4-g2", "w12-h3-r4-c6-p2", "w12-h2-r4-c5-q7"]


@pytest.mark.parametrize("shape", SHAPES)
def test_conditions_are_those_of_the_layers_own_tensors(shape):
    layer, x = layer_of(shape, causal=True, rope_base=100.0, input_bias=True, output_scale=0.5), normal(0, 3, 5, 12)
    heads = []
    hook = layer.output.register_forward_hook(lambda _, inputs, output: heads.append(inputs[0]))
    output = layer(x).detach().numpy()
    hook.remove()
    heads = heads[0].detach().numpy()
    centred = heads - heads.mean(1, keepdims=True)
    least = [np.linalg.svd(m, compute_uv=False)[:4] for m in centred]
    wanted = {
        "heads-condition": geometric_mean([np.linalg.cond(m) for m in heads]),
        "centred-heads-condition": geometric_mean([values[0] / values[-1] for values in least]),
        "block-condition": geometric_mean([np.linalg.cond(m) for m in output]),
        "residual-block-condition": geometric_mean([np.linalg.cond(m) for m in x.numpy() + output]),
        "output-weight-condition": np.linalg.cond(layer.output.weight.detach().numpy()),
        "input-weight-condition": geometric_mean(
            [np.linalg.cond(weight.detach().numpy()) for weight, _ in layer.input_parts()]
        ),
    }
    for name, value in wanted.items():
        assert only(measure(name, layer, x)) == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize("shape", SHAPES)
def test_ranks_are_those_of_whole_matrices(shape):
    layer = layer_of(shape)
    for pair, matrices in (("qk", layer.qk_matrices()), ("vo", layer.vo_matrices())):
        matrices = matrices.detach()
        values = np.linalg.svd(matrices.numpy(), compute_uv=False)
        rank = int((values[0] > 1e-9).sum())
        wanted = {
            f"{pair}-rank": effective_rank(matrices).mean(),
            f"{pair}-stable-rank": (np.linalg.norm(matrices, axis=(1, 2)) ** 2 / values[:, 0] ** 2).mean(),
            f"{pair}-participation-rank": ((values**2).sum(1) ** 2 / (values**4).sum(1)).mean(),
            f"{pair}-condition": geometric_mean(values[:, 0] / values[:, rank - 1]),
        }
        for name, value in wanted.items():
            assert only(measure(name, layer, normal(0, 1, 2, 12))) == pytest.approx(float(value)), name


@pytest.mark.parametrize("options", [{}, {"causal": True, "rope_base": 100.0}, {"qk_norm": "rms", "logit_scale": True}])
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_jacobian_conditions_are_autograds(options, path):
    layer, x = layer_of("w8-h2", path=path, **options), normal(0, 2, 4, 8)
    bare = [torch.autograd.functional.jacobian(layer, sample[None]).reshape(32, 32) for sample in x]
    wanted = geometric_mean([np.linalg.cond(j.numpy()) for j in bare])
    assert only(measure("jacobian-condition", layer, x)) == pytest.approx(wanted, rel=1e-5)
    wanted = geometric_mean([np.linalg.cond(np.eye(32) + j.numpy()) for j in bare])
    assert only(measure("residual-jacobian-condition", layer, x)) == pytest.approx(wanted, rel=1e-5)


def test_large_jacobians_go_by_lanczos():
    layer, x = layer_of("w64-h4"), normal(0, 1, 33, 64)
    assert x.numel() > EXACT_SIZE
    found = only(measure("residual-jacobian-condition", layer, x))
    layer.path = "plain"
    assert found == pytest.approx(jacobian_extremes(lambda t: t + layer(t), x, exact_size=0, steps=600).condition)


# ---- models --------------------------------------------------------------------------------------------------------


class Padded(nn.Module):
    """BERT that takes token 0 for padding."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.bert = build("w8-h2-L2", preset("bert", vocab=16, context=8, dropout=0.1))

    def forward(self, tokens):
        return self.bert(tokens, padding=tokens != 0)


def models():
    tokens = torch.randint(1, 16, (3, 6))
    for name in ("nanochat", "gpt2", "llama"):
        yield build("w8-h2-L2", preset(name, vocab=16, context=8)), tokens
    yield build("w8-h2-r4-c6-p2-L1", preset("llama", vocab=16)), tokens
    yield build("w8-h4-g2-L1"), torch.randn(3, 6, 8)
    yield build("w8-h2-L1", preset("vit", image=8, patch=4, channels=1, classes=3)), torch.randn(3, 1, 8, 8)
    yield Padded(), tokens


def test_every_probe_runs_on_every_model():
    for model, inputs in models():
        depth = sum(isinstance(module, Attention) for module in model.modules())
        for name in PROBES:
            found = measure(name, model, inputs)
            assert list(found) == [f"{name}.layer{i}" for i in range(depth)]
            assert all(value >= 0 for value in found.values()), (name, found)


def test_names_are_known_everywhere():
    assert get_args(ProbeName) == tuple(PROBES)
    assert [name for name in PROBES if f"`{name}`" not in probes.__doc__] == []
    with pytest.raises(SpecError, match="no probe 'mood'; there are qk-rank"):
        measure("mood", Padded(), torch.ones(1, 2, dtype=torch.long))


@pytest.mark.parametrize("name", PROBES)
def test_padding_does_not_count(name):
    model = Padded()
    tokens = torch.randint(1, 16, (1, 5))
    longer = torch.cat([tokens, torch.zeros(1, 3, dtype=torch.long)], dim=1)
    wanted, found = measure(name, model, tokens), measure(name, model, longer)
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-3), key


def test_padding_may_differ_between_samples():
    model = Padded()
    tokens = torch.randint(1, 16, (2, 6))
    tokens[1, 4:] = 0
    for name in ("heads-condition", "residual-jacobian-condition"):
        alone = [measure(name, model, tokens[:1]), measure(name, model, tokens[1:, :4])]
        for key, value in measure(name, model, tokens).items():
            assert value == pytest.approx(geometric_mean([found[key] for found in alone]), rel=1e-3)


class Continued(nn.Module):
    """A causal layer that has seen the first tokens before, and looks at the last two."""

    def __init__(self, layer, before):
        super().__init__()
        self.layer, self.cache = layer, KVCache()
        self.layer(before, cache=self.cache)
        self.length = self.cache.length

    def forward(self, x):
        return self.layer(x, cache=self.cache)


@pytest.mark.parametrize("shape", ["w8-h2", "w8-h2-r4-c6-p2"])
def test_a_call_with_a_cache(shape):
    layer, x = layer_of(shape, causal=True, rope_base=100.0), normal(0, 1, 6, 8)
    _, weights = layer(x, need_weights=True)
    model = Continued(layer, x[:, :4])
    assert only(measure("sharpness", model, x[:, 4:])) == pytest.approx(sharpness(weights[:, :, 4:]))
    with pytest.raises(SpecError, match="a cache keeps no derivatives"):
        measure("jacobian-condition", Continued(layer, x[:, :4]), x[:, 4:])


class Odd(nn.Module):
    """Calls its first layer twice and its second never."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layer_of("w4-h2"), layer_of("w4-h2")

    def forward(self, x):
        return self.first(x=2 * self.first(x))


def test_layers_called_often_or_never():
    model, x = Odd(), normal(0, 1, 3, 4)
    found = measure("sharpness", model, x)
    assert list(found) == ["sharpness.layer0"]
    assert only(found) == only(measure("sharpness", model.first, 2 * model.first(x)))


# ---- nothing is disturbed ------------------------------------------------------------------------------------------


def state_of(model):
    """Everything about a model that probing could change: tensors, and the rest."""
    parameters = dict(model.named_parameters())
    gradients = {f"{name}.grad": p.grad.clone() for name, p in parameters.items() if p.grad is not None}
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modules = [(m.training, getattr(m, "path", None), len(m._forward_pre_hooks)) for m in model.modules()]
    kinds = [(id(p), p.requires_grad, p.dtype) for p in parameters.values()]
    return weights | gradients | {"random": torch.get_rng_state()}, [modules, kinds, torch.is_grad_enabled()]


def assert_same_state(model, before):
    tensors, rest = state_of(model)
    torch.testing.assert_close(tensors, before[0], rtol=0, atol=0)
    assert rest == before[1]


class Restless(nn.Module):
    """Draws random numbers even when evaluated, and breaks when it is told to."""

    def __init__(self):
        super().__init__()
        self.body, self.broken = build("w8-h2-L2", preset("gpt2", vocab=16, context=8, dropout=0.5)), False

    def forward(self, tokens):
        torch.rand(3)
        found = self.body(tokens)
        if self.broken:
            raise RuntimeError("the model broke")
        return found


@pytest.fixture
def restless():
    model = Restless().train()
    model.body.body.blocks[0].eval()  # a frozen part stays frozen
    tokens = torch.randint(0, 16, (3, 6))
    model(tokens).square().mean().backward()
    return model, tokens


@pytest.mark.parametrize("name", PROBES)
def test_probing_disturbs_nothing(restless, name):
    model, tokens = restless
    before = state_of(model)
    measure(name, model, tokens)
    assert_same_state(model, before)


@pytest.mark.parametrize("where", ["in the model", "in the probe"])
def test_not_even_when_something_breaks(restless, where, monkeypatch):
    model, tokens = restless
    before = state_of(model)
    if where == "in the model":
        model.broken = True
    else:
        monkeypatch.setitem(PROBES, "sharpness", probes.Probe(lambda call: call.given["no such thing"]))
    with pytest.raises((RuntimeError, KeyError), match=r"the model broke|no such thing"):
        measure("sharpness", model, tokens)
    assert_same_state(model, before)


# ---- other libraries' models ---------------------------------------------------------------------------------------


def test_torchs_own_attention_by_its_tensors():
    """Plain functions on `nn.MultiheadAttention`; our drop-in with the same weights, by name, must agree."""
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    ours = MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = normal(0, 1, 5, 8)

    class SelfAttention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = ours

        def forward(self, x):
            return self.attention(x, x, x)[0]

    query, key, _ = (part.unflatten(0, (2, 4)) for part in theirs.in_proj_weight.detach().chunk(3))
    output, weights = theirs(x, x, x, average_attn_weights=False)
    by_tensors = {
        "qk-rank": float(effective_rank(query.mT @ key).mean()),
        "block-condition": condition_number(output[0]).item(),
        "attention-entropy": attention_entropy(weights),
        "sharpness": sharpness(weights),
        "head-overlap": head_overlap(weights),
        "residual-jacobian-condition": jacobian_extremes(lambda t: t + theirs(t, t, t)[0], x).condition,
    }
    for name, value in by_tensors.items():
        assert only(measure(name, SelfAttention(), x)) == pytest.approx(value), name


def test_cross_attention_is_differentiated_by_its_queries():
    layer, x, memory = layer_of("w6-h2"), normal(0, 1, 3, 6), normal(1, 1, 4, 6)

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, memory, padding=torch.tensor([[True, True, True, False]]))

    _, weights = layer(x, memory[:, :3], need_weights=True)
    assert only(measure("sharpness", Cross(), x)) == pytest.approx(sharpness(weights))  # of all queries
    wanted = torch.autograd.functional.jacobian(lambda t: layer(t, memory[:, :3]), x).reshape(18, 18)
    wanted = np.linalg.cond(np.eye(18) + wanted.numpy())
    assert only(measure("residual-jacobian-condition", Cross(), x)) == pytest.approx(wanted)
