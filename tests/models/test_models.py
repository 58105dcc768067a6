"""Models: built from any shape and options, trained, and decoded with their caches."""

import pytest
import torch
from hypothesis import given, settings

from headwise.cost import parameters
from headwise.layers.attention import Attention
from headwise.models import Decoder, Encoder, build
from headwise.models.blocks import Norm
from headwise.models.vit import cut_patches, whiten
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from helpers.strategies import models

DECODERS = [
    ("nanochat", "w32-h4-L2"),
    ("gpt2", "w32-h4-r5-v12-g2-L2"),
    ("llama", "w32-h4-r16-g2-L2"),
    ("llama", "w32-h4-r24-v16-c20-p8-L2"),
    ("llama", "w32-h4-r24-v16-c20-q12-g2-p8-L2"),
    ("nanochat", "w32-h4x1,2x2-r8"),
    ("nanochat", "w32-h4-c20-L2"),
    ("qwen3", "w32-h4-c20-q12-g2-L2"),
    ("gpt2", "w32-h4-c20-L2"),
]
FAMILIES = {
    **{name: {"vocab": 16, "context": 16} for name in ("gpt2", "nanochat", "llama", "qwen3")},
    "bert": {"vocab": 16, "context": 16, "head": "mlm"},
    "vit": {"image": 8, "patch": 2, "classes": 4},
}
LATENTS = ["w32-h4-c16-L2", "w32-h4-c8-q16-L1", "w32-h2-g1-c24-L1"]


def decoder(family, shape):
    return build(shape, preset(family, vocab=50, context=64), dtype=torch.float64)


@given(models(max_depth=2))
@settings(max_examples=100)
def test_any_model_runs_and_every_parameter_learns(model):
    """Each parameter gets a gradient, but those that a model of this kind leaves idle."""
    shape, options = model
    built = build(shape, options)
    if options.family == "encoder":
        output = built(torch.randn(2, 6, shape.width))
    elif options.family == "vit":
        output = built(torch.randn(2, 3, options.image, options.image))
    else:
        output = built(torch.randint(0, options.vocab, (2, 6)))
    assert output.isfinite().all()
    output.square().sum().backward()
    idle = {name for name, p in built.named_parameters() if p.grad is None}
    assert all("pooler" in name for name in idle)


@pytest.mark.parametrize(("family", "shape"), DECODERS)
def test_decoding_with_caches_equals_the_whole_pass(family, shape):
    model = decoder(family, shape)
    tokens = torch.randint(0, 50, (2, 10))
    caches = model.new_caches()
    parts = [model(tokens[:, :6], caches)] + [model(tokens[:, i : i + 1], caches) for i in range(6, 10)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens))


@pytest.mark.parametrize(("family", "shape"), DECODERS)
def test_greedy_generation_equals_choosing_the_best_each_time(family, shape):
    model = decoder(family, shape)
    tokens = torch.randint(0, 50, (2, 4))
    slow = tokens
    for _ in range(8):
        slow = torch.cat([slow, model(slow)[:, -1].argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(model.generate(tokens, 8), slow)


def test_sampling_is_seeded_and_follows_the_logits():
    model = decoder("nanochat", "w32-h4-L1")
    tokens = torch.randint(0, 50, (1, 4)).expand(4000, -1)
    draw = [
        model.generate(tokens, 1, temperature=0.7, generator=torch.Generator().manual_seed(seed))[:, -1]
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draw[0], draw[1])
    assert not torch.equal(draw[0], draw[2])
    expected = (model(tokens[:1])[0, -1] / 0.7).softmax(-1)
    measured = torch.bincount(draw[0], minlength=50) / 4000
    assert (measured - expected).abs().max() < 0.03
    top = model.generate(tokens, 1, temperature=1.0, top_k=3)[:, -1].unique()
    assert set(top.tolist()) <= set(expected.topk(3).indices.tolist())


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"temperature": 1.0, "top_k": 0}])
def test_generation_refuses_nonsense(wrong):
    with pytest.raises(SpecError, match="temperature"):
        decoder("nanochat", "w32-h4-L1").generate(torch.zeros(1, 1, dtype=torch.long), 1, **wrong)


def test_a_context_of_learned_positions_ends():
    model = decoder("gpt2", "w32-h4-L1")
    with pytest.raises(SpecError, match="65 tokens do not fit a context of 64"):
        model(torch.zeros(1, 65, dtype=torch.long))


def test_decoders_do_not_see_the_future_and_encoders_do():
    tokens = torch.randint(0, 50, (1, 8))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 50
    causal = decoder("llama", "w32-h4-L2")
    torch.testing.assert_close(causal(tokens)[:, :-1], causal(changed)[:, :-1])
    both_ways = build("w32-h4-L2", preset("bert", vocab=50, context=64))
    assert not torch.allclose(both_ways(tokens)[:, 0], both_ways(changed)[:, 0])


def test_bert_ignores_padding():
    model = build("w32-h4-L2", preset("bert", vocab=50, context=64, head="classes", classes=3))
    tokens = torch.randint(0, 50, (1, 8))
    padding = torch.tensor([[True] * 5 + [False] * 3])
    torch.testing.assert_close(model(tokens, padding=padding), model(tokens[:, :5]))


def test_bert_heads():
    tokens = torch.randint(0, 50, (2, 6))
    for head, size in (("none", (2, 6, 32)), ("mlm", (2, 6, 50)), ("classes", (2, 3))):
        model = build("w32-h4-L1", preset("bert", vocab=50, context=64, head=head, classes=3))
        assert model(tokens).shape == size


def test_patches_are_what_a_convolution_sees():
    images = torch.randn(2, 3, 8, 8)
    weight = torch.randn(5, 3, 4, 4)
    expected = torch.nn.functional.conv2d(images, weight, stride=4).flatten(2).mT
    torch.testing.assert_close(cut_patches(images, 4) @ weight.flatten(1).T, expected)


def test_the_unit_norm_gives_every_token_one_length():
    norm = Norm("unit", 7)
    norm.scale.data.fill_(3.0)
    torch.testing.assert_close(norm(torch.randn(2, 5, 7)).norm(dim=-1), torch.full((2, 5), 3.0))


@pytest.mark.parametrize("place", ["pre", "sandwich"])
def test_the_stream_keeps_its_size_through_depth(place):
    """Before a norm, the residual stream would grow with depth; its parts start smaller."""
    body = Encoder(ModelShape.parse("w64-h4-L24"), ModelOptions(norm_place=place, norm="rms-plain", activation="gelu"))
    x = torch.randn(4, 16, 64)
    size = body(x).std().item()
    assert size < 2.0 if place == "pre" else size < 10.0


def test_a_decoder_learns_to_copy():
    """Ten seconds of the real thing: repeat the sequence, which needs attention to look back."""
    torch.manual_seed(0)
    model = build("w32-h2-L2-m64", preset("nanochat", vocab=16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    assert isinstance(model, Decoder)
    for _ in range(300):
        half = torch.randint(0, 16, (32, 8))
        tokens = torch.cat([half, half], dim=1)
        loss = torch.nn.functional.cross_entropy(model(tokens)[:, 8:-1].flatten(0, 1), tokens[:, 9:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3  # guessing costs log 16 = 2.77
    prompt = torch.cat([half, half[:, :1]], dim=1)
    copied = model.generate(prompt, 7)
    assert (copied == tokens).float().mean() > 0.9


# ---- latents -------------------------------------------------------------------------------------------------------


def of_family(name, shape, **factory):
    return build(shape, preset(name, init=name, **FAMILIES[name]), **factory)


def batch(name):
    """Something that can be learned: the next of a cycle, the same token, an image's brightest corner."""
    if name == "vit":
        classes = torch.randint(0, 4, (64,))
        images = torch.randn(64, 3, 8, 8)
        for i, corner in enumerate(classes.tolist()):
            rows, columns = 4 * (corner // 2), 4 * (corner % 2)
            images[i, :, rows : rows + 4, columns : columns + 4] += 2.0
        return images, classes
    tokens = (torch.randint(0, 16, (32, 1)) + 3 * torch.arange(13)) % 16
    return (tokens, tokens) if name == "bert" else (tokens[:, :-1], tokens[:, 1:])


@pytest.mark.parametrize("shape", LATENTS)
@pytest.mark.parametrize("name", FAMILIES)
def test_a_latent_in_every_family_is_priced_as_built_and_the_paths_agree(name, shape):
    model = of_family(name, shape, dtype=torch.float64)
    for parameter in model.parameters():  # outputs of zero would make any two paths agree
        torch.nn.init.normal_(parameter, std=0.3)
    cost = parameters(ModelShape.parse(shape), model.options)
    assert cost["total"] == sum(p.numel() for p in model.parameters())
    assert cost["body"] == sum(p.numel() for p in model.body.parameters())
    inputs = batch(name)[0]
    inputs = inputs.double() if name == "vit" else inputs
    fast = model(inputs)
    for module in model.modules():
        if isinstance(module, Attention):
            module.path = "plain"
    torch.testing.assert_close(model(inputs), fast)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_latent_learns_in_every_family(name):
    torch.manual_seed(0)
    model = of_family(name, "w32-h4-c16-L1")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        inputs, targets = batch(name)
        loss = torch.nn.functional.cross_entropy(model(inputs).flatten(0, -2), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


@pytest.mark.parametrize("name", ["nanochat", "llama", "qwen3"])
def test_rotary_positions_reach_a_latent(name):
    """Order matters: the same tokens in another order give other logits at the end, as without a latent."""
    model = of_family(name, "w32-h4-c16-L1", dtype=torch.float64)
    assert str(model.shape) == "w32-h4-c16-p4"
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    tokens = torch.tensor([[1, 2, 3, 4, 5]])
    swapped = tokens[:, [1, 0, 2, 3, 4]]
    assert not torch.allclose(model(tokens)[:, -1], model(swapped)[:, -1], rtol=1e-3)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_latents_matrices_begin_as_the_familys_others(name):
    """Normal of 0.02, as DeepSeek's do; nanochat's uniform, by the latent's own width."""
    torch.manual_seed(0)
    attention = of_family(name, "w64-h4-c32-q32-L1").body.blocks[0].attention
    expected = {"input": 64**-0.5, "query_up": 32**-0.5, "kv_up": 32**-0.5}
    for part, by_fan_in in expected.items():
        std = getattr(attention, part).weight.std().item()
        assert std == pytest.approx(by_fan_in if name == "nanochat" else 0.02, rel=0.1)


def test_build_reads_text():
    assert build("w16-h4-L2").shape == ModelShape.parse("w16-h4-L2")


# ---- conditioning --------------------------------------------------------------------------------------------------


def vit(**options):
    torch.manual_seed(0)
    made = preset("vit", image=8, patch=2, classes=3, **options)
    return build("w32-h4-L2", made, dtype=torch.float64)


def test_orthogonal_matrices_keep_the_size_and_directions_of_the_drawn_ones():
    drawn, made = vit(init="unit"), vit(init="orthogonal")
    for (name, old), (_, new) in zip(drawn.named_parameters(), made.named_parameters(), strict=True):
        if "attention" not in name or old.dim() < 2:
            torch.testing.assert_close(new, old, rtol=0, atol=0)
            continue
        for one, other in zip(old.split(32), new.split(32), strict=True):  # queries, keys and values apart
            torch.testing.assert_close(other @ other.T, one.square().mean() * 32 * torch.eye(32, dtype=torch.float64))
            values = torch.linalg.eigvalsh(one.T @ other)  # symmetric and positive: a polar factor
            assert values.min() > 0
            torch.testing.assert_close(one.T @ other, (one.T @ other).T)


def test_whitened_tokens_are_the_nearest_with_equal_singular_values():
    """By the singular value decomposition; more tokens than the width have orthogonal columns instead of rows."""
    for shape in ((3, 17, 32), (3, 40, 16)):
        tokens = torch.randn(shape, dtype=torch.float64)
        left, _, right = torch.linalg.svd(tokens, full_matrices=False)
        found = whiten(tokens)
        torch.testing.assert_close(found, left @ right * max(shape[1:]) ** 0.5, rtol=1e-6, atol=1e-6)
        assert found.square().mean() == pytest.approx(1)
    assert torch.autograd.gradcheck(whiten, torch.randn(1, 3, 5, dtype=torch.float64, requires_grad=True))


def test_whitened_tokens_reach_the_first_block():
    model, images = vit(whitened=True), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    seen = []
    model.body.register_forward_pre_hook(lambda body, given: seen.append(given[0]))
    assert model(images).shape == (2, 3)
    assert torch.linalg.cond(seen[0]).max() < 1.01


def test_whitening_would_leak_in_a_decoder():
    with pytest.raises(SpecError, match="depend on later ones"):
        preset("nanochat", vocab=50, whitened=True)
