"""What every mixer must do, found by its name: a new file in `mixers/` needs one line in EXAMPLES, nothing else."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from headwise.cost import cost_of, decode_flops, forward_flops, parameters
from headwise.layers.paths import kernels, set_path
from headwise.measure.probes import PROBES, measure_probe
from headwise.mixer import ATTENTION, PlainAttention, find_mixer, mixer_kind, names
from headwise.models import build
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError

EXAMPLES = {  # some numbers for each, and shapes that it can have
    "attention": (["attention"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1", "w16-h4-c6-L1-m8"]),
    "channels": (["channels"], ["w16-h4-L2-m8", "w12-h4-r5-g2-L1"]),
    "class-token": (["class-token"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1"]),
    "differential": (["differential", "differential-3"], ["w16-h4-L2-m8", "w12-h4-r5-v2-g2-L1"]),
    "gated": (["gated", "gated-3"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1", "w16-h4-c6-L1-m8"]),
    "longformer": (["longformer-2-2", "longformer-64"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1"]),
    "sinks": (["sinks", "sinks-3"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1", "w16-h4-c6-L1-m8"]),
    "squares": (["squares-2", "squares-4-1"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1"]),
    "swin": (["swin-2-1", "swin-4"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1"]),
    "talking": (["talking", "talking-3"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1", "w16-h4-c6-L1-m8"]),
    "window": (["window-3", "window-64"], ["w16-h4-L2-m8", "w12-h3-r5-v2-g1-L1", "w16-h4-c6-L1-m8"]),
    "xca": (["xca"], ["w16-h4-L2-m8", "w12-h4-r5-g2-L1"]),
}
CASES = [(word, shape) for words, shapes in EXAMPLES.values() for word in words for shape in shapes]
CAUSAL = [(word, shape) for word, shape in CASES if find_mixer(word).causal]
TOKENS, SQUARE, VOCAB = 11, 9, 13
BARE = ModelOptions(norm="none", bias="all", dropout=0.0)
every_case = pytest.mark.parametrize(("word", "shape"), CASES)
every_causal_case = pytest.mark.parametrize(("word", "shape"), CAUSAL)


def body(word, shape, **factory):
    torch.manual_seed(1)
    return build(shape, BARE.replace(mixer=word), **factory)


def tokens_for(word):
    return SQUARE if find_mixer(word).grid else TOKENS


def decoder(word, shape):
    torch.manual_seed(1)
    options = preset("llama", vocab=VOCAB, context=64, mixer=word)
    return build(shape, options, dtype=torch.float64), options


def test_every_mixer_has_examples():
    assert list(EXAMPLES) == names()
    for name in names():
        assert mixer_kind(name).name == name
        assert mixer_kind(name).summary
        assert all(find_mixer(word).name == name and str(find_mixer(word)) == word for word in EXAMPLES[name][0])


def test_what_is_not_listed_is_not_allowed():
    """Nobody inherits what plain attention may do."""
    for name in names()[1:]:
        kind = mixer_kind(name)
        assert not issubclass(kind, PlainAttention)
        assert not kind.kernels
        assert not kind.certified
        assert kind.probes <= ATTENTION.probes
        assert "probes" in vars(kind), "a mixer states its own probes, if only that there are none"


def test_all_probes_are_of_plain_attention():
    assert ATTENTION.probes == set(PROBES)


@every_case
def test_shapes_and_parameters(word, shape):
    model, options = body(word, shape), BARE.replace(mixer=word)
    x = torch.randn(2, tokens_for(word), model.shape.width)
    assert model(x).shape == x.shape
    assert parameters(model.shape, options)["total"] == sum(p.numel() for p in model.parameters())


@every_case
@pytest.mark.parametrize("whole", [True, False])
def test_flops_are_what_torch_counts(word, shape, whole):
    model, tokens = body(word, shape, device="meta"), tokens_for(word) if whole else 1
    set_path(model, "plain")
    with FlopCounterMode(display=False) as counter:
        output = model(torch.randn(2, tokens, model.shape.width, device="meta", requires_grad=True))
        forward = counter.get_total_flops()
        output.sum().backward()
    assert forward == 2 * forward_flops(model.shape, model.options, tokens)
    assert counter.get_total_flops() == 3 * forward


@every_case
def test_gradients(word, shape):
    model = body(word, ModelShape.parse(shape).replace(depth=1), dtype=torch.float64)
    for path in ("plain", "fast"):
        set_path(model, path)
        x = torch.randn(1, SQUARE, model.shape.width, dtype=torch.float64, requires_grad=True)
        state = dict(model.named_parameters())
        learned = {name: p for name, p in state.items() if p.requires_grad}

        def call(x, *values, names=tuple(learned)):
            return torch.func.functional_call(model, dict(zip(names, values, strict=True)), (x,))

        assert torch.autograd.gradcheck(call, (x, *learned.values()), fast_mode=True)


@every_case
def test_every_parameter_learns(word, shape):
    model = body(word, shape)
    model(torch.randn(2, tokens_for(word), model.shape.width)).square().sum().backward()
    assert [name for name, p in model.named_parameters() if p.grad is None] == []


@every_case
def test_the_same_seed_gives_the_same_numbers(word, shape):
    x = torch.randn(2, tokens_for(word), ModelShape.parse(shape).width)
    assert torch.equal(body(word, shape)(x), body(word, shape)(x))


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("asked", [{"hardmax": True}, {"qk_norm": "rms-plain"}, {"positions": "rotary"}], ids=str)
def test_what_an_option_asks_is_done_or_refused(name, asked):
    word, shape = EXAMPLES[name][0][0], EXAMPLES[name][1][0]
    x = torch.randn(2, tokens_for(word), ModelShape.parse(shape).width)
    torch.manual_seed(1)
    try:
        changed = build(shape, BARE.replace(mixer=word, **asked))(x)
    except SpecError:
        return
    assert not torch.allclose(changed, body(word, shape)(x))


@every_case
def test_both_paths_agree_and_padding_is_not_seen(word, shape):
    """Images have no padding: what stands in squares refuses it."""
    model = body(word, shape, dtype=torch.float64)
    if find_mixer(word).grid:
        x = torch.randn(2, SQUARE, model.shape.width, dtype=torch.float64)
        fast = model(x)
        set_path(model, "plain")
        torch.testing.assert_close(model(x), fast)
        with pytest.raises(SpecError, match="nothing is left out"):
            model(x, padding=torch.ones(2, SQUARE, dtype=torch.bool))
        return
    x = torch.randn(2, TOKENS, model.shape.width, dtype=torch.float64)
    padding = torch.ones(2, TOKENS, dtype=torch.bool)
    padding[0, 7:] = False
    results = []
    for path in ("fast", "plain"):
        set_path(model, path)
        results += [model(x, padding=padding)]
        torch.testing.assert_close(results[-1][:1, :7], model(x[:1, :7]))
    torch.testing.assert_close(results[0][padding], results[1][padding])


@pytest.mark.parametrize("word", [words[-1] for words, _ in EXAMPLES.values()])
def test_compiled(word):
    shape = next(shape for one, shape in CASES if one == word)
    model, x = body(word, shape), torch.randn(2, tokens_for(word), ModelShape.parse(shape).width)
    torch._dynamo.reset()
    torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(x), model(x))


@every_causal_case
def test_decoding_with_a_cache_equals_the_whole_pass(word, shape):
    model, options = decoder(word, shape)
    tokens, caches = torch.randint(0, VOCAB, (2, TOKENS)), model.new_caches()
    parts = [model(tokens[:, :5], caches)] + [model(tokens[:, i : i + 1], caches) for i in range(5, TOKENS)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(tokens))
    kept = cost_of(model.shape, options, context=TOKENS, batch=2, dtype="float64").kv_bytes
    assert sum(cache.nbytes for cache in caches) == kept


@every_causal_case
def test_one_more_token_costs_what_torch_counts(word, shape):
    model, options = decoder(word, shape)
    set_path(model, "plain")
    tokens, caches = torch.randint(0, VOCAB, (1, TOKENS)), model.new_caches()
    with torch.no_grad():
        model(tokens, caches)
        with FlopCounterMode(display=False) as counter:
            model(tokens[:, :1], caches)
    assert counter.get_total_flops() == decode_flops(model.shape, options, TOKENS)


@every_causal_case
def test_a_decoder_sees_no_later_token(word, shape):
    model, _ = decoder(word, shape)
    tokens = torch.randint(0, VOCAB, (1, TOKENS))
    changed = tokens.clone()
    changed[0, -1] = (changed[0, -1] + 1) % VOCAB
    torch.testing.assert_close(model(tokens)[:, :-1], model(changed)[:, :-1])


@pytest.mark.parametrize("word", [word for word, _ in CASES if not find_mixer(word).causal])
def test_what_sees_later_tokens_cannot_stand_in_a_decoder(word):
    with pytest.raises(SpecError, match="cannot stand in a decoder"):
        decoder(word, "w16-h4")


@every_case
def test_probes_measure_what_the_mixer_lists_and_nothing_else(word, shape):
    mixer, model = find_mixer(word), body(word, ModelShape.parse(shape).replace(depth=1))
    x = torch.randn(1, SQUARE, model.shape.width)
    for name in PROBES:
        if name in mixer.probes:
            assert list(measure_probe(name, model, x)) == [f"{name}.layer0"]
        else:
            with pytest.raises(SpecError, match="says nothing of the mixer"):
                measure_probe(name, model, x)


@every_case
def test_kernels_serve_only_who_says_so(word, shape):
    model = body(word, shape, device="meta")
    attention = [block.attention for block in model.blocks]
    assert bool(set().union(*(kernels(one, TOKENS) for one in attention))) <= find_mixer(word).kernels


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("windows-4", "did you mean window"),
        ("window", "needs its size"),
        ("window-4-5", "has 2 numbers"),
        ("window 4", "cannot read 'window 4'"),
        ("talkingx0", "cannot read"),
    ],
)
def test_what_is_no_mixer_is_refused(pattern, message):
    with pytest.raises(SpecError, match=message):
        build("w16-h4-L2", ModelOptions(mixer=pattern))


def test_patterns_repeat_over_the_layers():
    model = build("w16-h4-L5", ModelOptions(mixer="window-3x2,attention"))
    assert [block.attention.mixer for block in model.blocks] == ["window-3"] * 2 + ["attention"] + ["window-3"] * 2
