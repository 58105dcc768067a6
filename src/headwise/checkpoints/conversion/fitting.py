"""Attention of the new model fitted to what the old one computes, layer by layer, on calibration text.

Both models go through the text in step. A layer's new attention sees what the new layers before it have made, and is
fitted by gradient steps to the outputs of the old one, whatever stands between its weights and them: norms, biases, a
latent. A quarter of the text is kept aside: where a fit does not help there, the layer stays as it was worked out.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints.conversion.native import fill_attention
from headwise.checkpoints.conversion.target import Target
from headwise.checkpoints.conversion.unfinished import Unfinished
from headwise.checkpoints.reader import ProjectionReader
from headwise.checkpoints.seen import Seen, Watch

STEPS, RATE, BATCH = 150, 0.02, 8  # the rate is relative to a weight's own size


@dataclass(frozen=True)
class FittedLayer:
    """|new - old|² / |old|² of attention's outputs on calibration text: worked out, and fitted."""

    layer: int
    worked_out: float
    fitted: float


def convert_blind(model: Any, made: Any, reader: ProjectionReader, target: Target) -> None:
    """From the weights alone."""
    for new, number in enumerate(target.layers):
        old = model.base_model.layers[number].self_attn
        fill_attention(made.base_model.layers[new].self_attn, old, reader, number, target.shapes[new], None)


def convert_fitted(
    model: Any,
    made: Any,
    reader: ProjectionReader,
    target: Target,
    blocks: Tensor,
    steps: int = STEPS,
    watch: Callable[..., Any] = iter,
    unfinished: Unfinished | None = None,
    way: int = 0,
    scores: Tensor | None = None,
) -> list[FittedLayer]:
    """From what layers compute on these blocks; what an interrupted call had fitted, on this way, is taken over."""
    (hidden, given), (new_hidden, new_given) = _starts(model, blocks), _starts(made, blocks)
    layers = []
    old_layers = model.base_model.layers
    where = {number: i for i, number in enumerate(target.layers)}
    for number in watch(range(len(old_layers))):
        seen, outputs, hidden = _through(old_layers[number], hidden, given[number])
        if number not in where:
            continue
        layer, options = made.base_model.layers[where[number]], new_given[where[number]]
        part = f"way-{way}-layer-{number}"
        if unfinished and (kept := unfinished.kept(part)):
            layer.self_attn.load_state_dict(kept[0])
            layers.append(FittedLayer(**kept[1]))
        else:
            old = old_layers[number].self_attn
            worth = None if scores is None else scores[number]
            fill_attention(layer.self_attn, old, reader, number, target.shapes[where[number]], _seen(seen), worth)
            inputs, _, _ = _through(layer, new_hidden, options)
            layers.append(_fit(number, layer.self_attn, inputs, outputs, options, steps))
            if unfinished:
                unfinished.keep(part, layer.self_attn.state_dict(), asdict(layers[-1]))
        _, _, new_hidden = _through(layer, new_hidden, options)
    return layers


@torch.no_grad()
def _starts(model: Any, blocks: Tensor) -> tuple[Tensor, list[dict[str, Any]]]:
    """What comes into the first layer, and what else every layer is given, for a batch of one."""
    options: list[dict[str, Any]] = []
    first: list[Tensor] = []

    def keep(_: Any, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        rest = {name: value for name, value in given.items() if name not in ("hidden_states", "past_key_values")}
        options.append(rest | {"use_cache": False})

    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in model.base_model.layers]
    model(blocks[:1], use_cache=False)
    for hook in hooks:
        hook.remove()
    layer = model.base_model.layers[0]
    hook = layer.register_forward_pre_hook(
        lambda _, args, given: first.append((args[0] if args else given["hidden_states"]).detach()), with_kwargs=True
    )
    for some in blocks.split(BATCH):
        model(some, use_cache=False)
    hook.remove()
    return torch.cat(first), options


@torch.no_grad()
def _through(layer: Any, hidden: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """What attention saw in the layer, what it gave, and what the layer gave."""
    seen: list[Tensor] = []
    gave: list[Tensor] = []

    def keep(_: Any, args: tuple[Any, ...], given: dict[str, Any], output: Any) -> None:
        seen.append(args[0] if args else given["hidden_states"])
        gave.append(output[0])

    hook = layer.self_attn.register_forward_hook(keep, with_kwargs=True)
    outputs = []
    for some in hidden.split(BATCH):
        output = layer(some, **options)
        outputs.append(output[0] if isinstance(output, tuple) else output)
    hook.remove()
    return torch.cat(seen), torch.cat(gave), torch.cat(outputs)


def _seen(x: Tensor) -> Seen:
    watch = Watch(x.shape[-1], x.shape[1])
    watch.add(x)
    assert watch.seen is not None
    return watch.seen


def _fit(
    number: int, attention: Any, inputs: Tensor, outputs: Tensor, options: dict[str, Any], steps: int
) -> FittedLayer:
    given = {name: value for name, value in options.items() if name != "use_cache"}
    aside = max(len(inputs) // 4, 1)
    before = _gap(attention, inputs[-aside:], outputs[-aside:], given)
    if steps == 0 or len(inputs) <= aside or before < 1e-9:
        return FittedLayer(number, before, before)
    start = {name: tensor.clone() for name, tensor in attention.state_dict().items()}
    sizes = [(p, float(p.detach().square().mean().sqrt()) or 1e-3) for p in attention.parameters()]
    optimizer = torch.optim.Adam([{"params": [p], "lr": RATE * size, "size": size} for p, size in sizes])
    generator = torch.Generator().manual_seed(number)
    scale = float(outputs.square().mean())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = RATE * group["size"] * (1 - step / steps)
        rows = torch.randint(len(inputs) - aside, (BATCH,), generator=generator)
        loss = (attention(inputs[rows], **given)[0] - outputs[rows]).square().mean() / max(scale, 1e-24)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    attention.zero_grad()
    after = _gap(attention, inputs[-aside:], outputs[-aside:], given)
    if not after < before:
        attention.load_state_dict(start)
    return FittedLayer(number, before, min(after, before))


@torch.no_grad()
def _gap(attention: Any, inputs: Tensor, outputs: Tensor, given: dict[str, Any]) -> float:
    measured = torch.cat([attention(some, **given)[0] for some in inputs.split(BATCH)])
    return float((measured - outputs).double().square().sum() / outputs.double().square().sum().clamp(min=1e-300))
