"""Other people's checkpoints: one reader a family, found by its file; the attention of every layer in one form.

    reader = open_checkpoint("path/to/model")      # or a file, or a name on the Hugging Face hub
    reader.family, str(shape_of(reader))           # ("llama", "w2048-h32-g8-L16-m8192")
    reader.heads(3)                                # layer 3: queries, keys, values, outputs of every head

The family is that of the configuration's model_type; a file without one is known by the names of its tensors. Layers
are read one at a time, when they are asked for.
"""

from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from headwise.checkpoints.files import Weights, open_weights
from headwise.checkpoints.reader import Reader
from headwise.spec import SpecError


@cache
def all_readers() -> dict[str, type[Reader]]:
    """Every reader by its family: the files of this folder that have one."""
    from headwise.checkpoints import readers as room

    modules = (import_module(f"{room.__name__}.{found.name}") for found in iter_modules(room.__path__))
    found = [module.READER for module in modules]
    return {reader.family: reader for reader in found}


def open_checkpoint(source: str | Path, heads: int | None = None) -> Reader:
    """The reader of a checkpoint; `heads` where the files do not say how many there are."""
    if heads is not None and heads < 1:
        raise SpecError(f"--heads is {heads}; it must be at least 1")
    weights = open_weights(source)
    return reader_of(weights)(weights, heads)


def reader_of(weights: Weights) -> type[Reader]:
    """The first family that knows these weights."""
    for reader in all_readers().values():
        if reader.matches(weights.config, weights):
            return reader
    kind = weights.config.get("model_type")
    called = f"is of model_type '{kind}'" if kind else "names no model_type"
    some = ", ".join(f"'{name}'" for name in list(weights)[:3])
    raise SpecError(
        f"'{weights.path}' {called} and has tensors such as {some}: no reader knows them; there are readers for "
        f"{', '.join(sorted(all_readers()))}, and docs/guides/adding-a-reader.md shows how to add one"
    )
