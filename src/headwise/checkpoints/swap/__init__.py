"""Attention of another shape inside a model you have: its masks, caches and `generate` go on working.

    print(headwise.swap(model, "w768-h12-r32"))                          # every layer, in place
    headwise.swap(model, lambda number, old: old.replace(v_rank=32) if number < 6 else None)
    headwise.swap(model, "w768-h12-r32", data=lambda: model(tokens))     # the best for these tokens
    headwise.swap(model, "w768-h6-r128", fresh=True)                     # new weights, to be trained

The same shape changes nothing. Smaller ranks start from the best truncation, larger ones compute what they did and have
new directions to learn in; `swap` gives what it did and the error of every layer. See docs/guides/swap.md.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.swap import hugging_face, nanochat, torch_layers
from headwise.checkpoints.swap.carry import Seen, carry
from headwise.checkpoints.swap.layer import AttentionPlace, HostAttention
from headwise.shape import AttentionShape
from headwise.shown import Shown
from headwise.spec import SpecError

HOSTS = (hugging_face, nanochat, torch_layers)
TOKENS = 128  # that a layer's error is measured on

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

    def __str__(self) -> str:
        return "\n".join([*map(str, self.layers), *([self.headline] if self.headline else [])])

    def as_dict(self) -> dict[str, Any]:
        return {"layers": self.records(), "measured_on": self.measured_on}

    def records(self) -> list[dict[str, Any]]:
        return [vars(layer) | {"before": str(layer.before), "after": str(layer.after)} for layer in self.layers]

    @property
    def headline(self) -> str:
        known = any(layer.error is not None for layer in self.layers)
        return f"measured on {self.measured_on}" if known else ""


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
    seen = [None] * len(attentions) if data is None else _watch(attentions, data)
    pairs = [(place, shape, tokens) for place, shape, tokens in zip(attentions, wanted, seen, strict=True) if shape]
    made = [_make(place, shape, tokens, fresh) for place, shape, tokens in pairs]  # all of them before any is put in
    layers = []
    for (place, shape, _), (put, error) in zip(pairs, made, strict=True):
        put()
        layers.append(SwappedLayer(place.name, place.heads.shape, shape, error))
    if not layers:
        raise SpecError("the function gave None for every layer, so there is nothing to swap")
    return Swap(tuple(layers), "random tokens" if data is None else "the data given")


def _find(model: nn.Module) -> list[AttentionPlace]:
    if any(isinstance(module, HostAttention) for module in model.modules()):
        raise SpecError("attention in this model has been swapped before: swap once, from the model as it was")
    for host in HOSTS:
        attentions = host.places(model)
        if attentions:
            return attentions
    known = "; ".join(host.SERVED for host in HOSTS)
    raise SpecError(f"a swap does not know the attention in {type(model).__name__}; it knows {known}")


def _wanted(choice: Choice, number: int, old: AttentionHeads) -> AttentionShape | None:
    chosen = choice(number, old.shape) if callable(choice) else choice
    if isinstance(chosen, str):
        chosen = AttentionShape.parse(chosen)
    if chosen is not None and not isinstance(chosen, AttentionShape):
        raise SpecError(f"layer {number} shall have {chosen!r}: give an AttentionShape, its text, or None to leave it")
    return chosen.rotary if chosen is not None and old.rotated else chosen


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
    old = place.build(place.heads.shape, carry(place.heads, place.heads.shape))
    return lambda: place.put(layer, carried), _error(place, old, layer, seen)


@torch.no_grad()
def _error(place: AttentionPlace, old: HostAttention, new: HostAttention, seen: Seen | None) -> float:
    """In float32 at least: the error is the shape's, not that of rounding."""
    weight, turning = old.input.weight, place.heads.frequencies
    old, new = (copy.deepcopy(one).eval().to(torch.promote_types(weight.dtype, torch.float32)) for one in (old, new))
    x = torch.randn(1, TOKENS, old.shape.width) if seen is None else seen.some
    x = x.to(old.input.weight)
    table = None
    if turning is not None:
        angles = torch.arange(x.shape[1])[:, None] * turning[0]
        table = torch.stack([angles.cos(), angles.sin()])[:, None].to(x)
    expected, measured = (layer(x, positions=table) for layer in (old, new))
    return float((measured - expected).double().norm() / expected.double().norm().clamp(min=1e-300))


class _Watch:
    """Sums over the tokens that come into a layer, and the first sequence of them."""

    def __init__(self, place: AttentionPlace) -> None:
        self.place, self.count = place, 0
        width = place.heads.shape.width
        self.sum, self.squares = (torch.zeros(size, dtype=torch.float64) for size in ((width,), (width, width)))
        self.some: Tensor | None = None

    def __call__(self, _: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        x = self.place.sees(args, options).detach().cpu().double()
        rows = x.flatten(0, -2)
        self.count, self.sum, self.squares = (
            self.count + len(rows),
            self.sum + rows.sum(0),
            self.squares + rows.mT @ rows,
        )
        self.some = x[:1, :TOKENS] if self.some is None else self.some

    @property
    def seen(self) -> Seen:
        if self.some is None:
            raise SpecError(f"data did not run '{self.place.name}': give a function that calls the model on examples")
        return Seen(self.sum / self.count, self.squares / self.count, self.some)


def _watch(places: list[AttentionPlace], data: Callable[[], Any]) -> list[Seen]:
    """Run the model and keep what every layer sees."""
    watches = [_Watch(place) for place in places]
    hooks = [w.place.module.register_forward_pre_hook(w, with_kwargs=True) for w in watches]
    try:
        with torch.no_grad():
            data()
    finally:
        for hook in hooks:
            hook.remove()
    return [watch.seen for watch in watches]
