"""nanochat's GPT, as it was published and as it is with value embeddings and sliding windows.

Its cache has slots of one size for keys and one for values. Whatever a layer of another shape keeps of a token is
laid into them flat, so the engine's copying works on it; a layer that keeps more than fits says so.
"""

import copy
import inspect
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.checkpoints.readers.nanochat import NanoChatReader
from headwise.checkpoints.swap.carry import Carried, carry
from headwise.checkpoints.swap.layer import AttentionPlace, HostAttention, InMemory, by_name, factory_of
from headwise.layers.cache import KVCache
from headwise.shape import AttentionShape
from headwise.spec import SpecError

SERVED = "nanochat's GPT"
PROJECTIONS = ("c_q", "c_k", "c_v", "c_proj")
TEMPERATURES = (1.0, 1.44)  # later versions multiply queries and keys by 1.2 each
GATES = (2.0, 3.0)  # what value embeddings are multiplied by at most, in the order of versions
PROBE = 8  # tokens that show which version it is


def places(model: nn.Module) -> list[AttentionPlace]:
    modules = {name: module for name, module in model.named_modules() if all(hasattr(module, p) for p in PROJECTIONS)}
    if not modules or not hasattr(model, "_precompute_rotary_embeddings"):
        return []
    host: Any = next(iter(modules.values()))
    made_by: Any = model._precompute_rotary_embeddings
    base = inspect.signature(made_by).parameters["base"].default
    reader = NanoChatReader(InMemory(model, {"n_head": host.n_head, "rope_theta": base}))
    attentions: list[AttentionPlace] = []
    for number, (name, module) in enumerate(modules.items()):
        made = _NanochatPlace(
            name,
            module,
            reader.heads(number),
            causal=True,
            plain_norm=True,
            factory=factory_of(host.c_q),
            model=model,
            key=str(number),
        )
        _find_version(made)
        attentions.append(made)
    return attentions


@dataclass
class _NanochatPlace(AttentionPlace):
    model: Any = None
    key: str = ""  # of its table of value embeddings
    gate: float = GATES[0]

    @property
    def gated(self) -> bool:
        return getattr(self.module, "ve_gate", None) is not None

    def build(self, shape: AttentionShape, carried: Carried | None) -> HostAttention:
        if carried is not None and self.gated and shape.kv_heads != self.heads.shape.kv_heads:
            raise SpecError(f"'{self.name}' has a value embedding for each key/value head: keep g, or give fresh=True")
        layer = super().build(shape, carried)
        layer.__class__ = _WithAddedValues
        for name, norm in list(layer.named_children()):
            if name.endswith("latent_norm") and isinstance(
                norm, nn.RMSNorm
            ):  # nanochat's norms have no weights, and its optimiser wants matrices
                setattr(layer, name, nn.RMSNorm(norm.normalized_shape, norm.eps, elementwise_affine=False))
        for linear in layer.modules():
            if isinstance(linear, nn.Linear):  # nanochat's own casts its weight to what comes in
                linear.__class__ = type(self.module.c_q)
        return layer

    def sees(self, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        return args[0] if args else options["x"]

    def put(self, layer: HostAttention, carried: Carried | None) -> None:
        host = self.module
        for name in PROJECTIONS:
            delattr(host, name)
        if self.gated:
            self._resize_value_embedding(layer.shape, carried)
        host.headwise = layer
        host.forward = partial(_forward, host, by_name(host, 1), self.gate)

    @property
    def longest(self) -> int:
        return int(self.model.cos.shape[1])

    def extras(self, x: Tensor) -> Tensor | None:
        """Value embeddings."""
        if not self.gated:
            return None
        return torch.randn(*x.shape[:2], self.model.value_embeds[self.key].weight.shape[1], device=x.device).to(x)

    def table(self, x: Tensor) -> Tensor:
        return torch.stack([part.squeeze(2) for part in self._cos_sin(x)]).float()

    def _cos_sin(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.model.cos[:, : x.shape[1]], self.model.sin[:, : x.shape[1]]

    def original(self, x: Tensor, extra: Tensor | None) -> Tensor:
        return self.run(copy.deepcopy(self.module).to(x.dtype), x, extra)

    def run(self, module: Any, x: Tensor, extra: Tensor | None) -> Tensor:
        """nanochat's own module on tokens and value embeddings."""
        given: dict[str, Any] = {"cos_sin": self._cos_sin(x), "kv_cache": None, "window_size": (-1, 0), "ve": extra}
        output: Tensor = module(x, **{name: given[name] for name in by_name(module, 1)})
        return output

    def swapped(self, layer: HostAttention, x: Tensor, extra: Tensor | None, carried: Carried | None) -> Tensor:
        if extra is not None and carried is not None:
            rows = extra.unflatten(-1, (layer.shape.kv_heads, -1)).transpose(1, 2) @ carried.values.mT.to(extra)
            extra = _gated(self.module, x, rows.transpose(1, 2).flatten(2), self.gate)
        output: Tensor = layer(x, values=extra, positions=self.table(x))
        return output

    @torch.no_grad()
    def _resize_value_embedding(self, shape: AttentionShape, carried: Carried | None) -> None:
        """The table follows the values; without values of its own (a latent) a layer has no use for one."""
        tables, host = self.model.value_embeds, self.module
        old = tables[self.key]
        if shape.kv_latent:
            del tables[self.key]
            host.ve_gate = None
            return
        size = shape.kv_heads * shape.v_rank
        table = nn.Embedding(old.num_embeddings, size, device=old.weight.device, dtype=old.weight.dtype)
        if carried is not None:
            rows = old.weight.double().unflatten(1, (shape.kv_heads, -1)).movedim(1, 0) @ carried.values.mT.to(
                old.weight.device
            )
            table.weight.copy_(rows.movedim(0, 1).flatten(1))
        else:
            table.weight.uniform_(-1, 1).mul_(3**0.5 * float(old.weight.double().std()))
            gate = host.ve_gate
            host.ve_gate = type(gate)(gate.in_features, shape.kv_heads, bias=False, **factory_of(gate))
            nn.init.zeros_(host.ve_gate.weight)
        tables[self.key] = table


class _WithAddedValues(HostAttention):
    """`values` are added to what the layer makes of the tokens: nanochat's value embeddings, (B, T, G·V)."""

    def _project(self, x: Tensor, memory: Tensor | None, values: Tensor | None) -> list[Tensor]:
        parts = super()._project(x, memory, None)
        return parts if values is None else [*parts[:2], parts[2] + values]


def _forward(host: Any, names: tuple[str, ...], most: float, x: Tensor, *args: Any, **options: Any) -> Tensor:
    """What the module did, by the same arguments."""
    given = dict(zip(names, args, strict=False)) | options
    cache, ve, (left, _) = given.get("kv_cache"), given.get("ve"), given.get("window_size", (-1, 0))
    table = torch.stack([part.squeeze(2) for part in given["cos_sin"]]).float()
    kept = None if cache is None else _NanochatCache(cache, host.layer_idx)
    start = kept.length if kept else 0
    mask = None
    if 0 <= left < start + x.shape[1]:
        places = torch.arange(start + x.shape[1], device=x.device)
        mask = places[start:, None] - places <= left
    added = None if ve is None else _gated(host, x, ve, most)
    output = host.headwise(x, values=added, mask=mask, positions=table, cache=kept)
    if cache is not None and hasattr(cache, "advance") and host.layer_idx == cache.n_layers - 1:
        cache.advance(x.shape[1])
    return output


def _gated(host: Any, x: Tensor, ve: Tensor, most: float) -> Tensor:
    """A token's value embedding, times what the gate of each key/value head says, between 0 and `most`."""
    gate = most * torch.sigmoid(host.ve_gate(x[..., : host.ve_gate.in_features]))
    return (gate[..., None] * ve.unflatten(-1, (gate.shape[-1], -1))).flatten(-2)


@torch.no_grad()
def _find_version(place: _NanochatPlace) -> None:
    """Versions differ in what they multiply logits and value embeddings by: run the layer on a few tokens and see."""
    shape, module = place.heads.shape, place.module
    x = torch.randn(1, PROBE, shape.width, **place.factory)
    extra = place.extras(x)
    expected = _before_output(module.c_proj, lambda: place.run(module, x, extra))
    same = carry(place.heads, shape)
    for temperature, gate in product(TEMPERATURES, GATES if place.gated else GATES[:1]):
        place.temperature, place.gate = temperature, gate
        layer = place.build(shape, same)
        measured = _before_output(layer.output, lambda layer=layer: place.swapped(layer, x, extra, same))
        if (measured - expected).norm() < 0.02 * expected.norm():
            return
    raise SpecError(f"'{place.name}' computes attention in a way that no known version of nanochat does")


def _before_output(projection: nn.Module, run: Any) -> Tensor:
    """What comes into the output projection, which itself may still be 0."""
    seen: list[Tensor] = []
    hook = projection.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        run()
    finally:
        hook.remove()
    return seen[0].float()


class _NanochatCache(KVCache):
    """nanochat's cache as one layer sees it."""

    def __init__(self, cache: Any, layer: int) -> None:
        super().__init__()
        self.cache, self.layer, self.length = cache, layer, int(cache.get_pos())

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        """(B, G, T, size) or (B, T, size) in, the same of every token out."""
        flat = [tensor if tensor.dim() == 3 else tensor.transpose(1, 2).flatten(2) for tensor in new]
        kept = self._in_slots(flat) if hasattr(self.cache, "get_layer_cache") else self._inserted(flat)
        kept = [rows[..., : given.shape[-1]] for rows, given in zip(kept, flat, strict=True)]
        sizes = [None if tensor.dim() == 3 else tensor.shape[1] for tensor in new]
        return tuple(
            rows if heads is None else rows.unflatten(-1, (heads, -1)).transpose(1, 2)
            for rows, heads in zip(kept, sizes, strict=True)
        )

    def _in_slots(self, new: list[Tensor]) -> list[Tensor]:
        """Slots of (B, longest, heads, size)."""
        slots = [slot.flatten(2) for slot in self.cache.get_layer_cache(self.layer)]
        end = self.length + new[0].shape[1]
        for slot, rows in zip(slots, new, strict=True):
            self._check_room(rows, slot.shape[-1])
            slot[:, self.length : end, : rows.shape[-1]] = rows.detach()
        return [slot[:, :end].to(rows.dtype) for slot, rows in zip(slots, new, strict=True)]

    def _inserted(self, new: list[Tensor]) -> list[Tensor]:
        """The cache grows by itself, and counts by itself."""
        heads, size = self.cache.kv_shape[3], self.cache.kv_shape[5]
        padded = []
        for rows in new:
            self._check_room(rows, heads * size)
            padded.append(F.pad(rows, (0, heads * size - rows.shape[-1])).unflatten(-1, (heads, size)).transpose(1, 2))
        return [kept.transpose(1, 2).flatten(2) for kept in self.cache.insert_kv(self.layer, *padded)]

    def _check_room(self, rows: Tensor, room: int) -> None:
        if rows.shape[-1] > room:
            raise SpecError(
                f"layer {self.layer} keeps {rows.shape[-1]} numbers of a token where nanochat's cache has room for "
                f"{room}: make it with a larger head_dim"
            )
