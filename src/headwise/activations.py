"""What is kept for the backward pass: an estimate, within a tenth of what autograd saves. No torch here."""

from collections import Counter

from headwise.mixer import Mixer, layer_mixers
from headwise.options import ModelOptions
from headwise.shape import AttentionShape, ModelShape
from headwise.styles import check_style

CACHE, LEAST_SAMPLES = 8 * 2**20, 32  # bytes of a core's cache; fewer samples make products too thin


def activation_bytes(
    shape: ModelShape, options: ModelOptions, tokens: int, batch: int = 1, *, fused: bool = False
) -> int:
    """Float32 bytes kept for the backward pass; an estimate, within 10 % of what autograd saves.

    Counted: every tensor a derivative needs (inputs of products, norms and activations, attention weights), once. The
    plain path keeps the attention weights; a fused kernel, which runs by default, keeps none, and no mask.
    """
    check_style(shape, options)
    shape = options.complete(shape)
    rows = Counter(zip(shape.layers, shape.mlps, layer_mixers(options, shape), shape.stage_of, strict=True))
    numbers = sum(
        times * _layer_saved(layer, mlp, mixer, options, tokens // 4**stage, batch, fused)
        for (layer, mlp, mixer, stage), times in rows.items()
    )
    return 4 * (numbers + batch * tokens * _edge_saved(shape.width, options))


def fitting_micro_batches(shape: ModelShape, options: ModelOptions, tokens: int, batch: int) -> int:
    """Parts of a batch whose activations stay in a core's cache: a power of two, of 32 samples or more.

    A pure function of sizes, so that it can stand in a run's spec.
    """
    parts = 1
    while batch // (2 * parts) >= LEAST_SAMPLES and activation_bytes(shape, options, tokens, batch // parts) > CACHE:
        parts *= 2
    return parts


def _layer_saved(
    shape: AttentionShape, mlp: int, mixer: Mixer, options: ModelOptions, tokens: int, batch: int, fused: bool
) -> int:
    w, parts = shape.width, 2 if mlp else 1
    norm = norm_saved(options, w)
    per_token = parts * (w + norm * (2 if options.norm_place == "sandwich" else 1))
    per_token += mixer.saved(shape, options, tokens, fused) + _mlp_saved(mlp, options)
    shared = 0
    if options.causal and not fused:
        shared += tokens * tokens // 4  # the mask, a byte per pair
    if options.positions == "rotary":
        shared += 2 * tokens * shape.rotated  # cosines and sines, for queries and for keys
    return batch * tokens * per_token + shared


def _mlp_saved(mlp: int, options: ModelOptions) -> int:
    if options.mlp_kind == "gated":
        return mlp * (5 if options.activation == "relu2" else 4)
    return mlp * _activation_saved(options)


def _activation_saved(options: ModelOptions) -> int:
    """Tensors: what goes in and what comes out; ReLU's derivative needs only the second."""
    return 1 if options.activation == "relu" else 2


def norm_saved(options: ModelOptions, width: int) -> int:
    """Its input, statistics, and the normalised tokens where a weight multiplies them."""
    if options.norm == "none":
        return 0
    return width + {"layer": 2, "layer-plain": 2, "rms": width + 1, "rms-plain": 1, "unit": width + 2}[options.norm]


def _edge_saved(w: int, options: ModelOptions) -> int:
    """Per token, outside the blocks."""
    norm = norm_saved(options, w)
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
