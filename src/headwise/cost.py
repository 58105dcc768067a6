"""What a shape costs: parameters, FLOPs, cache. Exact integers; `activations.py` estimates what training keeps.

    >>> cost_of("gpt2").parameters["total"]
    124439808

Conventions, the same for every shape:
- a product of (m, k) and (k, n) is 2·m·k·n FLOPs; nothing but products counts (no norm, softmax, rotation, lookup);
- the plain path: masked positions are computed, so they count; the backward pass is twice the forward pass;
- prefill is one forward pass over the whole context, logits at every position; decode is one more token after it;
- the cache is counted as stored: keys and values of kv_heads, or the latent and the one rotary key.

Tests hold parameters and cache bytes equal to built models, and FLOPs equal to torch's own counter. No torch here.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from headwise.activations import activation_bytes, norm_saved
from headwise.gpu.kernels import kernel_fit
from headwise.known import KNOWN, Known, find
from headwise.mixer import ATTENTION, Mixer, find_mixer, layer_mixers
from headwise.options import ModelOptions, mixer_words
from headwise.shape import AttentionShape, ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.styles import (
    CLASS_LAYERS,
    block_parameters,
    block_products,
    check_style,
    inner_layer,
    merge_parameters,
    merge_products,
    stage_tokens,
    stem_parameters,
    stem_products,
    words,
)

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "float8": 1, "int8": 1}
DTYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
DEFAULT_CONTEXT = 1024
FORWARDS_PER_STEP = 3  # a training step in forward passes: the backward pass is two
BODY_PARTS = ("query", "key", "value", "output", "latents", "mlp", "norms")


@dataclass(frozen=True)
class Cost(Shown):
    """The price of one model, of sequences `context` long; `kv_bytes` and `decode_bytes` are of a batch of them.

    `decode_bytes` is what one decoded token of every sequence reads: the weights that take part, and the cache. Of a
    mixture of experts it is the most: sequences that choose the same expert read it once.
    """

    shape: str
    context: int
    dtype: str
    parameters: dict[str, int]
    flops: dict[str, int]
    kv_bytes_per_token: int
    kv_bytes: int
    weight_bytes: int
    training_state_bytes: int
    activation_bytes: int
    batch: int = 1
    decode_bytes: int = 0
    parameters_active: int = 0  # of the total, those that one token meets: fewer in a mixture of experts
    known_as: str = ""

    @property
    def headline(self) -> str:
        many = "one sequence" if self.batch == 1 else f"{self.batch} sequences"
        return f"{self.known_as} {self.shape}, {many} of {self.context:,} tokens.".lstrip()

    @property
    def kernels(self) -> dict[str, Any]:
        """GPU kernels made for heads of this size, and a warning where none likes them."""
        return kernel_fit(ModelShape.parse(self.shape))

    def as_dict(self) -> dict[str, Any]:
        """What `headwise cost --json` prints."""
        return asdict(self) | {"known_as": self.known_as or None, "kernels": self.kernels}

    def records(self) -> list[dict[str, Any]]:
        """One row per number: what it counts, of which part, how many."""
        parts = [("parameters", name, count) for name, count in self.parameters.items()]
        parts += [("FLOPs", name, count) for name, count in self.flops.items()]
        parts += [("bytes", name, getattr(self, name)) for name in vars(self) if "bytes" in name]
        parts += [("parameters", "active", self.parameters_active)]
        return [{"cost": cost, "of": name, "value": value} for cost, name, value in parts]


def cost_of(
    model: ModelShape | Known | str,
    options: ModelOptions | None = None,
    *,
    context: int = 0,
    batch: int = 1,
    dtype: str = "bfloat16",
    family: str = "",
    mixer: str = "",
    **details: Any,
) -> Cost:
    """Everything `headwise cost` shows, of a shape, a known model or the name of either.

    `dtype` is that of weights and cache; training is counted in float32. A `family` makes a bare shape a model, with
    the `details` it needs: `cost_of("w512-h8-L6", family="llama", vocab=32000)`. A `mixer` takes the place of the
    model's own.
    """
    if isinstance(model, ModelShape):
        model = str(model) if family else Known("", model)
    known = find(model, family, context=context, **details) if isinstance(model, str) else model
    options = options or known.options
    options = options.replace(mixer=mixer) if mixer else options
    shape = options.complete(known.shape)
    dtype = read_dtype(dtype)
    if batch < 1:
        raise SpecError(f"a batch of {batch} sequences is not possible; use 1 or more")
    length = sequence_length(options, context)
    counts, experts = parameters(shape, options), known.experts
    if experts:
        parts = experts.parameters(shape.width)
        parts["norms"] = counts["norms"] + experts.layers * _norm(options, shape.width)  # the one before the experts
        added = sum(parts.values()) - counts["norms"]
        counts |= {**parts, "body": counts["body"] + added, "total": counts["total"] + added}
    products = 2 * experts.products(shape.width) if experts else 0
    kept = experts.layers * norm_saved(options, shape.width) + experts.saved(shape.width) if experts else 0
    forward = forward_flops(shape, options, length) + products * length
    cached = kv_bytes_per_token(shape, options, dtype)
    kv_bytes = batch * cached_numbers(shape, options, known.windows, length) * DTYPE_BYTES[dtype]
    active, read = (counts["total"] - (experts.idle(shape.width, many) if experts else 0) for many in (1, batch))
    tied = options.family == "decoder" and options.tied
    looked_up = counts["embeddings"] - (options.vocab * shape.width if tied else 0)  # a row of the table, not all of it
    return Cost(
        shape=str(shape),
        context=length,
        dtype=dtype,
        parameters=counts,
        flops={
            "train_per_token": FORWARDS_PER_STEP * forward // length,
            "train": FORWARDS_PER_STEP * forward,
            "prefill": forward,
            "decode": decode_flops(shape, options, length) + products,
        },
        kv_bytes_per_token=cached,
        kv_bytes=kv_bytes,
        weight_bytes=counts["total"] * DTYPE_BYTES[dtype],
        training_state_bytes=counts["total"] * 16,  # float32 weights, gradients and AdamW's two moments
        activation_bytes=activation_bytes(shape, options, length, batch, fused=True) + 4 * batch * length * kept,
        batch=batch,
        decode_bytes=(read - looked_up) * DTYPE_BYTES[dtype] + kv_bytes,
        parameters_active=active,
        known_as=known.name,
    )


@dataclass(frozen=True)
class KnownModels(Shown):
    """Every model that headwise knows by name."""

    rows: tuple[dict[str, Any], ...]

    def as_dict(self) -> list[Any]:
        return list(self.rows)

    def records(self) -> list[dict[str, Any]]:
        return list(self.rows)


@dataclass(frozen=True)
class Costs(Shown):
    """Several models, a column each."""

    costs: tuple[Cost, ...]

    def as_dict(self) -> list[Any]:
        return [cost.as_dict() for cost in self.costs]

    def records(self) -> list[dict[str, Any]]:
        """One row per number, with a column per model."""
        rows: dict[tuple[str, str], dict[str, Any]] = {}
        for cost in self.costs:
            for record in cost.records():
                row = rows.setdefault((record["cost"], record["of"]), {"cost": record["cost"], "of": record["of"]})
                row[cost.known_as or cost.shape] = record["value"]
        return list(rows.values())


def known_models() -> KnownModels:
    """Name, shape, family and parameters of each; `published` is what its authors count."""
    return KnownModels(
        tuple(
            {
                "name": known.name,
                "shape": str(known.shape),
                "family": known.options.family,
                "parameters": cost_of(known).parameters["total"],
                "published": known.published,
            }
            for known in KNOWN.values()
        )
    )


def read_dtype(name: str) -> str:
    """A number format by its own name or a short one: fp8 is float8."""
    dtype = DTYPE_NAMES.get(name.lower(), name.lower())
    if dtype not in DTYPE_BYTES:
        raise SpecError(f"no dtype '{name}'; there are {', '.join((*DTYPE_BYTES, *DTYPE_NAMES))}")
    return dtype


def sequence_length(options: ModelOptions, context: int = 0) -> int:
    """Tokens of the sequence that is priced: what was asked for, else the model's own, else a usual number."""
    if context < 0:
        raise SpecError(f"a context of {context} tokens is not possible; leave it out for the model's own")
    return context or options.tokens or DEFAULT_CONTEXT


# ---- parameters ----------------------------------------------------------------------------------------------------


def parameters(shape: ModelShape, options: ModelOptions) -> dict[str, int]:
    """Parameters by part, `body` (what shapes are compared on) and `total`. A bias counts with its matrix."""
    parts: Counter[str] = Counter(dict.fromkeys((*BODY_PARTS, "embeddings", "head"), 0))
    check_style(shape, options)
    for (attention, mlp, mixer), times in counted_layers(shape, options):
        for name, count in layer_parameters(attention, mlp, options, mixer).items():
            parts[name] += times * count
    last = shape.layers[-1].width
    parts["norms"] += _norm(options, last) * options.final_norm
    parts.update(_styled_parts(shape, options))
    body = sum(parts.values())
    parts["embeddings"], parts["head"] = _embeddings(shape.width, options), _head(last, options)
    return {**parts, "body": body, "total": sum(parts.values())}


def parameter_counts(shape: ModelShape, options: ModelOptions) -> dict[str, int]:
    """The two counts that tables, charts and JSON show: all of the model, and its body, which `hold="params"` holds."""
    counts = parameters(shape, options)
    return {"parameters": counts["total"], "parameters_body": counts["body"]}


def counted_layers(shape: ModelShape, options: ModelOptions) -> Iterable[tuple[tuple[AttentionShape, int, Mixer], int]]:
    """The different layers as these options build them, each with its MLP and mixer, and how many there are of each."""
    shape = options.complete(shape)
    return Counter(zip(shape.layers, shape.mlps, layer_mixers(options, shape), strict=True)).items()


def stack_parameters(shape: AttentionShape, mlp: int, depth: int, options: ModelOptions) -> int:
    """Parameters of so many equal layers, but for the mixers that the options give them."""
    mixers = Counter(mixer_words(options.mixer, depth))
    counts = ((layer_parameters(shape, mlp, options, find_mixer(word)), times) for word, times in mixers.items())
    return sum(times * sum(parts.values()) for parts, times in counts)


def layer_parameters(
    shape: AttentionShape, mlp: int, options: ModelOptions, mixer: Mixer = ATTENTION
) -> dict[str, int]:
    """Parameters of one block, by part."""
    w, every = shape.width, options.bias == "all"
    parts = dict.fromkeys(BODY_PARTS, 0) | mixer.parameters(shape, options)
    if mlp:
        first = mlp * (2 if options.mlp_kind == "gated" else 1)
        parts["mlp"] = first * (w + every) + w * (mlp + every)
    norms = (2 if mlp else 1) * (2 if options.norm_place == "sandwich" else 1)
    parts["norms"] += norms * _norm(options, w)
    return parts


def _norm(options: ModelOptions, width: int) -> int:
    return {"layer": 2 * width, "rms": width, "unit": 1}.get(options.norm, 0)


def _styled_parts(shape: ModelShape, options: ModelOptions) -> dict[str, int]:
    """What the blocks of a style have beside those of a ViT, between stages, and in layers for the class token."""
    if options.style == "vit":
        return {}
    parts = {"style": sum(block_parameters(layer.width, options) for layer in shape.layers)}
    merged = [merge_parameters(shape.width * 2**stage, options) for stage in range(len(shape.stages) - 1)]
    parts["merging"] = sum(merged)
    if options.style == "tnt":
        layer, mlp = inner_layer(options)
        parts["style"] += shape.depth * sum(layer_parameters(layer, mlp, options).values())
    if options.style == "xcit":
        own = sum(layer_parameters(shape.layers[-1], shape.mlps[-1], options, find_mixer("class-token")).values())
        parts["style"] += CLASS_LAYERS * (own + 2 * shape.width)
    return parts


def _embeddings(w: int, options: ModelOptions) -> int:
    if options.family == "encoder":
        return 0
    norm = _norm(options, w) * options.embedding_norm
    if options.family == "vit":
        if options.style != "vit":
            return stem_parameters(w, options)
        patches = (options.channels * options.patch**2 + 1) * w
        return patches + w + options.tokens * w
    places = options.context * (options.positions == "learned")
    segments = options.segments * (options.family == "bert")
    return (options.vocab + places + segments) * w + norm


def _head(w: int, options: ModelOptions) -> int:
    bias = options.bias == "all"
    if options.family == "decoder":
        return 0 if options.tied else options.vocab * w
    if options.family == "vit":
        return options.classes * (w + 1) if options.head == "classes" else 0
    if options.family == "bert":
        pooler = w * (w + bias) * options.pooler
        if options.head == "mlm":
            table = 0 if options.tied else options.vocab * w
            return pooler + w * (w + bias) + _norm(options, w) + table + options.vocab * bias
        return pooler + (options.classes * (w + bias) if options.head == "classes" else 0)
    return 0


# ---- FLOPs ---------------------------------------------------------------------------------------------------------


def forward_flops(shape: ModelShape, options: ModelOptions, tokens: int) -> int:
    """One forward pass over one sequence."""
    if options.style != "vit":
        return _styled_flops(shape, options)
    layers = counted_layers(shape, options)
    body = sum(times * layer_flops(a, mlp, options, tokens, tokens, mixer=m) for (a, mlp, m), times in layers)
    return body + _edge_flops(shape.width, options, tokens)


def _styled_flops(shape: ModelShape, options: ModelOptions) -> int:
    """Of one image, whose size decides the tokens of each stage."""
    check_style(shape, options)
    mixers = layer_mixers(options, shape)
    flops = 2 * stem_products(shape.width, options) + 2 * shape.layers[-1].width * options.classes
    for layer, mlp, mixer, stage in zip(shape.layers, shape.mlps, mixers, shape.stage_of, strict=True):
        tokens = stage_tokens(options, stage)
        flops += layer_flops(layer, mlp, options, tokens, tokens, mixer=mixer)
        flops += 2 * block_products(layer.width, tokens, options)
    for stage in range(len(shape.stages) - 1):
        flops += 2 * merge_products(shape.width * 2**stage, stage_tokens(options, stage))
    if options.style == "tnt":
        inner, mlp = inner_layer(options)
        own = layer_flops(inner, mlp, options, words(options), words(options))
        flops += shape.depth * (options.tokens - 1) * own
    if options.style == "xcit":
        layer, keys = shape.layers[-1], options.tokens + 1
        own = find_mixer("class-token").products(layer, options, keys, keys) + 2 * shape.mlps[-1] * shape.width
        flops += CLASS_LAYERS * 2 * own
    return flops


def training_flops(shape: ModelShape, options: ModelOptions, tokens: int) -> int:
    """One forward and one backward pass over one sequence."""
    return FORWARDS_PER_STEP * forward_flops(shape, options, tokens)


def decode_flops(shape: ModelShape, options: ModelOptions, context: int) -> int:
    """One token more, after `context` cached ones. A latent is attended to as it is where that is cheaper."""
    layers, keys = counted_layers(shape, options), context + 1
    body = sum(times * layer_flops(a, mlp, options, 1, keys, cached=True, mixer=m) for (a, mlp, m), times in layers)
    return body + (2 * shape.width * options.vocab if options.family == "decoder" else 0)


def layer_flops(
    shape: AttentionShape,
    mlp: int,
    options: ModelOptions,
    queries: int,
    keys: int,
    *,
    cached: bool = False,
    mixer: Mixer = ATTENTION,
) -> int:
    """One block: `queries` new tokens attend to `keys` tokens; with a cache only the new ones are projected."""
    per_token = mlp * shape.width * (3 if options.mlp_kind == "gated" else 2)
    return 2 * (queries * per_token + mixer.products(shape, options, queries, keys, cached))


def _edge_flops(w: int, options: ModelOptions, tokens: int) -> int:
    """Embedding and head: products only, so table lookups are free."""
    if options.family == "decoder":
        return 2 * tokens * w * options.vocab
    if options.family == "vit":
        patches = (tokens - 1) * options.channels * options.patch**2 * w
        return 2 * (patches + w * options.classes * (options.head == "classes"))
    if options.family == "bert" and options.head == "mlm":
        return 2 * tokens * w * (w + options.vocab)
    if options.family == "bert" and options.head == "classes":
        return 2 * w * (w * options.pooler + options.classes)
    return 0


# ---- bytes ---------------------------------------------------------------------------------------------------------


def cached_per_token(shape: ModelShape) -> int:
    """Numbers that all layers together cache per token, of a shape that leaves nothing to options."""
    return sum(layer.cached_per_token for layer in shape.layers)


def cached_numbers(shape: ModelShape, options: ModelOptions, windows: tuple[int, ...], context: int) -> int:
    """Numbers that all layers cache of a whole sequence; a layer with a window keeps no more than that (0: no window).

    `windows` are those of a known model that its options do not say.
    """
    shape = options.complete(shape)
    spans = [min(context, window or context) for window in windows or (0,) * shape.depth]
    mixers = layer_mixers(options, shape)
    return sum(m.kept(layer, span) for layer, m, span in zip(shape.layers, mixers, spans, strict=True))


def kv_bytes_per_token(shape: ModelShape, options: ModelOptions, dtype: str = "bfloat16") -> int:
    """Bytes of the KV cache per token, in 16 bits unless another type is asked for."""
    return cached_numbers(shape, options, (), 1) * DTYPE_BYTES[dtype]
