"""What a configuration alone says of a model: its shape and options, without its weights.

known = read_config("path/config.json")        # or the folder it lies in
known.shape, known.options, known.note         # the note says what a price leaves out
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from headwise.checkpoints import all_readers
from headwise.checkpoints.files import read_configuration
from headwise.cost import Cost, cost_of
from headwise.known import Known
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError


def price(model: ModelShape | Known | str | Path, options: ModelOptions | None = None, **settings: Any) -> Cost:
    """Parameters, FLOPs, KV cache and memory of a shape, a known model, or a config.json (or the folder it lies in).

    `settings` are those of `headwise.cost.cost_of`: context, dtype, and a family with what it needs.
    """
    if isinstance(model, Path) or (isinstance(model, str) and Path(model).exists()):
        model = read_config(model)
    return cost_of(model, options, **settings)


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
            known = reader.described(config)
            cut = config.get("headwise", {}).get("shape")  # of a truncated checkpoint, whose family cannot say it
            if known is not None:
                return replace(known, shape=ModelShape.parse(cut)) if cut else known
    kind_text = f"model_type '{kind}'" if kind else "no model_type"
    raise SpecError(f"'{file}' has {kind_text}, whose configuration no reader knows how to price; give a shape instead")
