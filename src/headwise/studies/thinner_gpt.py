"""Thinner GPT: do more heads make up for fewer layers in a decoder on text?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802), GPT on stories.
Claims: L6.
Task: the next byte of text, by a nanochat-style decoder.
Grid: as in thinner-vit: the paper's pair scaled down (a third of the layers goes, heads double in the same width); as
its control the same layers without the new heads, since only a difference from it would be due to heads; and, the MLP
as it was, heads of the base's size added until a model of fewer layers, down to one, has the base's parameters again.
Each arm has its own learning rate, chosen on validation with a seed that is not judged.
Margin: "keeps" is tested as equivalence, at most 1 % more bits a byte than the base, with at least 25 % of its
parameters saved. Whether the control keeps them as well is shown, not judged: the claim is about the thin model.
Power: in pilots (base and thin, seeds 100 to 102, one rate) their ratio differed between seeds by 0.4 %, so that five
seeds see 0.7 %; the pilots' own was 0.957, and that of the control to the thin arm 0.980 (two seeds).
Command: headwise study run thinner-gpt --preset laptop (about 5 minutes on two cores; --data text=PLACE for stories)
"""

from typing import Any

from headwise.ledger.claims import BITS, Claim, Comparison, Variant, paired, parameters_saved
from headwise.ledger.study import Study
from headwise.options import preset as options_preset
from headwise.shape import ModelShape
from headwise.store.rows import Cell, Row, cell
from headwise.studies.head_size import text_run
from headwise.studies.thinner_vit import as_large

MARGIN, SAVED = 0.01, 0.25
PRESETS: dict[str, dict[str, Any]] = {
    "smoke": {
        "width": 16, "base": (2, 2), "thin": (1, 4), "equal": (1,),
        "context": 8, "batch": 128, "steps": 3, "rates": (0.01,), "seeds": 3,
    },
    "laptop": {
        "width": 32, "base": (6, 2), "thin": (4, 4), "equal": (4, 2, 1),
        "context": 32, "batch": 32, "steps": 300, "rates": (0.01, 0.03), "seeds": 5,
    },
    "paper": {
        "width": 768, "base": (12, 12), "thin": (8, 24), "equal": (8, 4, 2, 1),
        "context": 512, "batch": 256, "steps": 20_000, "rates": (0.0003, 0.001, 0.003), "seeds": 3,
    },
}  # fmt: skip


def arms(preset: dict[str, Any]) -> list[tuple[str, ModelShape]]:
    """Every arm's kind and shape: the base, the paper's thin one, its control, and those of equal parameters."""
    width, (depth, heads), (layers, more) = preset["width"], preset["base"], preset["thin"]
    base = ModelShape(width=width, heads=heads, depth=depth)
    options = options_preset("nanochat", vocab=256)
    return [
        ("base", base),
        ("thin", ModelShape(width=width, heads=more, depth=layers)),
        ("control", ModelShape(width=width, heads=heads, depth=layers)),
        *(("equal parameters", as_large(base, fewer, options)) for fewer in preset["equal"]),
    ]


def cells(preset: dict[str, Any]) -> list[Cell]:
    found = []
    for kind, shape in arms(preset):
        layer = shape.layers[0]
        told = f"{kind}: {shape.depth} × {layer.heads} heads of {layer.qk_rank}"
        found += [Cell({"arm": told, "kind": kind}, text_run(preset, shape, seed)) for seed in range(preset["seeds"])]
    return found


def keeps_its_loss(rows: list[Row]) -> list[Comparison]:
    """L6: thin has at most 1 % more bits per byte than the base, and at most three quarters of its parameters."""
    base, thin = cell(rows, kind="base"), cell(rows, kind="thin")
    if not base or not thin:
        return []
    variant, baseline = (Variant(some[0].cell["arm"], some) for some in (thin, base))
    return [paired(variant, baseline, metric=BITS, at_most=1 + MARGIN), parameters_saved(variant, baseline, SAVED)]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import frontier

    used = PRESETS[preset]
    told = f"decoder of width {used['width']} on text, {used['steps']:,} steps of {used['batch']} × {used['context']} "
    told += "bytes; learning rate of each arm chosen on validation"
    return frontier(rows, "arm", "Fewer layers, more heads", [told], "bits a byte")


CLAIMS = (
    Claim(
        "L6", "A GPT with two thirds of the layers and twice the heads keeps its loss on text", "L, stories",
        "thinner-gpt", keeps_its_loss,
    ),
)  # fmt: skip
STUDY = Study("thinner-gpt", __doc__, PRESETS, cells, chart, CLAIMS)
