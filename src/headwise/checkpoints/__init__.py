"""Other people's checkpoints: one reader per family, found by its file; the attention of every layer in one form.

    reader = open_checkpoint("path/to/model")      # or a file, or a name on the Hugging Face hub
    reader.family, str(reader.shape_of([...]))     # ("llama", "w2048-h32-g8-L16-m8192")
    reader.heads(3)                                # layer 3: queries, keys, values, outputs of every head

The family is that of the configuration's model_type; a file without one is known by the names of its tensors. Layers
are read one at a time, when they are asked for. Readers are the files of `readers/`, what installed packages offer as
entry points of the group `headwise.readers`, and files of your own: see docs/guides/adding-a-reader.md.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from headwise.checkpoints.files import Weights, open_weights
from headwise.checkpoints.reader import LayerWatch, Reader
from headwise.spec import OwnFile, SpecError, one_line

ENTRY_POINTS = "headwise.readers"
Chosen = str | Path | type[Reader] | None  # a reader's file, its class, or none: whichever knows the weights


def open_checkpoint(
    source: str | Path, heads: int | None = None, reader: Chosen = None, watch: LayerWatch | None = None
) -> Reader:
    """The reader of a checkpoint; `heads` where the files do not say how many there are.

    `reader` is a file of your own that ends with READER = YourReader, or the class. `watch` is given the numbers of
    the layers in every walk over them, and gives them back one by one: it may show how far the walk has come.
    """
    if heads is not None and heads < 1:
        raise SpecError(f"--heads is {heads}; it must be at least 1")
    chosen = reader_from_file(reader) if isinstance(reader, str | Path) else reader
    weights = open_weights(source)
    opened = (chosen or reader_of(weights))(weights, heads)
    opened.watch = watch or opened.watch
    return opened


def reader_of(weights: Weights) -> type[Reader]:
    """The first family that knows these weights: headwise's own readers before installed ones."""
    for reader in _every_reader():
        if reader.matches(weights.config, weights):
            return reader
    kind = weights.config.get("model_type")
    called = f"is of model_type '{kind}'" if kind else "names no model_type"
    some = ", ".join(f"'{name}'" for name in list(weights)[:3])
    raise SpecError(
        f"'{weights.path}' {called} and has tensors such as {some}: no reader knows them; there are readers for "
        f"{', '.join(sorted(all_readers()))}, and docs/guides/adding-a-reader.md shows how to add one"
    )


def all_readers() -> dict[str, type[Reader]]:
    """Every reader by its family."""
    return {reader.family: reader for reader in _every_reader()}


def _every_reader() -> Iterator[type[Reader]]:
    yield from _own_readers()
    yield from _installed_readers()


@cache
def _own_readers() -> tuple[type[Reader], ...]:
    """The files of `readers/`."""
    from headwise.checkpoints import readers as room

    return tuple(import_module(f"{room.__name__}.{file.name}").READER for file in iter_modules(room.__path__))


def _installed_readers() -> Iterator[type[Reader]]:
    for entry in entry_points(group=ENTRY_POINTS):
        where = f"the entry point '{entry.name}' of {ENTRY_POINTS} ({entry.value})"
        try:
            reader = entry.load()
        except Exception as error:  # whatever somebody else's package raises
            raise SpecError(f"{where} cannot be loaded: {one_line(error)}") from error
        if not _is_reader(reader):
            raise SpecError(f"{where} is no reader: it must name a subclass of headwise.checkpoints.reader.Reader")
        yield _complete(reader)


def reader_from_file(file: str | Path) -> type[Reader]:
    """Somebody's own reader: a Python file with a class named by READER."""
    return _complete(OwnFile(file, "reader").load("READER = YourReader", _is_reader))


def _is_reader(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Reader)


def _complete(reader: type[Reader]) -> type[Reader]:
    missing = sorted(getattr(reader, "__abstractmethods__", ()))
    if missing:
        raise SpecError(f"the reader {reader.__name__} has no {' and no '.join(missing)}, which every reader needs")
    return reader
