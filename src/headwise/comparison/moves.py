"""Changes of shape that people argue about: what each makes of a model, and which evidence speaks of it.

A move that says `refill` spends what it saves on the MLP, so that the parameters of the body stay what they were. What
a move is called is computed from the two shapes. No torch here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from headwise.options import ModelOptions
from headwise.search import STEP, Candidate, body_parameters, equal_cost
from headwise.shape import AttentionShape, ModelShape, divisors

USUAL_SHARING = 4  # query heads per KV head, up to which labs find little difference
LEAST_KV_HEADS = 2  # one is where benchmarks break
LATENT_HEADS = 4  # a latent is as wide as four heads, and the rotary part half of one: DeepSeek's proportions
SMALL_HEAD = 64  # heads of that size or smaller are often better when larger
THIN = (2, 3)  # of the layers
PROXY_HEAD, PROXY_DEPTH = 32, 4

Change = Callable[[Candidate, ModelOptions], AttentionShape | Candidate | None]


@dataclass(frozen=True)
class Move:
    """A change of shape; `families` are those of the evidence, with what the move makes more or less of."""

    name: str
    goals: tuple[str, ...]
    change: Change
    families: tuple[tuple[str, str], ...]
    claims: tuple[str, ...] = ()
    refill: bool = True

    def apply(self, base: Candidate, options: ModelOptions) -> ModelShape | None:
        """The new shape; None where the move does not apply."""
        changed = self.change(base, options)
        if changed is None:
            return None
        new: Candidate | None = changed if isinstance(changed, Candidate) else replace(base, layer=changed)
        if self.refill and new:
            new = refilled(base, new, options)
        return new.shape if new and new != base else None


def proxy(base: Candidate) -> Candidate:
    """A model of the same heads, smaller: heads of 32 and four layers, for a test before the real one."""
    layer, small = base.layer, min(PROXY_HEAD, base.layer.qk_rank)
    width = small * layer.heads
    if layer.kv_latent or layer.qk_rank != layer.v_rank or width >= layer.width:
        return base
    sizes = {"width": width, "heads": layer.heads, "qk_rank": small, "kv_heads": layer.kv_heads}
    return Candidate(AttentionShape(**sizes), STEP * round(base.mlp * width / layer.width / STEP), PROXY_DEPTH)


def refilled(base: Candidate, new: Candidate, options: ModelOptions) -> Candidate | None:
    """With the MLP that keeps the body's parameters, in steps of 8; None where nothing is left of it."""
    if not base.mlp:
        return new
    whole = body_parameters(base, options)
    one, two = (body_parameters(replace(new, mlp=mlp), options) for mlp in (STEP, 2 * STEP))
    mlp = STEP * (1 + round((whole - one) / (two - one)))
    return replace(new, mlp=mlp) if mlp >= base.layer.width // 2 else None


def label(base: ModelShape, arm: ModelShape) -> str:
    """What differs between two shapes, in words: 'KV heads 12 → 3, MLP 3072 → 4224'."""
    before, after = base.layers[0], arm.layers[0]
    parts = [
        _changed("layers", base.depth, arm.depth),
        _changed("heads", before.heads, after.heads),
        _changed("KV heads", before.kv_heads, after.kv_heads) if not after.kv_latent else "",
        _changed("head dim", before.qk_rank, after.qk_rank) if after.v_rank == after.qk_rank else "",
        _changed("query/key rank", before.qk_rank, after.qk_rank) if after.v_rank != after.qk_rank else "",
        _latent(before, after),
        _changed("MLP", base.mlps[0], arm.mlps[0]),
    ]
    return ", ".join(part for part in parts if part)


def _changed(name: str, before: int, after: int) -> str:
    return f"{name} {before} → {after}" if before != after else ""


def _latent(before: AttentionShape, after: AttentionShape) -> str:
    if after.kv_latent == before.kv_latent:
        return ""
    rotary = f" and a rotary key of {after.rope_rank}" if after.rope_rank else ""
    return f"keys and values cached as a latent of {after.kv_latent}{rotary}"


# ---- the changes ---------------------------------------------------------------------------------------------------


def _shared(base: Candidate, _: ModelOptions, most: int = 0) -> AttentionShape | None:
    """Fewer KV heads: up to four query heads each; where that is so already, twice as many."""
    layer = base.layer
    most = most or (USUAL_SHARING if layer.group < USUAL_SHARING else 2 * layer.group)
    fewer = [g for g in divisors(layer.heads) if LEAST_KV_HEADS <= g < layer.kv_heads and layer.heads <= most * g]
    return None if layer.kv_latent or not fewer else layer.replace(kv_heads=min(fewer))


def _shared_far(base: Candidate, options: ModelOptions) -> AttentionShape | None:
    """Beyond four query heads for each KV head: up to eight; not where the first move goes as far."""
    layer = base.layer
    far = _shared(base, options, 2 * USUAL_SHARING)
    return far if far and layer.group < USUAL_SHARING and far.group > USUAL_SHARING else None


def _latent_cache(base: Candidate, options: ModelOptions) -> AttentionShape | None:
    """A latent of DeepSeek's proportions with its rotary part; nobody measured one beside learned positions."""
    layer = base.layer
    latent, rotary = LATENT_HEADS * layer.qk_rank, 2 * (layer.qk_rank // 4)
    if options.positions == "learned" or layer.kv_latent or 4 * (latent + rotary) > 3 * layer.cached_per_token:
        return None
    return layer.replace(kv_heads=layer.heads, kv_latent=latent, rope_rank=rotary)


def _thin_keys(base: Candidate, _: ModelOptions) -> AttentionShape | None:
    layer = base.layer
    if layer.kv_latent or layer.qk_rank % 4 or layer.qk_rank < SMALL_HEAD or layer.qk_rank != layer.v_rank:
        return None
    half = layer.qk_rank // 2
    return layer.replace(qk_rank=half, rope_rank=min(layer.rope_rank, half))


def _fewer_layers(base: Candidate, _: ModelOptions) -> Candidate | None:
    layer, depth = base.layer, round(base.depth * THIN[0] / THIN[1])
    sizes = (layer.qk_rank, layer.v_rank, layer.rope_rank)
    if layer.kv_latent or any(size % 2 for size in sizes) or not 0 < depth < base.depth:
        return None
    ranks = dict(zip(("qk_rank", "v_rank", "rope_rank"), (size // 2 for size in sizes), strict=True))
    more = layer.replace(heads=2 * layer.heads, kv_heads=2 * layer.kv_heads, **ranks)
    return replace(base, layer=more, depth=depth)


def _larger_heads(base: Candidate, _: ModelOptions) -> AttentionShape | None:
    layer = base.layer
    if layer.qk_rank > SMALL_HEAD or layer.heads % 2 or layer.kv_heads % 2 or layer.kv_latent:
        return None
    halves = {"heads": layer.heads // 2, "kv_heads": layer.kv_heads // 2}
    return layer.replace(**halves, qk_rank=2 * layer.qk_rank, v_rank=2 * layer.v_rank, rope_rank=2 * layer.rope_rank)


def _larger_query_rank(base: Candidate, options: ModelOptions) -> Candidate | None:
    wanted = 2 * base.layer.qk_rank
    if wanted % STEP or base.layer.qk_rank > SMALL_HEAD or base.layer.kv_latent:
        return None
    rows = equal_cost(base.shape, options, vary=("qk_rank",))
    shapes = (row.shape for row in rows if row.shape.layers[0].qk_rank == wanted and row.shape.depth == base.depth)
    found = next(shapes, None)
    return replace(base, layer=found.layers[0], mlp=found.mlps[0]) if found else None


def _more_attention(base: Candidate, _: ModelOptions) -> AttentionShape | None:
    """Half as many heads more, of the same size, if they can still share their KV heads; the MLP pays."""
    layer = base.layer
    if 3 * layer.heads % 2 or 3 * layer.kv_heads % 2 or not base.mlp:
        return None
    return layer.replace(heads=3 * layer.heads // 2, kv_heads=3 * layer.kv_heads // 2)


MOVES = (
    Move("fewer KV heads", ("memory", "speed"), _shared, (("kv_heads", "less"),), ("N4",)),
    Move("even fewer KV heads", ("memory", "speed"), _shared_far, (("kv_heads", "less"),), ("N4",)),
    Move("a latent cache", ("memory",), _latent_cache, (("kv_latent", "more"),), ("N3",)),
    Move("thinner queries and keys", ("memory", "speed"), _thin_keys, (("qk_rank", "less"),), ("N2",), refill=False),
    Move("fewer layers with more heads", ("memory", "speed"), _fewer_layers, (("depth_vs_heads", "less"),),
         ("L5", "L6", "L7", "L8", "L11"), refill=False),
    Move("fewer, larger heads", ("quality", "speed"), _larger_heads, (("head_dim", "more"), ("heads_split", "less")),
         ("N1", "Q7"), refill=False),
    Move("a larger query/key rank", ("quality",), _larger_query_rank, (("qk_rank", "more"),), ("N2",), refill=False),
    Move("more attention, less MLP", ("quality",), _more_attention, (("mlp_vs_heads", "less"),), ("L9",)),
)  # fmt: skip
