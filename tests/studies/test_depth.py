"""Heads for depth and for the MLP, on images: arms have the sizes they state, and worlds can turn a verdict around."""

import math
import random

import pytest

from headwise.cost import parameters
from headwise.known import KNOWN
from headwise.ledger.judge import judge_claim
from headwise.ledger.published import published_rows
from headwise.models import build
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.store.rows import Row
from headwise.studies import load
from headwise.studies._recipes.images import vit_options
from headwise.studies._recipes.thinner import as_large, variants
from headwise.studies.thinner_vit import PRESETS
from helpers.judging import judge_testable

NAMES = ("thinner-vit", "mlp-or-heads")
VIT = KNOWN["vit-b16"].options


def world(name, tell):
    """Rows of the laptop preset with the errors that `tell(place)` says, a little different for each seed."""
    found = []
    for cell in load(name).of("laptop"):
        size = parameters(cell.run.model_shape, cell.run.options)["total"]
        error = tell(cell.place) * random.Random(f"{cell.place} {cell.run.seed}").gauss(1, 0.003)
        metrics = {"error": error, "validation_error": error, "parameters": float(size)}
        found.append(Row(cell.place, cell.run.seed, metrics, cell.run.key))
    return found


def judgement(name, claim, tell, change=lambda rows: rows):
    (asked,) = [one for one in load(name).claims if one.id == claim]
    return judge_testable(asked, "laptop", change(world(name, tell)))


def by_kind(**errors):
    return lambda place: errors[place["kind"].split()[0]]


def by_depth(errors):
    return lambda place: errors[place["depth"]]


def by_use(base, heads, mlp):
    return lambda place: {"heads doubled in the width": heads, "equal parameters": mlp}.get(place["kind"], base)


@pytest.mark.parametrize(
    ("name", "claim", "tell", "wanted"),
    [
        ("thinner-vit", "L5", by_kind(base=0.5, thin=0.5, control=0.6, equal=0.5), "holds"),
        ("thinner-vit", "L5", by_kind(base=0.5, thin=0.505, control=0.505, equal=0.5), "holds"),  # heads or not
        ("thinner-vit", "L5", by_kind(base=0.5, thin=0.53, control=0.6, equal=0.5), "fails"),
        ("thinner-vit", "L5", by_kind(base=0.5, thin=0.515, control=0.6, equal=0.5), "open"),  # at the margin
        ("thinner-vit", "L10", by_depth({3: 0.5, 2: 0.5, 1: 0.6}), "holds"),
        ("thinner-vit", "L10", by_depth({3: 0.6, 2: 0.5, 1: 0.6}), "holds"),  # against the best
        ("thinner-vit", "L10", by_depth({3: 0.5, 2: 0.5, 1: 0.51}), "fails"),
        ("mlp-or-heads", "L9", by_use(base=0.6, heads=0.5, mlp=0.55), "holds"),
        ("mlp-or-heads", "L9", by_use(base=0.6, heads=0.55, mlp=0.5), "fails"),  # the MLP is worth more
        ("mlp-or-heads", "L9", by_use(base=0.5, heads=0.51, mlp=0.6), "fails"),  # heads gain nothing
    ],
)
def test_invented_worlds(name, claim, tell, wanted):
    assert judgement(name, claim, tell).verdict == wanted


def test_a_thin_model_must_save_parameters():
    def as_large_as_the_base(rows):
        most = max(row.metrics["parameters"] for row in rows)
        return [Row(row.cell, row.seed, {**row.metrics, "parameters": most}, row.key) for row in rows]

    same = by_kind(base=0.5, thin=0.5, control=0.5, equal=0.5)
    found = judgement("thinner-vit", "L5", same, as_large_as_the_base)
    assert found.verdict == "fails"
    assert found.deciding.comparison.metric == "parameters"
    assert [one.verdict for one in found.comparisons] == ["holds", "fails"]


@pytest.mark.parametrize("name", NAMES)
def test_an_unfinished_preset_can_be_judged(name):
    rows = world(name, lambda place: 0.5)
    for claim in load(name).claims:
        for count in range(1, len(rows), 3):
            for some in (rows[:count], rows[-count:]):
                assert all(not math.isnan(comparison.threshold) for comparison in claim.decide(some))
                assert len({row.seed for row in some}) > 2 or judge_claim(claim, "laptop", some).verdict == "open"


@pytest.mark.parametrize("name", NAMES)
def test_charts_and_powers(name):
    study = load(name)
    assert "Power: " in study.about
    costs = {"flops": 1.0, "seconds": 1.0, "kv_bytes_per_token": 1.0}
    for preset in study.presets:
        rows = [
            Row(at.place, at.run.seed, {"error": 0.5, "parameters": 1.0 + len(at.run.shape), **costs}, at.run.key)
            for at in study.of(preset)
        ]
        drawn = str(study.chart(rows, preset).to_dict())
        assert all(at.place["arm"] in drawn for at in study.of(preset))
        assert ("XCiT-M 84.4→59.0 M, 81.4→81.7 %" in drawn) == (name == "thinner-vit" and preset == "paper")


@pytest.mark.parametrize("name", NAMES)
def test_the_laptop_preset_wants_real_images(name):
    with pytest.raises(SpecError, match=f"{name} --preset laptop --data images=PLACE"):
        load(name).check_data("laptop", {})
    load(name).check_data("laptop", {"images": "somewhere"})
    load(name).check_data("smoke", {})


# ---- sizes ---------------------------------------------------------------------------------------------------------


def built(shape, options):
    """Parameters of the real model, which takes no memory."""
    return sum(p.numel() for p in build(shape, options, device="meta").parameters())


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_arms_have_the_sizes_they_state(preset):
    options = vit_options(PRESETS[preset])
    found = list(variants(PRESETS[preset], options))
    (base,) = [shape for kind, shape in found if kind == "base"]
    size = built(base, options)
    for kind, shape in found:
        ratio = built(shape, options) / size
        assert set(shape.mlps) == set(base.mlps)
        if kind in ("thin", "control"):
            assert 0.5 <= ratio <= 0.7  # the paper's 30 to 50 % fewer
            assert shape.layers[0].heads * shape.layers[0].qk_rank == shape.width
        else:
            assert ratio == pytest.approx(1, rel=0.01)
            assert shape.layers[0].qk_rank == base.layers[0].qk_rank
    depths = [{shape.depth for kind, shape in found if kind == wanted} for wanted in ("thin", "control")]
    assert depths[0] == depths[1]


def test_heads_for_layers_in_closed_form():
    """Matrices alone: a layer is 4·H·r·w + 2·m·w; from 12 layers of 12 w² to 8 leaves 10 w² for attention, 30 heads."""
    assert str(as_large(ModelShape.parse("w768-h12-L12"), 8, VIT)) == "w768-h30-r64-L8"
    assert as_large(ModelShape.parse("w768-h12-L12"), 12, VIT) == ModelShape.parse("w768-h12-L12")

    def body(heads, depth, w=40, r=10, m=80):
        """Queries, keys and values with their biases, output, MLP, two norms."""
        return depth * (3 * heads * r * (w + 1) + w * (heads * r + 1) + m * (w + 1) + w * (m + 1) + 4 * w)

    for depth in range(1, 6):
        found = as_large(ModelShape.parse("w40-h4-L5-m80"), depth, VIT)
        assert found.layers[0].heads == min(range(1, 99), key=lambda heads: abs(body(heads, depth) - body(4, 5)))


@pytest.mark.parametrize("preset", ["laptop", "paper"])
def test_mlps_are_paid_for_by_heads(preset):
    cells = [at for at in load("mlp-or-heads").of(preset) if at.run.seed == 0]
    sizes = {at.place["arm"]: built(at.run.model_shape, at.run.options) for at in cells}
    equal = [size for arm, size in sizes.items() if arm.startswith("equal")]
    assert len(equal) == 4
    assert max(equal) / min(equal) < 1.01
    ends = {at.place["ratio"]: at.run.model_shape for at in cells if at.place["kind"] == "equal parameters"}
    (base,) = [at.run.model_shape for at in cells if at.place["kind"] == "base"]
    assert ends[8].layers == base.layers
    assert ends[2].mlps == base.mlps
    assert ends[2].layers[0].heads == 4 * base.layers[0].heads
    assert ends[8].mlps[0] == 4 * base.mlps[0]


@pytest.mark.parametrize(
    ("name", "millions"), [("vit-b16", 86.6), ("vit-l16", 304.3), ("crammed-bert", 119.5), ("crammed-bert-thin", 84.1)]
)
def test_models_of_published_size(name, millions):
    known = KNOWN[name]
    assert built(known.shape, known.options) == known.published == pytest.approx(1e6 * millions, abs=1e5)


@pytest.mark.parametrize(
    ("base", "thin", "layer"),
    [
        ("vit-b16", "w768-h16-L8", 12 * 768**2 + 13 * 768),
        ("vit-b16", "w768-h24-L7", 12 * 768**2 + 13 * 768),
        ("vit-l16", "w1024-h32-L16", 12 * 1024**2 + 13 * 1024),
    ],
)
def test_thin_variants_save_whole_layers(base, thin, layer):
    """A ViT's layer: four and eight squares of the width, biases of 9 and norms of 4 widths."""
    known = KNOWN[base]
    gone = known.shape.depth - ModelShape.parse(thin).depth
    assert built(ModelShape.parse(thin), known.options) == known.published - gone * layer


def test_the_published_pairs_get_smaller_and_no_worse():
    pairs = published_rows("leaner")
    assert len(pairs) == 6
    for pair in pairs:
        assert 0.4 < float(pair["thin_parameters"]) / float(pair["parameters"]) < 0.75
        assert float(pair["thin_accuracy"]) >= float(pair["accuracy"])
        known = KNOWN[pair["known_as"]]
        count = parameters(known.shape, known.options)["total"] / 1e6
        assert count == pytest.approx(float(pair["parameters"]), abs=0.6 if "BERT" in pair["model"] else 0.06)
    assert KNOWN["crammed-bert-thin"].published // 10**6 == 84
