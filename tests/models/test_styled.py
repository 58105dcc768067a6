"""XCiT, TNT, Swin and DaViT: published counts, costs against built models, and that any shape of them learns."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from headwise.activations import activation_bytes
from headwise.comparison.question import ask
from headwise.cost import cost_of, forward_flops, parameters
from headwise.known import KNOWN, find
from headwise.layers.paths import set_path
from headwise.models import build
from headwise.options import preset
from headwise.search import equal_cost
from headwise.shape import ModelShape, ShapeError
from headwise.spec import SpecError
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run

PUBLISHED = {  # millions, as tables of the papers and of timm have them
    "xcit-s12": 26.25,
    "xcit-s24": 47.67,
    "xcit-m24": 84.40,
    "xcit-l24": 189.10,
    "tnt-s": 23.77,
    "tnt-b": 65.43,
    "davit-t": 28.36,
    "davit-s": 49.75,
    "davit-b": 87.95,
    "davit-l": 196.81,
    "swin-t": 28.29,
}
THIN = {
    "xcit-l24": ("w768-h16-L12", 103.79),
    "davit-l": ("w192-h6-L2,2,10,2", 139.99),
    "xcit-m24": ("w512-h8-L16", 59.07),
}
SMALL = {"image": 32, "patch": 4, "classes": 10}
CASES = {
    "xcit": ("w16-h4-L2", {}),
    "tnt": ("w16-h4-L2", {"inner": "w8-h2", "patch": 8}),
    "swin": ("w8-h2-L2,2", {"mixer": "swin-3,swin-3-1"}),
    "davit": ("w8-h2-L2,4,2", {"mixer": "squares-2,channels"}),
}
every_style = pytest.mark.parametrize("style", CASES)


def case(style):
    shape, changes = CASES[style]
    return ModelShape.parse(shape), preset(style, **{**SMALL, **changes})


def millions(shape, options):
    return round(parameters(shape, options)["total"] / 1e6, 2)


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_models_have_the_published_counts(name):
    assert millions(KNOWN[name].shape, KNOWN[name].options) == PUBLISHED[name]


@pytest.mark.parametrize("name", THIN)
def test_the_leaner_papers_thin_versions_by_depth_alone(name):
    shape, wanted = THIN[name]
    assert millions(ModelShape.parse(shape), KNOWN[name].options) == wanted


@every_style
def test_costs_equal_a_built_model(style):
    shape, options = case(style)
    model = build(shape, options)
    counts = parameters(shape, options)
    assert counts["total"] == sum(p.numel() for p in model.parameters())
    assert counts["body"] == sum(p.numel() for p in model.body.parameters())
    set_path(model, "plain")
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        assert model.eval()(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    assert counter.get_total_flops() == forward_flops(shape, options, options.tokens)


@every_style
def test_every_parameter_learns(style):
    model = build(*case(style))
    model(torch.randn(2, 3, 32, 32)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@every_style
def test_prices_and_shapes_of_equal_cost(style):
    shape, options = case(style)
    assert cost_of(shape, options).flops["prefill"] == forward_flops(shape, options, options.tokens)
    rows = equal_cost(shape, options, tolerance=0.05)
    assert str(shape) in {str(row.shape) for row in rows}
    assert all(row.shape.stages == shape.stages for row in rows)


@every_style
def test_what_trains_and_compares_counts_its_tokens(style):
    """Patches, and a class token where the body has one."""
    _, options = case(style)
    changes = {"mixer": options.mixer, **({"inner": options.inner} if options.inner else {})}
    question = ask("images,side=16,patch=4", str(case(style)[0]), family=style, options=changes)
    assert question.tokens == question.options.tokens == 16 + (style == "tnt")
    recipe = Recipe(batch=8)
    run = Run(task=question.task, shape=question.base, options=question.options, recipe=recipe, steps=1, evaluations=1)
    assert train_run(run).tokens == 8 * question.tokens


def test_stages_are_written_as_they_are_read():
    shape = ModelShape.parse("L2,2,6,2-h3-w96")
    assert str(shape) == "w96-h3-L2,2,6,2"
    assert (shape.depth, shape.stages, str(shape.layers[-1])) == (12, (2, 2, 6, 2), "w768-h24")
    assert shape.mlps == (384,) * 2 + (768,) * 2 + (1536,) * 6 + (3072,) * 2
    assert ModelShape.parse("w512-h8-L6").stages == ()


def test_what_has_no_stages_refuses_them():
    with pytest.raises(SpecError, match="which only the styles swin and davit have"):
        build("w16-h4-L1,1", preset("vit", **SMALL))
    with pytest.raises(SpecError, match="cannot be halved 4 times"):
        build("w8-h2-L1,1,1,1,1", preset("davit", **SMALL))
    with pytest.raises(SpecError, match="cannot be halved 4 times"):
        activation_bytes(ModelShape.parse("w8-h2-L1,1,1,1,1"), preset("davit", **SMALL), 64)
    with pytest.raises(ShapeError, match="are not possible"):
        ModelShape.parse("w96-h3-L0,2")
    with pytest.raises(SpecError, match="depth is not varied"):
        equal_cost(find("swin-t"), vary=["depth"])


# ---- what no library here has, a number at a time, as the papers write it ------------------------------------------


def by_hand(style, **changes):
    """A model of scrambled weights and running means, as it is used, and the first block."""
    torch.manual_seed(0)
    shape, options = case(style)
    model = build(shape, options.replace(**changes), dtype=torch.float64).eval()
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.1)  # variances too
    for parameter in model.parameters():
        parameter.data = torch.randn_like(parameter) / 3
    return model, model.body.blocks[0]


def normalised(norm, x):
    spread = ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
    return (x - x.mean(-1, keepdim=True)) / (spread + norm.eps).sqrt() * norm.weight + norm.bias


def hidden(mlp, x):
    inside = mlp.input.weight @ x + mlp.input.bias
    return mlp.output.weight @ (inside * 0.5 * (1 + torch.erf(inside / math.sqrt(2)))) + mlp.output.bias


def attended(layer, x, heads):
    """(T, w) to (T, w): softmax attention, a token and a head at a time."""
    width = x.shape[1]
    rank = width // heads
    query, key, value = (layer.input.weight @ x.T + layer.input.bias[:, None]).T.split(width, dim=1)
    rows = []
    for row in range(len(x)):
        found = []
        for part in (slice(rank * head, rank * (head + 1)) for head in range(heads)):
            weights = torch.stack([query[row, part] @ key[t, part] / math.sqrt(rank) for t in range(len(x))]).softmax(0)
            found.append(sum(weights[t] * value[t, part] for t in range(len(x))))
        rows.append(layer.output.weight @ torch.cat(found) + layer.output.bias)
    return torch.stack(rows)


def near(convolution, x, side):
    """A depthwise 3 × 3 convolution of (side², w), nothing beyond the edge."""
    found = torch.zeros_like(x)
    for row in range(side):
        for column in range(side):
            for down in (-1, 0, 1):
                for right in (-1, 0, 1):
                    if 0 <= row + down < side and 0 <= column + right < side:
                        there = x[side * (row + down) + column + right]
                        found[side * row + column] += convolution.weight[:, 0, down + 1, right + 1] * there
    return found + convolution.bias


@torch.no_grad()
def test_xcits_block_and_local_patch_interaction_are_its_formula():
    """x + γ₁ XCA(x), then + γ₂ LPI, then + γ₃ MLP; LPI: near, GELU, batch norm, near."""
    _, block = by_hand("xcit")
    x = torch.randn(9, 16, dtype=torch.float64)
    wanted = x + block.scales[0] * block.attention(normalised(block.norms[0], x)[None])[0]  # its formula: test_mixers
    first, _, batch, last = block.local
    local = near(first, normalised(block.local_norm, wanted), 3)
    local = local * 0.5 * (1 + torch.erf(local / math.sqrt(2)))
    local = (local - batch.running_mean) / (batch.running_var + batch.eps).sqrt() * batch.weight + batch.bias
    wanted = wanted + block.scales[1] * near(last, local, 3)
    tokens = [hidden(block.mlp, token) for token in normalised(block.norms[1], wanted)]
    torch.testing.assert_close(block(x[None], None)[0][0], wanted + block.scales[2] * torch.stack(tokens))


@torch.no_grad()
def test_xcits_places_are_sines_and_cosines_of_row_and_column():
    model, _ = by_hand("xcit", patch=8)
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    tokens, _ = model.stem(images)
    waves = torch.zeros(16, 64, dtype=torch.float64)
    for row in range(4):
        for column in range(4):
            for half, place in enumerate((row, column)):
                for i in range(16):
                    angle = 2 * math.pi * (place + 1) / 4 / 10_000 ** (2 * i / 32)
                    waves[4 * row + column, 32 * half + 2 * i] = math.sin(angle)
                    waves[4 * row + column, 32 * half + 2 * i + 1] = math.cos(angle)
    convolved = model.stem.convolutions(images)[0].flatten(1).T
    places = waves @ model.stem.places.weight.T + model.stem.places.bias
    torch.testing.assert_close(tokens[0], convolved + places, rtol=0, atol=2e-6)  # waves are of single precision


@torch.no_grad()
def test_tnts_block_is_its_formula():
    """The words of each patch attend to each other; normalised, side by side, they are added to their patch."""
    _, block = by_hand("tnt")
    words, patches = torch.randn(3, 4, 8, dtype=torch.float64), torch.randn(4, 16, dtype=torch.float64)
    inner, joined, kept = block.inner, patches.clone(), []
    for number, one in enumerate(words):
        one = one + attended(inner.attention, normalised(inner.norms[0], one), 2)
        one = one + torch.stack([hidden(inner.mlp, word) for word in normalised(inner.norms[1], one)])
        kept.append(one)
        beside = torch.cat(list(normalised(block.inner_norm, one)))
        joined[number + 1] += block.join.weight @ beside + block.join.bias  # the class token has no words
    wanted = joined + attended(block.attention, normalised(block.norms[0], joined), 4)
    wanted = wanted + torch.stack([hidden(block.mlp, token) for token in normalised(block.norms[1], wanted)])
    found, words = block(patches[None], words)
    torch.testing.assert_close(found[0], wanted)
    torch.testing.assert_close(words, torch.stack(kept))


@torch.no_grad()
def test_tnts_words_are_a_convolutions_of_each_patch():
    model, _ = by_hand("tnt")
    images = torch.randn(1, 3, 32, 32, dtype=torch.float64)
    patches, words = model.stem(images)
    grid = F.conv2d(images, model.stem.words.weight, model.stem.words.bias, stride=4, padding=3)[0]
    wanted = [model.stem.class_token]
    for row in range(4):
        for column in range(4):
            mine = [grid[:, 2 * row + down, 2 * column + right] for down in (0, 1) for right in (0, 1)]
            mine = torch.stack(mine) + model.stem.word_places
            torch.testing.assert_close(words[4 * row + column], mine)
            side_by_side = normalised(model.stem.norms[0], mine.flatten())
            wanted.append(normalised(model.stem.norms[1], model.stem.join.weight @ side_by_side + model.stem.join.bias))
    torch.testing.assert_close(patches[0], torch.stack(wanted) + model.stem.places)
