"""Probes against numpy, autograd and closed forms; on other libraries' tensors; and that they disturb nothing."""

import math
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import nn

from headwise import Attention, AttentionShape, MultiheadAttention, build, preset
from headwise.layers.cache import KVCache
from headwise.measure import probes
from headwise.measure.probes import PROBES, attention_entropy, head_overlap, measure_probe, sharpness
from headwise.measure.spectra import EXACT_SIZE, condition_number, effective_rank, jacobian_extremes
from headwise.spec import SpecError
from headwise.training.run import ProbeName


def normal(seed, *size):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def only(found):
    (value,) = found.values()
    return value


def layer_of(shape, **options):
    return Attention(AttentionShape.parse(shape), dtype=torch.float64, **options)


def geometric_mean(values):
    return math.exp(np.mean(np.log(values)))


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
    found = {name: only(measure_probe(name, layer, x)) for name in PROBES}
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
    assert math.isinf(only(measure_probe("heads-condition", layer, x)))
    assert math.isinf(only(measure_probe("jacobian-condition", layer, x)))
    assert only(measure_probe("residual-jacobian-condition", layer, x)) == pytest.approx(2)  # I + 11ᵀ/5
    assert only(measure_probe("attention-entropy", layer, x)) == pytest.approx(math.log(5))


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
        assert only(measure_probe(name, layer, x)) == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize("shape", SHAPES)
def test_angle_and_norm_are_those_of_whole_matrices(shape):
    layer, x = layer_of(shape), normal(0, 1, 3, 12)
    matrices = layer.qk_matrices().detach().numpy()
    norms = np.array([np.linalg.norm(matrix) for matrix in matrices])
    angles = np.degrees(np.arccos([np.trace(m) / n / 12**0.5 for m, n in zip(matrices, norms, strict=True)]))
    assert only(measure_probe("qk-identity-angle", layer, x)) == pytest.approx(angles.mean())
    assert only(measure_probe("qk-norm", layer, x)) == pytest.approx(norms.mean() / 12**0.5)


@pytest.mark.parametrize("factor", [3.0, -3.0])
def test_a_multiple_of_the_identity_has_no_angle_or_all_of_it(factor):
    layer = identity_layer()
    with torch.no_grad():
        layer.input.weight[:4] *= factor
    assert only(measure_probe("qk-identity-angle", layer, normal(0, 1, 3, 4))) == pytest.approx(
        0 if factor > 0 else 180
    )
    assert only(measure_probe("qk-norm", layer, normal(0, 1, 3, 4))) == pytest.approx(3)


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
            assert only(measure_probe(name, layer, normal(0, 1, 2, 12))) == pytest.approx(float(value)), name


@pytest.mark.parametrize("options", [{}, {"causal": True, "rope_base": 100.0}, {"qk_norm": "rms", "logit_scale": True}])
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_jacobian_conditions_are_autograds(options, path):
    layer, x = layer_of("w8-h2", path=path, **options), normal(0, 2, 4, 8)
    bare = [torch.autograd.functional.jacobian(layer, sample[None]).reshape(32, 32) for sample in x]
    wanted = geometric_mean([np.linalg.cond(j.numpy()) for j in bare])
    assert only(measure_probe("jacobian-condition", layer, x)) == pytest.approx(wanted, rel=1e-5)
    wanted = geometric_mean([np.linalg.cond(np.eye(32) + j.numpy()) for j in bare])
    assert only(measure_probe("residual-jacobian-condition", layer, x)) == pytest.approx(wanted, rel=1e-5)


def test_large_jacobians_go_by_lanczos():
    layer, x = layer_of("w64-h4"), normal(0, 1, 33, 64)
    assert x.numel() > EXACT_SIZE
    found = only(measure_probe("residual-jacobian-condition", layer, x))
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
            found = measure_probe(name, model, inputs)
            assert list(found) == [f"{name}.layer{i}" for i in range(depth)]
            assert all(value >= 0 for value in found.values()), (name, found)


def test_names_are_known_everywhere():
    assert get_args(ProbeName) == tuple(PROBES)
    assert [name for name in PROBES if f"`{name}`" not in probes.__doc__] == []
    with pytest.raises(SpecError, match="no probe 'mood'; there are qk-rank"):
        measure_probe("mood", Padded(), torch.ones(1, 2, dtype=torch.long))


@pytest.mark.parametrize("name", PROBES)
def test_padding_does_not_count(name):
    model = Padded()
    tokens = torch.randint(1, 16, (1, 5))
    longer = torch.cat([tokens, torch.zeros(1, 3, dtype=torch.long)], dim=1)
    wanted, found = measure_probe(name, model, tokens), measure_probe(name, model, longer)
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-3), key


def test_padding_may_differ_between_samples():
    model = Padded()
    tokens = torch.randint(1, 16, (2, 6))
    tokens[1, 4:] = 0
    for name in ("heads-condition", "residual-jacobian-condition"):
        alone = [measure_probe(name, model, tokens[:1]), measure_probe(name, model, tokens[1:, :4])]
        for key, value in measure_probe(name, model, tokens).items():
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
    assert only(measure_probe("sharpness", model, x[:, 4:])) == pytest.approx(sharpness(weights[:, :, 4:]))
    with pytest.raises(SpecError, match="a cache keeps no derivatives"):
        measure_probe("jacobian-condition", Continued(layer, x[:, :4]), x[:, 4:])


class Odd(nn.Module):
    """Calls its first layer twice and its second never."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layer_of("w4-h2"), layer_of("w4-h2")

    def forward(self, x):
        return self.first(x=2 * self.first(x))


def test_layers_called_often_or_never():
    model, x = Odd(), normal(0, 1, 3, 4)
    found = measure_probe("sharpness", model, x)
    assert list(found) == ["sharpness.layer0"]
    assert only(found) == only(measure_probe("sharpness", model.first, 2 * model.first(x)))


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
    measure_probe(name, model, tokens)
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
        measure_probe("sharpness", model, tokens)
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
        assert only(measure_probe(name, SelfAttention(), x)) == pytest.approx(value), name


def test_cross_attention_is_differentiated_by_its_queries():
    layer, x, memory = layer_of("w6-h2"), normal(0, 1, 3, 6), normal(1, 1, 4, 6)

    class Cross(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return self.layer(x, memory, padding=torch.tensor([[True, True, True, False]]))

    _, weights = layer(x, memory[:, :3], need_weights=True)
    assert only(measure_probe("sharpness", Cross(), x)) == pytest.approx(sharpness(weights))  # of all queries
    wanted = torch.autograd.functional.jacobian(lambda t: layer(t, memory[:, :3]), x).reshape(18, 18)
    wanted = np.linalg.cond(np.eye(18) + wanted.numpy())
    assert only(measure_probe("residual-jacobian-condition", Cross(), x)) == pytest.approx(wanted)
