"""A model that does not fit memory, converted from its weights alone: one layer is read, joined and written at a time.

Nothing is run, so there is no text, no fit and no loss; what the folder says is checked against the sizes that
transformers would build from its configuration, without their numbers.
"""

import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints import open_checkpoint
from headwise.checkpoints.conversion.native import smaller
from headwise.checkpoints.conversion.result import Conversion
from headwise.checkpoints.conversion.target import read_target
from headwise.checkpoints.files import Weights, begun_shards, open_weights, write_config, write_weights
from headwise.checkpoints.reader import ProjectionReader
from headwise.cost import cached_per_token
from headwise.shape import AttentionShape
from headwise.spec import SpecError

SHARE = 0.4  # of this machine's memory, up to which a model and its copy are loaded whole


def too_large(source: str | Path) -> bool:
    """Whether the model and its copy are more than memory: both are loaded in 32 bits, whatever the file has."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else math.inf
    return Path(source).is_dir() and 4 * _count(open_weights(source)) > SHARE * memory


def _count(weights: Weights) -> int:
    return sum(math.prod(size) for size in weights.shapes.values())


def convert_streamed(source: str | Path, to: str, folder: Path) -> Conversion:
    """Fewer key/value heads, fewer heads or smaller ranks, in the family's own configuration.

    Files of weights that an interrupted call had finished in the folder are not made again.
    """
    reader = open_checkpoint(source)
    depth = len(reader.layers)
    heads = reader.heads(0)
    shape, layers = read_target(to, heads.shape, depth)
    normed = heads.normed and shape.qk_rank != heads.shape.qk_rank
    joint = heads.query_scale is not None and heads.query_scale.dim() == 2
    known = isinstance(reader, ProjectionReader) and "num_key_value_heads" in reader.weights.config
    other = shape.v_rank != shape.qk_rank
    if not known or shape.kv_latent or other or layers != depth or normed or joint or heads.sinks is not None:
        raise SpecError(
            f"'{source}' is too large for this machine's memory: layer by layer a model can be given fewer key/value "
            "heads, fewer heads, or smaller ranks without norms on queries and keys; this needs more memory"
        )
    assert isinstance(reader, ProjectionReader)
    sizes = {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.qk_rank}
    config = reader.weights.config | sizes
    _check(config, reader, shape)
    write_weights(
        folder, _tensors(reader, shape, {name for names in begun_shards(folder) for name in names}), go_on=True
    )
    write_config(folder, config)
    _copy_beside(reader.weights, folder)
    before = reader.shape_of([heads.shape] * depth)
    after, back = reader.shape_of([shape] * depth), open_weights(folder)
    size = reader.parts(reader.layers[0]).query.weight.element_size()
    counts = [_count(weights) for weights in (reader.weights, back)]
    caches = [size * cached_per_token(one) for one in (before, after)]
    name = (config.get("architectures") or ["AutoModelForCausalLM"])[0]
    return Conversion(str(source), folder, name, str(before), str(after), counts[0], counts[1], caches[0], caches[1])


def _tensors(reader: ProjectionReader, shape: AttentionShape, written: set[str]) -> Iterator[tuple[str, Tensor]]:
    """All but those that are written already."""
    done, each = set(written), set[str]()  # each: what the names of a layer's attention end with
    for number in reader.numbers():
        layer = reader.layers[number]
        if each and {layer + name for name in each} <= written:
            continue
        old = reader.heads(number)
        new, _ = smaller(old, shape, None)
        factor = 1.0 if old.normed else reader.scale(old.shape.qk_rank) / reader.scale(shape.qk_rank)
        changed = reader.written(number, new, factor)
        each = {name.removeprefix(layer) for name in changed}
        yield from ((name, tensor) for name, tensor in changed.items() if name not in done)
        done |= changed.keys()
    for name in reader.weights:
        if name not in done:
            yield name, reader.weights.stored(name)


def _check(config: dict[str, Any], reader: ProjectionReader, shape: AttentionShape) -> None:
    """The sizes that transformers builds from this configuration are those that will be written."""
    import transformers

    kind = transformers.AutoConfig.for_model(config["model_type"]).__class__
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(kind.from_dict(config))
    built = model.state_dict()
    new, _ = smaller(reader.heads(0), shape, None)
    for name, tensor in reader.written(0, new).items():
        if name not in built or built[name].shape != tensor.shape:
            raise SpecError(f"the configuration of {type(model).__name__} cannot say {shape}")


def _copy_beside(weights: Weights, folder: Path) -> None:
    """The tokenizer and the like."""
    for file in weights.path.iterdir():
        small = file.suffix in (".json", ".txt", ".model") and not file.name.endswith(".index.json")
        if small and not (folder / file.name).exists():
            shutil.copy(file, folder / file.name)
