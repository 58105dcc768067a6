"""Data sets by name, through Hugging Face `datasets` (the extra `hf`), which is imported only when one is asked for.

    rows = load_split("nyu-mll/glue:sst2", "train")      # OWNER/NAME, and after a colon the configuration
    rows = load_split("some/folder", "train")            # a folder of parquet files is a data set as well

A data set is memory-mapped from its own cache on disk, so its size does not matter. Without a network, only what that
cache holds can be read.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headwise.data import text_column
from headwise.spec import SpecError

_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?(:[\w.-]+)?")
_FILE_LIKE = re.compile(r"\.(txt|tsv|csv|gz|xz|zip|tar|jsonl?|py|md|npz|bin|parquet)$")


def is_dataset(source: str) -> bool:
    """Whether a source is a data set name rather than a path, or a folder of parquet files."""
    place = Path(source)
    if source and place.exists():
        return place.is_dir() and any(place.rglob("*.parquet"))
    return bool(_NAME.fullmatch(source)) and not source.startswith(".") and not _FILE_LIKE.search(source)


def load_split(source: str, split: str) -> Any:
    """One split of a data set: something to iterate over for rows as dictionaries, with `column_names`."""
    datasets = _library(source)
    name, _, configuration = (source, "", "") if Path(source).exists() else source.partition(":")
    datasets.disable_progress_bars()
    try:
        return datasets.load_dataset(name, configuration or None, split=split)
    except Exception as error:  # its errors have no common class; each says in its first line what went wrong
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        if Path(source).exists():
            raise SpecError(f"cannot load split '{split}' of the data set in folder '{source}': {what}") from None
        raise SpecError(
            f"there is no file or folder '{source}', and split '{split}' of a data set of that name cannot be loaded: "
            f"{what.rstrip('.')}; without a network give the path of a local file or folder"
        ) from None


def texts(source: str, split: str, field: str) -> Iterator[str]:
    """The texts of a split, a batch of rows at a time."""
    rows = load_split(source, split)
    column = find_text(rows, source, field)
    for some in rows.select_columns([column]).iter(batch_size=256):
        yield from some[column]


def find_text(rows: Any, source: str, field: str | None = None) -> str:
    """The column of a split that holds the text."""
    kinds = {name: getattr(kind, "dtype", "") in ("string", "large_string") for name, kind in rows.features.items()}
    return text_column(kinds, f"data set '{source}'", field)


def no_source(source: str, wanted: str = "file or folder") -> SpecError:
    """The error for a source that is neither what is wanted nor looks like a data set's name."""
    return SpecError(f"there is no {wanted} '{source}'")


def _library(source: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise SpecError(
            f"'{source}' is no file or folder here, and reading it as a data set needs the package datasets: "
            "pip install 'headwise[hf]', or give the path of a local file or folder"
        ) from None
    return datasets
