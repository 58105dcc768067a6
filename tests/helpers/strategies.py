"""Generated shapes, options, runs and their results, for property tests."""

from hypothesis import strategies as st

from headwise.options import ModelOptions
from headwise.shape import AttentionShape, ModelShape, divisors
from headwise.training.run import Run, RunResult

RANKS = st.integers(1, 24)
WIDTHS = st.integers(1, 64)


@st.composite
def attention_shapes(draw, width=WIDTHS, latents=True):
    heads = draw(st.integers(1, 8))
    rank = draw(RANKS)
    latent = draw(st.sampled_from([0, 0, 1, 5, 16])) if latents and rank > 1 else 0
    return AttentionShape(
        width=draw(width),
        heads=heads,
        qk_rank=rank,
        v_rank=draw(RANKS),
        kv_heads=draw(st.sampled_from(divisors(heads))),
        kv_latent=latent,
        q_latent=draw(st.sampled_from([0, 0, 0, 3, 12])) if latents else 0,
        rope_rank=draw(st.integers(0, rank - 1 if latent else rank)),
    )


@st.composite
def model_shapes(draw, max_depth=4, latents=True):
    """Every layer its own shape, or all the same."""
    width = draw(WIDTHS)
    depth = draw(st.integers(1, max_depth))
    layer = attention_shapes(width=st.just(width), latents=latents)
    mlp = st.integers(0, 96)
    if draw(st.booleans()):
        return ModelShape.of([draw(layer)] * depth, [draw(mlp)] * depth)
    return ModelShape.of([draw(layer) for _ in range(depth)], [draw(mlp) for _ in range(depth)])


@st.composite
def model_options(draw):
    family = draw(st.sampled_from(["encoder", "decoder", "vit", "bert"]))
    heads = {"encoder": ["none"], "decoder": ["lm"], "vit": ["none", "classes"], "bert": ["none", "mlm", "classes"]}
    return ModelOptions(
        family=family,
        norm=draw(st.sampled_from(["layer", "layer-plain", "rms", "rms-plain", "unit", "none"])),
        residual=draw(st.booleans()),
        norm_place=draw(st.sampled_from(["pre", "post", "sandwich"])),
        mlp_kind=draw(st.sampled_from(["plain", "gated"])),
        activation=draw(st.sampled_from(["relu", "relu2", "gelu", "gelu-tanh", "silu"])),
        bias=draw(st.sampled_from(["none", "qkv", "all"])),
        positions=draw(st.sampled_from(["none", "learned", "rotary"])),
        qk_norm=draw(st.sampled_from(["none", "rms", "rms-plain"])),
        logit_scale=draw(st.booleans()),
        vocab=draw(st.integers(1, 40)),
        context=32,
        segments=draw(st.sampled_from([0, 2])),
        embedding_norm=draw(st.booleans()),
        final_norm=draw(st.booleans()),
        tied=draw(st.booleans()),
        softcap=draw(st.sampled_from([0.0, 15.0])),
        pooler=draw(st.booleans()),
        head=draw(st.sampled_from(heads[family])),
        classes=7,
        image=12,
        patch=4,
    )


@st.composite
def models(draw, max_depth=3):
    shape = draw(model_shapes(max_depth=max_depth))
    return shape, draw(model_options())


names = st.text(min_size=1, max_size=8)
numbers = st.floats()
plain = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(plain | st.text(max_size=8), lambda inner: st.lists(inner, max_size=3), max_leaves=4)
points = st.lists(st.tuples(st.integers(0, 2**40), names, numbers), max_size=5)


@st.composite
def runs(draw):
    return Run(
        task=draw(st.dictionaries(names, values, max_size=3)) | {"name": draw(names)},
        shape=str(draw(model_shapes())),
        steps=draw(st.integers(1, 2**40)),
        seed=draw(st.integers(0, 2**60)),
        recipe={"learning_rate": draw(st.floats(1e-9, 10)), "betas": [0.9, draw(st.floats(0, 1, exclude_max=True))]},
        probes=draw(st.lists(st.sampled_from(["qk-rank", "vo-rank"]), max_size=2)),
    )


@st.composite
def pairs(draw):
    run = draw(runs())
    return run, RunResult(
        key=run.key,
        status=draw(st.sampled_from(["done", "diverged", "failed"])),
        metrics=draw(st.dictionaries(names, numbers, max_size=4)),
        curve=draw(points),
        probes=draw(points),
        steps=draw(st.integers(0, 2**40)),
        seconds=draw(st.floats(0, 1e9)),
        tokens=draw(st.integers(0, 2**62)),
        flops=draw(st.integers(0, 10**30)),
        parameters=draw(st.integers(0, 2**62)),
        peak_bytes=draw(st.integers(0, 2**62)),
        kernel=draw(st.text(max_size=8)),
        message=draw(st.text(max_size=20)),
        environment=draw(st.dictionaries(names, st.text(max_size=8), max_size=3)),
    )
