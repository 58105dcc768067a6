"""Where results are: an open store, a file, the user's own, exported files, or those that are shipped."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headwise.store.exported import exported_in
from headwise.store.store import Store

StoreLike = Store | str | Path | None  # None: HEADWISE_STORE, else the file in the user's data folder


@contextmanager
def opened(store: StoreLike = None, results: str | Path | None = None, *, shipped: bool = False) -> Iterator[Store]:
    """The store, closed again where it was opened here; `results`: read runs from exported files there instead.

    Where neither is named and `shipped`, the results that come with headwise are read.
    """
    if results is None and store is None and shipped:
        results = shipped_results()
    if results is not None:
        with Store.from_files(results) as runs:
            yield runs
    elif isinstance(store, Store):
        yield store
    else:
        with Store(store) as own:
            yield own


def shipped_results() -> Path | None:
    """The runs behind the ledger: inside the installed package, or `results/` of a clone; None where neither is."""
    package = Path(__file__).parents[1]
    places = (package / "results", package.parents[1] / "results")
    return next((place for place in places if exported_in(place)), None)
