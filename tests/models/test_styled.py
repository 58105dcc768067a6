"""XCiT, TNT, Swin and DaViT: published counts, costs against built models, and that any shape of them learns."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.cost import cost_of, forward_flops, parameters
from headwise.known import KNOWN, find
from headwise.layers.paths import set_path
from headwise.models import build
from headwise.options import preset
from headwise.search import equal_cost
from headwise.shape import ModelShape, ShapeError
from headwise.spec import SpecError

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
    with pytest.raises(ShapeError, match="are not possible"):
        ModelShape.parse("w96-h3-L0,2")
    with pytest.raises(SpecError, match="depth is not varied"):
        equal_cost(find("swin-t"), vary=["depth"])
