"""What a shape costs: parameters, FLOPs, cache and activation bytes. Exact integers, but for activations.

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

from headwise.gpu.kernels import kernel_fit
from headwise.known import KNOWN, Known, find
from headwise.options import ModelOptions
from headwise.shape import AttentionShape, ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "float8": 1, "int8": 1}
DTYPE_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}
DEFAULT_CONTEXT = 1024
FORWARDS_PER_STEP = 3  # a training step in forward passes: the backward pass is two
CACHE, LEAST_SAMPLES = 8 * 2**20, 32  # bytes of a core's cache; fewer samples make products too thin
BODY_PARTS = ("query", "key", "value", "output", "latents", "mlp", "norms")


@dataclass(frozen=True)
class Cost(Shown):
    """The price of one model, of sequences `context` long; `kv_bytes` and `decode_bytes` are of a batch of them.

    `decode_bytes` is what one decoded token of every sequence reads: the weights that take part, and the cache.
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
    note: str = ""  # what the price leaves out

    @property
    def headline(self) -> str:
        note = f" Note: {self.note}." if self.note else ""
        many = "one sequence" if self.batch == 1 else f"{self.batch} sequences"
        return f"{self.known_as} {self.shape}, {many} of {self.context:,} tokens.{note}".lstrip()

    @property
    def kernels(self) -> dict[str, Any]:
        """GPU kernels made for heads of this size, and a warning where none likes them."""
        return kernel_fit(ModelShape.parse(self.shape))

    def as_dict(self) -> dict[str, Any]:
        """What `headwise cost --json` prints."""
        fields = asdict(self) | {"known_as": self.known_as or None, "kernels": self.kernels}
        return fields if self.note else {name: value for name, value in fields.items() if name != "note"}

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
    **details: Any,
) -> Cost:
    """Everything `headwise cost` shows, of a shape, a known model or the name of either.

    `dtype` is that of weights and cache; training is counted in float32. A `family` makes a bare shape a model, with
    the `details` it needs: `cost_of("w512-h8-L6", family="llama", vocab=32000)`.
    """
    if isinstance(model, ModelShape):
        model = str(model) if family else Known("", model)
    known = find(model, family, context=context, **details) if isinstance(model, str) else model
    options = options or known.options
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
    kept = experts.layers * _norm_saved(options, shape.width) + experts.saved(shape.width) if experts else 0
    forward = forward_flops(shape, options, length) + products * length
    cached = kv_bytes_per_token(shape, options, dtype)
    kv_bytes = batch * cached_numbers(shape, known.windows, length) * DTYPE_BYTES[dtype]
    active = counts["total"] - (experts.idle(shape.width) if experts else 0)
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
        decode_bytes=(active - looked_up) * DTYPE_BYTES[dtype] + kv_bytes,
        parameters_active=active,
        known_as=known.name,
        note=known.note,
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
                "parameters": parameters(known.shape, known.options)["total"],
                "published": known.published,
                "note": known.note,
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
    for (attention, mlp), times in counted_layers(shape, options):
        for name, count in layer_parameters(attention, mlp, options).items():
            parts[name] += times * count
    parts["norms"] += _norm(options, shape.width) * options.final_norm
    body = sum(parts.values())
    parts["embeddings"], parts["head"] = _embeddings(shape.width, options), _head(shape.width, options)
    return {**parts, "body": body, "total": sum(parts.values())}


def parameter_counts(shape: ModelShape, options: ModelOptions) -> dict[str, int]:
    """The two counts that tables, charts and JSON show: all of the model, and its body, which `hold="params"` holds."""
    counts = parameters(shape, options)
    return {"parameters": counts["total"], "parameters_body": counts["body"]}


def counted_layers(shape: ModelShape, options: ModelOptions) -> Iterable[tuple[tuple[AttentionShape, int], int]]:
    """The different layers, each with its MLP, as these options build them, and how many there are of each."""
    shape = options.complete(shape)
    return Counter(zip(shape.layers, shape.mlps, strict=True)).items()


def layer_parameters(shape: AttentionShape, mlp: int, options: ModelOptions) -> dict[str, int]:
    """Parameters of one block, by part."""
    w, h, g, r, v = shape.width, shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank
    c, q, p = shape.kv_latent, shape.q_latent, shape.rope_rank
    qkv, every = options.bias != "none", options.bias == "all"
    parts = dict.fromkeys(BODY_PARTS, 0)
    parts["query"] = h * r * q if q else h * r * (w + qkv)
    parts["key"] = c * g * (r - p) + p * (w + qkv) if c else g * r * (w + qkv)
    parts["value"] = c * g * v if c else g * v * (w + qkv)
    parts["output"] = w * (h * v + every)
    parts["latents"] = (q + c) * (w + qkv + 1)  # down-projections, and one norm weight for each number
    if mlp:
        first = mlp * (2 if options.mlp_kind == "gated" else 1)
        parts["mlp"] = first * (w + every) + w * (mlp + every)
    norms = (2 if mlp else 1) * (2 if options.norm_place == "sandwich" else 1)
    parts["norms"] = norms * _norm(options, w)
    parts["norms"] += (r + (p if c else r)) * (options.qk_norm == "rms") + h * options.logit_scale
    return parts


def _norm(options: ModelOptions, width: int) -> int:
    return {"layer": 2 * width, "rms": width, "unit": 1}.get(options.norm, 0)


def _embeddings(w: int, options: ModelOptions) -> int:
    if options.family == "encoder":
        return 0
    norm = _norm(options, w) * options.embedding_norm
    if options.family == "vit":
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
    layers = counted_layers(shape, options)
    body = sum(times * layer_flops(a, mlp, options, tokens, tokens) for (a, mlp), times in layers)
    return body + _edge_flops(shape.width, options, tokens)


def training_flops(shape: ModelShape, options: ModelOptions, tokens: int) -> int:
    """One forward and one backward pass over one sequence."""
    return FORWARDS_PER_STEP * forward_flops(shape, options, tokens)


def decode_flops(shape: ModelShape, options: ModelOptions, context: int) -> int:
    """One token more, after `context` cached ones. A latent is attended to as it is where that is cheaper."""
    layers = counted_layers(shape, options)
    body = sum(times * layer_flops(a, mlp, options, 1, context + 1, cached=True) for (a, mlp), times in layers)
    return body + (2 * shape.width * options.vocab if options.family == "decoder" else 0)


def layer_flops(
    shape: AttentionShape, mlp: int, options: ModelOptions, queries: int, keys: int, *, cached: bool = False
) -> int:
    """One block: `queries` new tokens attend to `keys` tokens; with a cache only the new ones are projected."""
    w, h, g, r, v = shape.width, shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank
    c, q, p = shape.kv_latent, shape.q_latent, shape.rope_rank
    per_token = w * (q or h * r) + q * h * r + h * v * w
    per_token += w * (c + p) if c else w * g * (r + v)
    per_token += mlp * w * (3 if options.mlp_kind == "gated" else 2)
    expanded, absorbed = shape.products(queries, keys)
    return 2 * (queries * per_token + (absorbed if cached and shape.absorbs(queries, keys) else expanded))


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


def cached_numbers(shape: ModelShape, windows: tuple[int, ...], context: int) -> int:
    """Numbers that all layers cache of a whole sequence; a layer with a window keeps no more than that (0: no window).

    Of a shape that leaves nothing to options.
    """
    if not windows:
        return cached_per_token(shape) * context
    spans = (min(context, window or context) for window in windows)
    return sum(layer.cached_per_token * span for layer, span in zip(shape.layers, spans, strict=True))


def kv_bytes_per_token(shape: ModelShape, options: ModelOptions, dtype: str = "bfloat16") -> int:
    """Bytes of the KV cache per token, in 16 bits unless another type is asked for."""
    return cached_per_token(options.complete(shape)) * DTYPE_BYTES[dtype]


def activation_bytes(
    shape: ModelShape, options: ModelOptions, tokens: int, batch: int = 1, *, fused: bool = False
) -> int:
    """Float32 bytes kept for the backward pass; an estimate, within 10 % of what autograd saves.

    Counted: every tensor a derivative needs (inputs of products, norms and activations, attention weights), once. The
    plain path keeps the attention weights; a fused kernel, which runs by default, keeps none, and no mask.
    """
    layers = counted_layers(shape, options)
    numbers = sum(times * _layer_saved(a, mlp, options, tokens, batch, fused) for (a, mlp), times in layers)
    return 4 * (numbers + batch * tokens * _edge_saved(shape.width, options))


def fitting_micro_batches(shape: ModelShape, options: ModelOptions, tokens: int, batch: int) -> int:
    """Parts of a batch whose activations stay in a core's cache: a power of two, of 32 samples or more.

    A pure function of sizes, so that it can stand in a run's spec.
    """
    parts = 1
    while batch // (2 * parts) >= LEAST_SAMPLES and activation_bytes(shape, options, tokens, batch // parts) > CACHE:
        parts *= 2
    return parts


def _layer_saved(shape: AttentionShape, mlp: int, options: ModelOptions, tokens: int, batch: int, fused: bool) -> int:
    w, parts = shape.width, 2 if mlp else 1
    norm = _norm_saved(options, w)
    per_token = parts * (w + norm * (2 if options.norm_place == "sandwich" else 1))
    per_token += _attention_saved(shape, options, tokens, fused) + _mlp_saved(mlp, options)
    shared = 0
    if options.causal and not fused:
        shared += tokens * tokens // 4  # the mask, a byte per pair
    if options.positions == "rotary":
        shared += 2 * tokens * shape.rotated  # cosines and sines, for queries and for keys
    return batch * tokens * per_token + shared


def _attention_saved(shape: AttentionShape, options: ModelOptions, tokens: int, fused: bool) -> int:
    h, g, r, v, c, q = shape.heads, shape.kv_heads, shape.qk_rank, shape.v_rank, shape.kv_latent, shape.q_latent
    if fused:  # keys and values as they are shared, unless a latent makes them; a logarithm for each query
        own = h if c else g
        saved = h * r + own * (r + v) + h * v + h
    else:
        saved = 2 * h * r + 2 * h * v  # queries, keys, values, and what the heads give to the output projection
        saved += h * tokens * (2 if options.causal else 1)  # weights; a mask makes a second copy
    normed = options.qk_norm != "none"
    if normed or c or q or options.logit_scale:  # these keep their input, a part of the whole input projection
        saved += (q or h * r) + (c + shape.rope_rank if c else g * (r + v))
    if normed:
        weighted = options.qk_norm == "rms"
        saved += h * (1 + r * weighted) + (1 + shape.rope_rank * weighted if c else g * (1 + r * weighted))
        saved += h * r if q else 0  # the norm's own input, which the latent's projection gives
    saved += 2 * (q + c)  # latents: normalised, and weighted
    saved += h * r if options.logit_scale and (normed or q) else 0
    return saved


def _mlp_saved(mlp: int, options: ModelOptions) -> int:
    if options.mlp_kind == "gated":
        return mlp * (5 if options.activation == "relu2" else 4)
    return mlp * _activation_saved(options)


def _activation_saved(options: ModelOptions) -> int:
    """Tensors: what goes in and what comes out; ReLU's derivative needs only the second."""
    return 1 if options.activation == "relu" else 2


def _norm_saved(options: ModelOptions, width: int) -> int:
    """Its input, statistics, and the normalised tokens where a weight multiplies them."""
    if options.norm == "none":
        return 0
    return width + {"layer": 2, "layer-plain": 2, "rms": width + 1, "rms-plain": 1, "unit": width + 2}[options.norm]


def _edge_saved(w: int, options: ModelOptions) -> int:
    """Per token, outside the blocks."""
    norm = _norm_saved(options, w)
    saved = norm * options.final_norm
    read = w * (options.head != "none")  # what the head reads
    if options.family == "vit":
        return saved + options.channels * options.patch**2 + read
    if options.family == "encoder":
        return saved
    saved += 2 + norm * options.embedding_norm + read  # token numbers take 8 bytes
    if options.family == "decoder":
        return saved + options.vocab * bool(options.softcap)
    return saved + 2 * bool(options.segments) + (_activation_saved(options) * w + norm if options.head == "mlm" else 0)
