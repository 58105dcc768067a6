"""Shapes: parsing and printing are inverse, usual values are filled in, wrong shapes explain themselves."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwise.known import KNOWN, find
from headwise.options import preset
from headwise.shape import LETTERS, AttentionShape, ModelShape, ShapeError, divisors, nearest_divisors
from headwise.spec import SpecError
from headwise.training.run import Run
from helpers.strategies import attention_shapes, model_shapes


@given(model_shapes(max_depth=8))
@settings(max_examples=1000)
def test_printing_and_parsing_are_inverse(shape):
    assert ModelShape.parse(str(shape)) == shape


@given(attention_shapes())
@settings(max_examples=500)
def test_printing_and_parsing_one_layer_are_inverse(shape):
    assert AttentionShape.parse(str(shape)) == shape


@given(model_shapes(max_depth=8))
@settings(max_examples=300)
def test_data_goes_out_and_in(shape):
    assert ModelShape(**shape.model_dump()) == shape
    assert ModelShape.model_validate_json(shape.model_dump_json()) == shape
    assert ModelShape.of(shape.layers, shape.mlps) == shape
    assert hash(ModelShape(**shape.model_dump())) == hash(shape)


@given(model_shapes(max_depth=6), st.randoms())
@settings(max_examples=300)
def test_order_and_case_do_not_matter(shape, random):
    tokens = str(shape).split("-")
    random.shuffle(tokens)
    text = random.choice(["-", " ", "_", " - "]).join(random.choice([t.upper(), t.lower()]) for t in tokens)
    assert ModelShape.parse(text) == shape


@given(model_shapes(max_depth=6))
@settings(max_examples=300)
def test_printing_is_the_shortest(shape):
    """No token can be left out, and none of the others written shorter."""
    tokens = str(shape).split("-")
    for token in tokens:
        rest = "-".join(t for t in tokens if t != token)
        try:
            assert ModelShape.parse(rest) != shape, f"{token} is not needed"
        except ShapeError:
            continue


@given(st.text(alphabet="wWhHrvgcqpLm0123456789x,-_ ×abz.", max_size=30))
@settings(max_examples=1000)
def test_any_text_is_a_shape_or_one_sentence(text):
    try:
        shape = ModelShape.parse(text)
    except ShapeError as caught:
        error = caught
    else:
        assert ModelShape.parse(str(shape)) == shape
        return
    assert "\n" not in str(error)
    assert all(find(near) for near in error.nearest)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("w1792-h14-r128-L28-m7168", "w1792-h14-L28"),
        ("L12 H8 W512", "w512-h8-L12"),
        ("w512-h8x4,4x8", "w512-h8x4,4x8"),
        ("w512-h8x4,4x8-L12", "w512-h8x4,4x8"),
        ("w512-h8×4,4×8", "w512-h8x4,4x8"),
        ("w512-h8x2,8x2", "w512-h8-L4"),
        ("w512-h8,4", "w512-h8,4"),
        ("w512-r64", "w512-h8"),
        ("w1024-h16-r128-v128-g8-L28-m3072", "w1024-h16-r128-g8-L28-m3072"),
        ("w2048-h16-r192-v128-c512-p64-L27", "w2048-h16-r192-v128-c512-p64-L27"),
        ("w64-h4-c16x2,0x2", "w64-h4-c16x2,0x2"),
        ("w64-h4-m0", "w64-h4-m0"),
        ("w64-h4-p0", "w64-h4-p0"),
    ],
)
def test_notation(text, printed):
    assert str(ModelShape.parse(text)) == printed


def test_usual_values():
    shape = ModelShape.parse("w512-h8-L6")
    assert (shape.qk_rank, shape.v_rank, shape.kv_heads, shape.mlp) == (64, 64, 8, 2048)
    assert (shape.kv_latent, shape.q_latent, shape.rope_rank) == (0, 0, 64)
    assert shape.layers == (AttentionShape(width=512, heads=8),) * 6


def test_layers_may_differ():
    shape = ModelShape.parse("w512-h8x4,4x8-r64-g4")
    assert [layer.heads for layer in shape.layers] == [8] * 4 + [4] * 8
    assert shape.heads == (8,) * 4 + (4,) * 8
    assert (shape.qk_rank, shape.depth) == (64, 12)


def test_ranks_are_free_of_the_width():
    layer = AttentionShape(width=16, heads=3, qk_rank=100, v_rank=7)
    assert (layer.heads * layer.qk_rank, layer.group) == (300, 1)


@given(attention_shapes())
def test_with_rotary_positions_a_latent_leaves_half_of_a_head_to_turn(shape):
    rotary = shape.rotary
    assert rotary.rotary == rotary == AttentionShape.parse(str(rotary))
    assert rotary.replace(rope_rank=shape.rope_rank) == shape
    bare = shape.kv_latent and not shape.rope_rank
    assert rotary.rope_rank == (shape.qk_rank // 4 * 2 if bare else shape.rope_rank)


def test_options_complete_a_shape_only_where_they_must():
    llama, gpt2 = preset("llama", vocab=10), preset("gpt2", vocab=10, context=8)
    for text, built in (
        ("w128-h4-c64-L2", "w128-h4-c64-p16-L2"),
        ("w128-h4-c64-p8-L2", "w128-h4-c64-p8-L2"),
        ("w128-h4-L2", "w128-h4-L2"),
        ("w16-h8-c8", "w16-h8-c8"),  # a head of 2 has no room for a pair that turns
        ("w64-h4-c32,0", "w64-h4-c32,0-p8,16"),
        ("w64-h4-c32-p0,8", "w64-h4-c32-p0,8"),  # one layer says that it does not turn
    ):
        shape = ModelShape.parse(text)
        assert llama.complete(shape) == llama.complete(llama.complete(shape)) == ModelShape.parse(built)
        assert gpt2.complete(shape) == shape
        assert Run(task={"name": "recall"}, shape=text, options=llama, steps=1).model_shape == ModelShape.parse(built)


def test_a_latent_has_no_rotation_unless_asked():
    assert AttentionShape.parse("w512-h8-c128").rope_rank == 0
    assert AttentionShape.parse("w512-h8-c128-p32").content_rank == 32


@pytest.mark.parametrize(("rank", "turned"), [(1, 0), (2, 2), (7, 6), (8, 8)])
def test_an_odd_rank_turns_its_largest_even_part(rank, turned):
    assert AttentionShape(width=8, heads=1, qk_rank=rank).rotated == turned


@pytest.mark.parametrize(
    ("text", "problem", "nearest"),
    [
        ("w512-h7", "7 heads do not divide width 512", ("w512-h8", "w512-h4", "w512-h7-r73")),
        ("w512-h8-g3", "8 heads cannot share 3 key/value heads", ("w512-h8-g4", "w512-h8-g2")),
        ("w512", "neither heads (h) nor a rank (r)", ("w512-h8", "w512-h4")),
        ("h8-r64", "no width (w)", ("w512-h8",)),
        ("w512-h8-r4-p9", "rope_rank 9 is more than qk_rank 4", ("w512-h8-r4", "w512-h8-r9")),
        ("w512-h8-c64-p64", "leaves nothing of qk_rank 64", ("w512-h8-c64-p32", "w512-h8-r128-c64-p64")),
        ("w512-h8-L0", "depth is 0", ("w512-h8", "w512-h8-L10000")),
        ("w512-h0", "heads is 0", ("w512-h1",)),
        ("w512-h8x4-L3", "heads lists 4, depth is 3", ("w512-h8-L4",)),
        ("w512-h8x4,7x2", "layer 5: 7 heads do not divide", ("w512-h8-L6", "w512-h8x4,4x2", "w512-h8x4,7x2-r73")),
        ("w512-h8-z3", "no letter 'z'", ("w512-h8",)),
        ("w512-h8-h4", "gives heads twice", ("w512-h8",)),
        ("w512x3-h8", "width is one number", ()),
        ("w99999999999999999999-h1", "the largest size is", ()),
        ("w512-h8-L99999999999", "depth is 99999999999", ("w512-h8", "w512-h8-L10000")),
    ],
)
def test_a_wrong_shape_says_what_is_wrong_and_what_is_near(text, problem, nearest):
    with pytest.raises(ShapeError) as caught:
        ModelShape.parse(text)
    assert problem in caught.value.problem
    assert not nearest or caught.value.nearest[: len(nearest)] == nearest
    for near in caught.value.nearest:
        ModelShape.parse(near)


@pytest.mark.parametrize(
    "fields",
    [
        {"width": 512, "heads": 8, "head_dim": 64},
        {"width": 512, "heads": "8"},
        {"width": 512.0, "heads": 8},
        {"width": True, "heads": 1},
        {"width": 512, "heads": 8, "mlp": -1},
        {"width": 512, "heads": (8, 8), "depth": 3},
        {"width": 512, "heads": ()},
        {"width": 512, "heads": (8, "a")},
        {"width": (512, 256), "heads": 8},
        {"width": 512, "heads": 8, "depth": 2.0},
        {},
    ],
)
def test_wrong_data_is_refused_in_a_sentence(fields):
    with pytest.raises(SpecError) as caught:
        ModelShape(**fields)
    assert "\n" not in str(caught.value)


def test_a_shape_is_frozen():
    shape = ModelShape.parse("w512-h8")
    with pytest.raises(ValueError, match="frozen"):
        shape.width = 256
    assert shape.replace(depth=3).depth == 3


def test_an_attention_shape_has_no_depth():
    with pytest.raises(ShapeError, match="depth"):
        AttentionShape.parse("w512-h8-L3")


def test_widths_of_one_model_agree():
    with pytest.raises(ShapeError, match="share one width"):
        ModelShape.of([AttentionShape(width=4, heads=1), AttentionShape(width=8, heads=1)], [0, 0])


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_divisors(n, target):
    assert divisors(n) == [k for k in range(1, n + 1) if n % k == 0]
    assert set(nearest_divisors(n, target)) <= set(divisors(n))


def test_every_field_has_a_letter_and_a_description():
    assert {*LETTERS.values(), "stages"} == set(ModelShape.model_fields)  # stages are several numbers behind L
    assert set(AttentionShape.model_fields) < set(ModelShape.model_fields)
    assert all(field.description for field in ModelShape.model_fields.values())


def test_known_models():
    assert len(KNOWN) >= 12
    assert str(find("nanochat-d28").shape) == str(ModelShape.parse("w1792-h14-r128-L28"))
    shapes = [known.shape.layers[0] for known in KNOWN.values()]
    assert any(layer.group > 1 for layer in shapes)
    assert any(layer.kv_latent for layer in shapes)
    assert any(layer.heads * layer.qk_rank != layer.width for layer in shapes)


@pytest.mark.parametrize(("typed", "meant"), [("gtp2", "gpt2"), ("GPT2-XLL", "gpt2-xl"), ("bert", "bert-base")])
def test_a_misspelt_model_finds_its_neighbours(typed, meant):
    with pytest.raises(ShapeError) as caught:
        find(typed)
    assert meant in caught.value.nearest


def test_names_ignore_case():
    assert find(" GPT2 ") is KNOWN["gpt2"]
