"""Where results are: a store that is open, a file, the user's own, or runs in Parquet files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise.store.store import Store

StoreLike = Store | str | Path | None  # None: HEADWISE_STORE, else the file in the user's data folder


@contextmanager
def opened(store: StoreLike = None, results: str | Path | None = None) -> Iterator[Store]:
    """The store, closed again where it was opened here; `results`: read runs from Parquet files there instead."""
    if results is not None:
        with Store.from_parquet(results) as runs:
            yield runs
    elif isinstance(store, Store):
        yield store
    else:
        with Store(store) as own:
            yield own
