"""Packages that the core does without: each belongs to an extra, which is asked for by name where it is missing.

with extra("report", "charts"):
    import altair as alt
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from headwise.spec import SpecError

EXTRAS = {  # what each brings; pyproject.toml has the versions
    "report": ("altair", "vl_convert"),
    "frames": ("polars",),
    "data": ("PIL", "polars", "sklearn", "tokenizers"),
    "baselines": ("sklearn",),
    "theory": ("scipy",),
    "track": ("optuna", "tensorboard", "wandb"),
}


class MissingExtra(SpecError, ImportError):
    """One sentence: what is missing, for what, and how to install it."""


@contextmanager
def extra(name: str, purpose: str) -> Iterator[None]:
    """Imports of what an extra brings; where it is missing, the sentence that asks for it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in EXTRAS[name]:
            raise
        raise missing(name, purpose) from None


def missing(name: str, purpose: str) -> MissingExtra:
    return MissingExtra(f"{purpose} need a package that is not installed: pip install 'headwise[{name}]'")


def require(name: str, purpose: str) -> None:
    """Ask for an extra before the work that would end without it."""
    if not has(name):
        raise missing(name, purpose)


def has(name: str) -> bool:
    """Whether an extra is installed, without importing it."""
    return all(find_spec(module) is not None for module in EXTRAS[name])
