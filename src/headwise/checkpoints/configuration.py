"""What a configuration alone says of a model: its shape and options, without its weights.

known = read_config("path/config.json")        # or the folder it lies in
known.shape, known.options, known.experts
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.checkpoints import all_readers
from headwise.checkpoints.files import read_configuration
from headwise.checkpoints.reader import Reader
from headwise.comparison.suggest import Suggestions, SuggestionsOfEach, suggest_for
from headwise.cost import Cost, Costs, cost_of
from headwise.known import Known, find
from headwise.options import ModelOptions
from headwise.search import EqualShapes
from headwise.search import equal_cost as search_shapes
from headwise.shape import ModelShape
from headwise.spec import SpecError


def model_of(text: str | Path | Known, family: str = "", **details: Any) -> Known:
    """A known model, a shape, or what a config.json (or the folder it lies in) describes."""
    if isinstance(text, Known):
        return text
    if isinstance(text, Path) or _names_a_file(text):
        return read_config(text)
    return find(text, family, **details)


def _names_a_file(text: str) -> bool:
    """Neither a shape nor a known model has a slash in it."""
    return "/" in text or text.endswith(".json") or Path(text).expanduser().exists()


def suggest(base: str | Path | Known, goal: str = "quality", **settings: Any) -> Suggestions:
    """What to change in a model before any training: exact costs, published evidence, and our own claims.

    `base` is a shape, a known model or a config.json; `goal` is memory, speed or quality. `settings`: context, batch
    and dtype that costs are for, `task` (text, lookup or vision), and a `store` or `results` for our own claims (the
    results that are shipped, where none is named).
    """
    return suggest_for(model_of(base), goal, **settings)


def suggest_each(bases: Iterable[str | Path | Known], goal: str = "quality", **settings: Any) -> SuggestionsOfEach:
    """The same for several models, a column each in the table."""
    return SuggestionsOfEach(tuple(suggest(base, goal, **settings) for base in bases))


def equal_cost(
    base: ModelShape | str | Path | Known, options: ModelOptions | None = None, **settings: Any
) -> EqualShapes:
    """Every shape that costs what the base costs: a shape, a known model or a config.json.

    `settings` are those of `headwise.search.equal_cost`: hold, tolerance, vary, context.
    """
    return search_shapes(base if isinstance(base, ModelShape) else model_of(base), options, **settings)


def price(model: ModelShape | Known | str | Path, options: ModelOptions | None = None, **settings: Any) -> Cost:
    """Parameters, FLOPs, KV cache and memory of a shape, a known model, or a config.json (or the folder it lies in).

    `settings` are those of `headwise.cost.cost_of`: context, dtype, and a family with what it needs.
    """
    if isinstance(model, Path) or (isinstance(model, str) and _names_a_file(model)):
        model = read_config(model)
    return cost_of(model, options, **settings)


def prices(models: Iterable[str | Path | Known | ModelShape], **settings: Any) -> Costs:
    """Several models at once, a column each in the table."""
    return Costs(tuple(price(model, **settings) for model in models))


def read_config(source: str | Path) -> Known:
    """The shape and the options of a Hugging Face config.json, or of the folder it lies in."""
    path = Path(source).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise SpecError(f"there is no configuration '{file}'; give a config.json, or the folder it lies in")
    config: dict[str, Any] = read_configuration(file)
    kind = config.get("model_type")
    for reader in all_readers().values():
        if kind in reader.model_types:
            known = _described(reader, config, file)
            cut = config.get("headwise", {}).get("shape")  # of a truncated checkpoint, whose family cannot say it
            if known is not None:
                return replace(known, shape=ModelShape.parse(cut)) if cut else known
    kind_text = f"model_type '{kind}'" if kind else "no model_type"
    raise SpecError(f"'{file}' has {kind_text}, whose configuration no reader knows how to price; give a shape instead")


def _described(reader: type[Reader], config: dict[str, Any], file: Path) -> Known | None:
    try:
        return reader.described(config)
    except SpecError:
        raise
    except (TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"'{file}' has a value that is no number where there must be one: {error}") from None
