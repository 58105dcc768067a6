"""Which layer keeps how many key/value heads: what each costs if it alone is joined, then the best sum in a budget.

A layer with joined heads is one of the old sizes in which heads repeat, so what it costs is measured in the model
itself, on text, without building another one.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.conversion.native import smaller
from headwise.checkpoints.conversion.text import BATCH
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.reader import ProjectionReader
from headwise.checkpoints.seen import Seen, Watch


@dataclass(frozen=True)
class Sensitivity:
    """|new - old|² / |old|² of the last hidden states where one layer alone has so many key/value heads, unfitted."""

    layer: int
    kv_heads: int
    error: float


@torch.no_grad()
def sensitivities(
    model: Any,
    reader: ProjectionReader,
    calibration: Tensor,
    scored: Tensor,
    watch: Callable[[Iterable[int]], Iterable[int]] = iter,
) -> list[Sensitivity]:
    """Every layer with every number of key/value heads that divides its own, measured on the `scored` blocks."""
    before = _last_states(model, scored)
    size = before.square().sum().clamp(min=1e-300)
    seen, found = _seen(model, calibration), []
    for number in watch(range(len(reader.layers))):
        heads, module = reader.heads(number), model.base_model.layers[number].self_attn
        start = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        for count in divisors(heads.shape.kv_heads)[:-1]:
            shape = heads.shape.replace(kv_heads=count)
            new, _ = smaller(heads, shape, seen[number])
            _put(module, reader, number, _repeated(new, len(heads.key) // count))
            error = (_last_states(model, scored) - before).square().sum() / size
            found.append(Sensitivity(number, count, float(error)))
        module.load_state_dict(start)
    return found


def allocate(found: list[Sensitivity], full: int, depth: int, budget: int) -> tuple[int, ...]:
    """Key/value heads of each layer, no more than the budget in all, whose errors add up to the least."""
    costs = [{full: 0.0} | {one.kv_heads: one.error for one in found if one.layer == i} for i in range(depth)]
    best: dict[int, tuple[float, tuple[int, ...]]] = {0: (0.0, ())}
    for layer in costs:
        reached: dict[int, tuple[float, tuple[int, ...]]] = {}
        for used, (total, counts) in best.items():
            for count, cost in layer.items():
                now, new = used + count, (total + cost, (*counts, count))
                if now <= budget and (now not in reached or new < reached[now]):
                    reached[now] = new
        best = reached
    return min(best.values())[1] if best else ()


def divisors(count: int) -> list[int]:
    return [one for one in range(1, count + 1) if count % one == 0]


def _last_states(model: Any, blocks: Tensor) -> Tensor:
    parts = [model.base_model(some, use_cache=False).last_hidden_state for some in blocks.split(BATCH)]
    return torch.cat(parts).double()


def _seen(model: Any, blocks: Tensor) -> list[Seen]:
    """What the attention of every layer sees of these blocks."""
    layers = model.base_model.layers
    watches = [Watch(model.config.hidden_size, blocks.shape[1]) for _ in layers]
    hooks = [
        layer.self_attn.register_forward_pre_hook(
            lambda _, args, given, watch=watch: watch.add(args[0] if args else given["hidden_states"]), with_kwargs=True
        )
        for layer, watch in zip(layers, watches, strict=True)
    ]
    _last_states(model, blocks)
    for hook in hooks:
        hook.remove()
    return [watch.seen for watch in watches if watch.seen is not None]


def _repeated(heads: AttentionHeads, times: int) -> AttentionHeads:
    shared = ("key", "value", "key_bias", "value_bias", "frequencies")
    rows = {name: getattr(heads, name) for name in shared}
    more: dict[str, Any] = {n: None if one is None else one.repeat_interleave(times, 0) for n, one in rows.items()}
    return replace(heads, **more)


def _put(module: Any, reader: ProjectionReader, number: int, heads: AttentionHeads) -> None:
    own, within = dict(module.named_parameters()), f"{reader.layers[number]}self_attn."
    for name, tensor in reader.written(number, heads).items():
        own[name.removeprefix(within)].copy_(tensor)
    if heads.sinks is not None:
        module.sinks.copy_(heads.sinks)
