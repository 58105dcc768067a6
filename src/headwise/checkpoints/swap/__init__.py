"""Attention of another shape inside a model you have: its masks, caches and `generate` go on working.

    print(headwise.swap(model, "w768-h12-r32"))                          # every layer, in place
    headwise.swap(model, lambda number, old: old.replace(v_rank=32) if number < 6 else None)
    headwise.swap(model, "w768-h12-r32", data=lambda: model(tokens))     # the best for these tokens
    headwise.swap(model, "w768-h6-r128", fresh=True)                     # new weights, to be trained

The same shape changes nothing. Smaller ranks start from the best truncation, larger ones compute what they did and have
new directions to learn in; `swap` gives what it did and the error of every layer. See docs/guides/swap.md.
"""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.seen import Seen, Watch
from headwise.checkpoints.swap import hugging_face, nanochat, saved, torch_layers
from headwise.checkpoints.swap.carry import Carried, carry
from headwise.checkpoints.swap.layer import AttentionPlace, HostAttention
from headwise.shape import AttentionShape
from headwise.shown import Shown
from headwise.spec import SpecError

HOSTS = (hugging_face, nanochat, torch_layers)
TOKENS = 128  # that a layer's error is measured on
SAME = 1e-3  # the error up to which the same weights are taken to compute the same

_ATTENDS = re.compile(r"Attention(?!Output)")

Wanted = AttentionShape | str | None
Choice = Wanted | Callable[[int, AttentionShape], Wanted]


@dataclass(frozen=True)
class SwappedLayer:
    """What became of one layer. `error` is |new - old| / |old| of its outputs; none where weights are new."""

    name: str
    before: AttentionShape
    after: AttentionShape
    error: float | None

    def __str__(self) -> str:
        change = "new weights" if self.error is None else f"outputs differ by {self.error:.2g}"
        return f"{self.name}: {self.before} to {self.after}, {change}"


@dataclass(frozen=True)
class Swap(Shown):
    """What `swap` did, layer by layer."""

    layers: tuple[SwappedLayer, ...]
    measured_on: str
    left: tuple[str, ...] = ()  # attention of the model that stayed as it was, by name

    def __str__(self) -> str:
        return "\n".join([*map(str, self.layers), *([self.headline] if self.headline else [])])

    def as_dict(self) -> dict[str, Any]:
        return {"layers": self.records(), "measured_on": self.measured_on, "left": list(self.left)}

    def records(self) -> list[dict[str, Any]]:
        return [vars(layer) | {"before": str(layer.before), "after": str(layer.after)} for layer in self.layers]

    @property
    def headline(self) -> str:
        known = any(layer.error is not None for layer in self.layers)
        left = f"left as they were: {len(self.left)} attention layers ({', '.join(self.left[:3])}"
        left += ", ...)" if len(self.left) > 3 else ")"
        return "\n".join([*([f"measured on {self.measured_on}"] if known else []), *([left] if self.left else [])])


def swap(model: nn.Module, choice: Choice, *, data: Callable[[], Any] | None = None, fresh: bool = False) -> Swap:
    """Replace attention in the model itself; see the module's first lines.

    `choice` is a shape for every layer, or a function of a layer's number and shape that gives one, or None to leave
    the layer. `data` runs the model on examples without padding: truncation is then the best for what layers see there.
    With `fresh` the new layers begin with new weights, as they must where heads or latents change.
    """
    attentions = _find(model)
    wanted = [_wanted(choice, number, place.heads) for number, place in enumerate(attentions)]
    if data is not None and fresh:
        raise SpecError("data chooses what to keep of old weights, but fresh=True keeps none: leave one of them out")
    seen = [None] * len(attentions) if data is None else what_is_seen(attentions, data)
    pairs = [(place, shape, tokens) for place, shape, tokens in zip(attentions, wanted, seen, strict=True) if shape]
    left = _left(model, {place.name for place, _, _ in pairs})
    made = [_make(place, shape, tokens, fresh) for place, shape, tokens in pairs]  # all of them before any is put in
    layers = []
    for (place, shape, _), (put, error) in zip(pairs, made, strict=True):
        put()
        layers.append(SwappedLayer(place.name, place.heads.shape, shape, error))
    saved.remember(model)
    if not layers:
        raise SpecError("the function gave None for every layer, so there is nothing to swap")
    return Swap(tuple(layers), "random tokens" if data is None else "the data given", left)


def _find(model: nn.Module) -> Sequence[AttentionPlace]:
    if any(isinstance(module, HostAttention) for module in model.modules()):
        raise SpecError("attention in this model has been swapped before: swap once, from the model as it was")
    for host in HOSTS:
        attentions = host.places(model)
        if attentions:
            return attentions
    known = "; ".join(host.SERVED for host in HOSTS)
    raise SpecError(f"a swap does not know the attention in {type(model).__name__}; it knows {known}")


def _left(model: nn.Module, swapped: set[str]) -> tuple[str, ...]:
    """Modules that are attention by their class's name and hold projections, neither swapped nor around such."""
    names = [name for name, module in model.named_modules() if _ATTENDS.search(type(module).__name__)]
    inner = [name for name in names if not any(other.startswith(f"{name}.") for other in names)]
    return tuple(
        name
        for name in inner
        if name not in swapped
        and not any(one.startswith(f"{name}.") or name.startswith(f"{one}.") for one in swapped)
        and any(True for _ in model.get_submodule(name).parameters())
    )


def _wanted(choice: Choice, number: int, old: AttentionHeads) -> AttentionShape | None:
    chosen = choice(number, old.shape) if callable(choice) else choice
    if isinstance(chosen, str):
        chosen = AttentionShape.parse(chosen)
    if chosen is not None and not isinstance(chosen, AttentionShape):
        raise SpecError(f"layer {number} shall have {chosen!r}: give an AttentionShape, its text, or None to leave it")
    return chosen if chosen is None or not old.rotated else _turning(chosen, old)


def _turning(chosen: AttentionShape, old: AttentionHeads) -> AttentionShape:
    """Where nothing is said of it, as large a part of a head turns as before."""
    rank = old.shape.qk_rank
    if chosen.kv_latent or old.rotated == rank or chosen.rope_rank != chosen.qk_rank:
        return chosen.rotary
    return chosen.replace(rope_rank=chosen.qk_rank * old.rotated // rank // 2 * 2)


def _make(
    place: AttentionPlace, shape: AttentionShape, seen: Seen | None, fresh: bool
) -> tuple[Callable[[], None], float | None]:
    """What puts the new layer in its place, and its error."""
    if fresh:
        if shape.width != place.heads.shape.width:
            raise SpecError(f"the model's width is {place.heads.shape.width}, but {shape} has {shape.width}")
        layer = place.build(shape, None)
        return lambda: place.put(layer, None), None
    carried = carry(place.heads, shape, seen)
    layer = place.build(shape, carried)
    return lambda: place.put(layer, carried), measured_error(place, layer, carried, seen)


@torch.no_grad()
def measured_error(place: AttentionPlace, new: HostAttention, carried: Carried, seen: Seen | None) -> float:
    """Against what the model's own code computes, on tokens and on whatever else attention reads, none of it 0.

    In float32 at least: the error is the shape's, not that of rounding. The same shape must give the same outputs:
    where it does not, the model computes something that is not known here, and nothing is swapped.
    """
    dtype = torch.promote_types(place.factory["dtype"], torch.float32)
    x = torch.randn(1, TOKENS, place.heads.shape.width) if seen is None else seen.some
    x = x[:, : place.longest].to(place.factory["device"], dtype)
    extra = place.extras(x)
    expected = place.original(x, extra)
    same = carry(place.heads, place.heads.shape)
    old = place.build(place.heads.shape, same)
    gaps = [
        _gap(place.swapped(copy.deepcopy(one).eval().to(dtype), x, extra, heads), expected)
        for one, heads in ((old, same), (new, carried))
    ]
    if not gaps[0] < SAME:
        raise SpecError(
            f"'{place.name}' ({type(place.module).__name__}) computes something else than headwise does with the same "
            f"weights: outputs differ by {gaps[0]:.2g}; nothing was swapped"
        )
    return gaps[1]


def _gap(measured: Tensor, expected: Tensor) -> float:
    return float((measured - expected).double().norm() / expected.double().norm().clamp(min=1e-300))


def what_is_seen(places: Sequence[AttentionPlace], data: Callable[[], Any]) -> list[Seen]:
    """Run the model and keep what every layer sees."""
    watches = [Watch(place.heads.shape.width, TOKENS) for place in places]
    hooks = [
        place.module.register_forward_pre_hook(
            lambda _, args, options, place=place, watch=watch: watch.add(place.sees(args, options)), with_kwargs=True
        )
        for place, watch in zip(places, watches, strict=True)
    ]
    try:
        with torch.no_grad():
            data()
    finally:
        for hook in hooks:
            hook.remove()
    return [_seen(place, watch) for place, watch in zip(places, watches, strict=True)]


def _seen(place: AttentionPlace, watch: Watch) -> Seen:
    if watch.seen is None:
        raise SpecError(f"data did not run '{place.name}': give a function that calls the model on examples")
    return watch.seen
