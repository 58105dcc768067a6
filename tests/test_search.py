"""Shapes of equal cost: they cost what they should, and the ones people ask about are there."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.cost import cached_per_token, forward_flops, parameters
from headwise.known import KNOWN, find
from headwise.options import ModelOptions, preset
from headwise.search import AXES, equal_cost
from headwise.shape import ModelShape
from headwise.spec import SpecError


def test_nanochats_alternatives():
    """The four shapes the rank paper's readers ask about, at exactly the same size."""
    known = KNOWN["nanochat-d28"]
    rows = {row.shape.heads: row for row in equal_cost(known.shape, known.options)}
    for heads, rank in ((14, 128), (7, 256), (4, 448), (1, 1792)):
        assert rows[heads].shape.qk_rank == rank
        assert rows[heads].difference == 0
        assert rows[heads].parameters_body == parameters(known.shape, known.options)["body"]
    assert len(rows) == 18  # the divisors of 1792


@given(
    st.sampled_from(
        ["w64-h4-L3", "w48-h6-g2-L2", "w64-h4-r24-v16-c32-p8-L2", "w32-h2-r40-L4-m100", "w32-h4-c16-p4-L2"]
    ),
    st.sampled_from(["params", "flops", "kv"]),
    st.sets(st.sampled_from(AXES), min_size=1, max_size=3),
    st.sampled_from([0.0, 0.01, 0.1]),
)
@settings(max_examples=60)
def test_every_row_meets_the_budget(text, hold, vary, tolerance):
    base, options = ModelShape.parse(text), preset("llama", vocab=10)
    rows = equal_cost(base, options, hold=hold, tolerance=tolerance, vary=tuple(vary), context=100)
    body = ModelOptions(norm="rms", mlp_kind="gated", final_norm=False)
    cost = {
        "params": lambda shape: parameters(shape, body)["total"],
        "flops": lambda shape: forward_flops(shape, body, 100),
        "kv": cached_per_token,
    }[hold]
    assert base in [row.shape for row in rows]
    for row in rows:
        assert abs(cost(row.shape) - cost(base)) <= tolerance * cost(base) + 1e-9
        assert row.cost_difference == pytest.approx(cost(row.shape) / cost(base) - 1)
        counts = parameters(row.shape, options)
        assert (row.parameters, row.parameters_body) == (counts["total"], counts["body"])
        assert ModelShape.parse(str(row.shape)) == row.shape
    assert len({row.shape for row in rows}) == len(rows)


def test_ranks_move_apart_and_the_mlp_pays():
    base = ModelShape.parse("w512-h8-L6")
    rows = {str(row.shape): row for row in equal_cost(base, vary=("qk_rank",))}
    wide = ModelShape.parse("w512-h8-r128-v64-L6-m1536")
    assert str(wide) in rows
    assert rows[str(wide)].difference == 0
    assert {row.shape.v_rank for row in rows.values()} == {64}


def test_depth_pays_where_no_mlp_can():
    rows = equal_cost(ModelShape.parse("w64-h4-g4-L4-m0"), hold="kv", vary=("kv_heads",))
    assert {(row.shape.kv_heads, row.shape.depth) for row in rows} == {(4, 4), (2, 8), (1, 16)}


def test_sharing_is_kept_where_it_divides():
    rows = {row.shape.heads: row.shape for row in equal_cost(find("llama-3.2-1b").shape)}
    assert rows[16].kv_heads == 4
    assert rows[64].kv_heads == 16


def test_latents_come_with_the_rotated_part_that_is_built():
    rows = equal_cost("w64-h4-L2", preset("llama", vocab=10), vary=("kv_latent",), tolerance=0.02)
    sizes = {(row.shape.kv_latent, row.shape.rope_rank) for row in rows}
    assert (0, 16) in sizes  # the base, whose whole heads turn
    assert {(c, p) for c, p in sizes if c} == {(c, 8) for c in range(8, 65, 8)}
    bare = equal_cost("w64-h4-L2", vary=("kv_latent",), tolerance=0.02)
    assert {row.shape.rope_rank for row in bare if row.shape.kv_latent} == {0}


def test_a_latent_may_go_and_its_heads_turn_whole_again():
    rows = equal_cost("w64-h4-c32-L2", preset("llama", vocab=10), vary=("kv_latent", "heads"))
    assert rows.base == "w64-h4-c32-p8-L2"
    for row in rows:
        rank = row.shape.qk_rank
        assert row.shape.rope_rank == (rank // 4 * 2 if row.shape.kv_latent else rank)
    assert {bool(row.shape.kv_latent) for row in rows} == {True, False}


@pytest.mark.parametrize(
    ("axis", "sizes"),
    [
        ("q_latent", {0, *range(8, 65, 8)}),
        ("rope_rank", {8, 16, 24}),
    ],
)
def test_query_latents_and_rotated_parts_vary(axis, sizes):
    rows = equal_cost("w64-h2-c32-L2", preset("llama", vocab=10), vary=(axis,), tolerance=0.02)
    assert {getattr(row.shape, axis) for row in rows} == sizes


def test_rows_are_sorted():
    rows = equal_cost(ModelShape.parse("w64-h4-L3"), vary=("heads", "qk_rank"))
    keys = [(row.shape.heads, row.shape.qk_rank) for row in rows]
    assert keys == sorted(keys)
    assert len(keys) > 20


@pytest.mark.parametrize(
    ("text", "wrong", "message"),
    [
        ("w64-h4", {"hold": "money"}, "cannot hold 'money'"),
        ("w64-h4", {"vary": ("colour",)}, "cannot vary 'colour'"),
        ("w64-h4", {"tolerance": 2.0}, "tolerance"),
        ("w64-h4x1,2x1", {}, "layers of .* differ"),
        ("w4096-h32-L32", {"vary": AXES}, "too many"),
    ],
)
def test_searches_that_make_no_sense_are_refused(text, wrong, message):
    with pytest.raises(SpecError, match=message):
        equal_cost(ModelShape.parse(text), **wrong)
