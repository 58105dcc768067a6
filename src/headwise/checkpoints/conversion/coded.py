"""Models whose configuration counts no key/value heads (BERT, GPT-2, OPT, T5, ViT, ...): folders with code.

Heads are joined and cut as everywhere, by weights, or by what layers see of a text; every layer is checked as `swap`
checks it, and its error is that of its outputs. There is no fit and no healing: such a folder is trained as any model.
"""

import math
from pathlib import Path
from typing import Any

import torch

from headwise.checkpoints import open_checkpoint, reader_of
from headwise.checkpoints.conversion.fitting import FittedLayer
from headwise.checkpoints.conversion.native import smaller
from headwise.checkpoints.conversion.result import Conversion
from headwise.checkpoints.conversion.target import read_target
from headwise.checkpoints.conversion.text import BATCH, Blocks, block_losses, change_of, read_blocks
from headwise.checkpoints.conversion.unfinished import Unfinished
from headwise.checkpoints.files import open_weights
from headwise.checkpoints.on_text import load_model
from headwise.checkpoints.reader import find_number
from headwise.checkpoints.seen import Seen
from headwise.checkpoints.swap import measured_error, what_is_seen
from headwise.checkpoints.swap.carry import Carried, carry
from headwise.checkpoints.swap.forms import FORMS
from headwise.checkpoints.swap.hugging_face import places
from headwise.checkpoints.swap.layer import AttentionPlace, InMemory
from headwise.checkpoints.swap.saved import remember
from headwise.shape import AttentionShape, ModelShape
from headwise.spec import SpecError

LONGEST = 256  # tokens, where a configuration does not say how many a model takes


def needs_code(source: str | Path) -> bool:
    """Whether it is a model that swap knows and whose configuration counts no key/value heads."""
    reader = open_checkpoint(source)
    known = any(reader.family in form.families for form in FORMS)
    return known and find_number(reader.weights.config, ["num_key_value_heads"]) is None


@torch.no_grad()
def convert_coded(source: str | Path, to: str | None, data: str | Path | None, unfinished: Unfinished) -> Conversion:
    """The model with attention of headwise in every layer, in a new folder."""
    if to is None:
        raise SpecError(
            f"'{source}' has a configuration that counts no key/value heads: give --to, such as r16 or g2; budgets, "
            "--per-layer and --heal are for decoders that count them"
        )
    folder = open_weights(source).path
    if not folder.is_dir():
        raise SpecError(f"'{source}' is a file: give the folder with its config.json")
    tokenizer, model = load_model(folder, None, bare=True)
    weights = InMemory(model, model.config.to_dict())
    reader, found = reader_of(weights)(weights), places(model)
    blocks = None if data is None else _blocks(tokenizer, model, source, data)
    losses = None if blocks is None or not _predicts(model) else block_losses(model, blocks.held)
    seen: list[Seen] | list[None] = [None] * len(found)
    if blocks is not None:
        calibration = blocks.calibration
        seen = what_is_seen(found, lambda: [model(**_given(model, some)) for some in calibration.split(BATCH)])
    count = sum(p.numel() for p in model.parameters())
    shapes = [_target(to, place.heads.shape, len(found)) for place in found]
    layers = tuple(
        _replaced(number, place, shape, tokens)
        for number, (place, shape, tokens) in enumerate(zip(found, shapes, seen, strict=True))
    )
    remember(model)
    unfinished.write(lambda new: [one.save_pretrained(new) for one in (model, tokenizer) if one is not None])
    by_layer = dict(zip(dict.fromkeys(reader.layers), zip(found, shapes, strict=True), strict=True))
    mlps = [reader.mlp(layer) for layer in reader.layers]
    kept = [(place.heads.shape, shape) for place, shape in by_layer.values() if place.causal]
    old, new = (4 * sum(pair[i].cached_per_token for pair in kept) for i in (0, 1))
    return Conversion(
        source=str(source),
        out=unfinished.folder,
        architecture=type(model).__name__,
        before=str(ModelShape.of([by_layer[layer][0].heads.shape for layer in reader.layers], mlps)),
        after=str(ModelShape.of([by_layer[layer][1] for layer in reader.layers], mlps)),
        parameters_before=count,
        parameters_after=sum(p.numel() for p in model.parameters()),
        kv_bytes_before=old,
        kv_bytes_after=new,
        layers=layers,
        **_scored(unfinished.folder, blocks, losses),
    )


def _blocks(tokenizer: Any, model: Any, source: str | Path, data: str | Path) -> Blocks:
    if tokenizer is None:
        raise SpecError(f"--data is a text, and '{source}' has no tokenizer: leave it out, or see headwise.swap")
    longest = int(getattr(model.config, "max_position_embeddings", LONGEST) or LONGEST)
    return read_blocks(tokenizer, data, longest - 2)  # RoBERTa counts from 2


def _given(model: Any, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens} if model.config.is_encoder_decoder else {})


def _predicts(model: Any) -> bool:
    return type(model).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def _target(to: str, old: AttentionShape, depth: int) -> AttentionShape:
    shape, layers = read_target(to, old, depth)
    if layers != depth or shape.kv_latent:
        raise SpecError(f"--to '{to}': only decoders that count key/value heads lose layers or get a latent")
    return shape


def _replaced(number: int, place: AttentionPlace, shape: AttentionShape, seen: Seen | None) -> FittedLayer:
    heads = place.heads
    if (shape.heads, shape.kv_heads) == (heads.shape.heads, heads.shape.kv_heads):
        carried = carry(heads, shape, seen)
    else:
        new, pairs = smaller(heads, shape, seen)
        factor = math.sqrt(shape.qk_rank / heads.shape.qk_rank)  # logits keep their size
        carried = Carried(new, pairs.expand(shape.kv_heads, -1) if heads.rotated else None, factor, new.value)
    layer = place.build(shape, carried)
    error = measured_error(place, layer, carried, seen) ** 2
    place.put(layer, carried)
    return FittedLayer(number, error, error)


def _scored(out: Path, blocks: Blocks | None, before: torch.Tensor | None) -> dict[str, Any]:
    """The loss before, and that of the folder loaded back."""
    if blocks is None or before is None:
        return {}
    _, back = load_model(out, None)
    after = change_of(block_losses(back, blocks.held), before)
    return {"tokens": blocks.held[:, 1:].numel(), "loss_before": float(before.mean()), "converted": after}
