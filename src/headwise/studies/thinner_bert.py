"""Thinner BERT: do more heads make up for fewer layers in pre-training and fine-tuning, also of a 24-layer model?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802); L11 is a question
it leaves open.
Claims: L7, L11.
Task: masked bytes of text; then SST-2, by a run that begins with that very pre-training, at the same learning rate. The
model is a BERT that reads bytes, with norms before each part, which 24 layers need, and with rotary positions: with
learned ones a pilot was still at 3.98 masked-LM bits per byte after 300 steps (byte frequencies alone: 4.36); with
rotary ones at 3.14, with half the batch size.
Grid: the paper's pair (16 layers × 12 heads, 10 × 24) scaled down, at the same width; its control, the fewer layers
without the new heads; pre-trained only, heads of the base's size added until the fewer layers have its parameters
again, with the MLP as it was, and four times the base's heads. Of 24 layers the pair and the control, pre-trained only.
Each variant has its own learning rate, chosen on validation with a seed that is not judged.
How the pair was chosen: first it was 4 and 8 heads. In pilots 8 heads, of rank 4, were at 3.99 and 3.98 bits after 300
steps, and 4 heads with six layers at 3.14 and 3.15: heads too small for rotary positions, not too few layers, may be
why. So the pair is 2 and 4 heads, of rank 16 and 8; the 8 heads, which did not keep the loss, are shown beside it.
Margin: "keeps" is tested as equivalence: at most 3 % more masked-LM bits per byte than the base, which has learned
something (it has under nine tenths of the bits of byte frequencies alone), with at least 25 % of the parameters saved.
Fine-tuned errors are shown beside it and decide nothing: SST-2 has 872 sentences to test on, so that an error of 0.4
has a standard error of 4 % of itself in each run, and four seeds would see no ratio under 1.1.
Power: two pilots per variant differed by 0.3 %, but between the first four judged seeds the ratio of base and thin
differed by 8 %: runs leave the plateau of byte frequencies at different steps. Four seeds left both claims open, so the
judged pairs got ten, which see a ratio of 1.08 at the level of three comparisons: a choice made on seeing judged runs.
Command: headwise study run thinner-bert --preset laptop --data text=PLACE --data glue=PLACE (about 12 minutes on two
cores; the paper preset about 3 × 10²⁰ FLOPs, 500 hours of a GPU that does 150 TFLOP/s, most of it for 24 layers)
"""

from dataclasses import replace
from functools import partial
from statistics import mean
from typing import Any

from headwise.ledger.claims import MASKED_BITS, Claim, Comparison, beats_no_skill, paired, parameters_saved
from headwise.ledger.study import Preset, Study
from headwise.options import ModelOptions
from headwise.options import preset as options_preset
from headwise.store.rows import Cell, Row, cell
from headwise.studies._recipes.thinner import labelled
from headwise.training.run import Recipe, Run

MARGIN, SAVED, LEARNED = 0.03, 0.25, 1 / 0.9
MASKED, TUNED = "masked bytes", "SST-2"


class ThinnerBertPreset(Preset):
    """Shapes of the usual and of the deep models by variant, those that are fine-tuned, and their training."""

    usual: dict[str, str]
    deep: dict[str, str]
    tuned: tuple[str, ...] = ("base", "thin", "control")
    context: int
    batch: int
    micro_batches: int = 1
    masked_steps: int
    deep_steps: int
    tuned_steps: int
    judged_seeds: int = 3


PRESETS = {
    "smoke": ThinnerBertPreset(
        usual={"base": "w8-h2-L2", "thin": "w8-h4-L1", "control": "w8-h2-L1"},
        deep={"base": "w8-h2-L3", "thin": "w8-h4-L2", "control": "w8-h2-L2"},
        tuned=("base", "thin"),
        context=16,
        batch=64,
        masked_steps=4,
        deep_steps=2,
        tuned_steps=2,
        rates=(0.003,),
    ),
    "laptop": ThinnerBertPreset(
        usual={
            "base": "w32-h2-L6",
            "thin": "w32-h4-L4",
            "control": "w32-h2-L4",
            "as large": "w32-h5-r16-L4",
            "four times the heads": "w32-h8-L4",
        },
        deep={"base": "w32-h2-L24", "thin": "w32-h4-L16", "control": "w32-h2-L16"},
        context=64,
        batch=16,
        masked_steps=300,
        deep_steps=250,
        tuned_steps=60,
        rates=(0.004, 0.01),
        seeds=4,
        judged_seeds=10,
        data={"text": "English text, such as an excerpt of TinyStories", "glue": "GLUE's SST-2"},
    ),
    "paper": ThinnerBertPreset(
        usual={"base": "w768-h12-L16-m1536", "thin": "w768-h24-L10-m1536", "control": "w768-h12-L10-m1536"},
        deep={"base": "w1024-h16-L24", "thin": "w1024-h32-L16", "control": "w1024-h16-L16"},
        context=128,
        batch=4096,
        micro_batches=32,
        masked_steps=18_750,
        deep_steps=18_750,
        tuned_steps=160,
        rates=(0.0003, 0.001),
        data={"text": "English text of many gigabytes", "glue": "GLUE's SST-2"},
    ),
}


def cells(preset: ThinnerBertPreset) -> list[Cell]:
    """The pair that is judged may have more seeds than what is shown beside it."""
    cells = []
    for model, shapes, steps in (
        ("usual", preset.usual, preset.masked_steps),
        ("deep", preset.deep, preset.deep_steps),
    ):
        for variant, shape in shapes.items():
            place = {"model": model, "arm": variant, "shape": shape}
            for seed in range(preset.judged_seeds if variant in ("base", "thin") else preset.seeds):
                masked = masked_run(preset, shape, steps, seed)
                cells.append(Cell({**place, "task": MASKED}, masked))
                if variant in preset.tuned and model == "usual" and seed < preset.seeds:
                    cells.append(Cell({**place, "task": TUNED}, tuned_run(preset, masked)))
    return cells


def masked_run(preset: ThinnerBertPreset, shape: str, steps: int, seed: int) -> Run:
    """Bytes of text, of which some are masked."""
    return Run(
        task={"name": "text", "objective": "masked", "context": preset.context},
        shape=shape,
        options=_options(preset, vocab=257, segments=0, pooler=False, head="mlm"),
        recipe=Recipe(warm_up=0.1, batch=preset.batch, micro_batches=preset.micro_batches, clip=1.0),
        steps=steps,
        seed=seed,
        evaluations=2,
    )


def tuned_run(preset: ThinnerBertPreset, masked: Run) -> Run:
    """Sentences into good and bad opinions, beginning with what the masked run has learned."""
    return masked.replace(
        task={"name": "glue", "task": "sst-2", "tokenizer": "bytes", "length": preset.context},
        options=_options(preset, vocab=259, head="classes", classes=2),
        begin={"name": "pretrained", "run": {"task": masked.task, "steps": masked.steps}},
        steps=preset.tuned_steps,
    )


def _options(preset: ThinnerBertPreset, **changes: Any) -> ModelOptions:
    usual = {"norm_place": "pre", "final_norm": True, "positions": "rotary", "context": preset.context}
    return options_preset("bert", init="unit", **usual, **changes)


def keeps(rows: list[Row], model: str) -> list[Comparison]:
    """L7 and L11: a base that has learned something, a thin model that is as good, and what it saves."""
    base, thin = (labelled(name, cell(rows, model=model, arm=name, task=MASKED)) for name in ("base", "thin"))
    if not base.rows or not thin.rows:
        return []
    return [
        paired(thin, base, metric=MASKED_BITS, at_most=1 + MARGIN),
        beats_no_skill(base, metric=MASKED_BITS, at_most=1 / LEARNED),
        parameters_saved(thin, base, SAVED),
    ]


def chart(rows: list[Row], preset: str) -> Any:
    from headwise.charts.curves import by_parameters, curves

    used = PRESETS[preset]
    sizes = f"width and heads of the base {used.usual['base']}, of the deep one {used.deep['base']}; "
    notes = [sizes + used.tuning]
    tuned = {variant: [row.metrics["error"] for row in cell(rows, task=TUNED, arm=variant)] for variant in used.tuned}
    errors = ", ".join(f"{variant} {mean(values):.3f}" for variant, values in tuned.items() if values)
    notes.append(f"not drawn: errors on SST-2 after fine-tuning, {errors}")
    masked = cell(rows, task=MASKED)
    named = [replace(row, cell={**row.cell, "task": f"pre-training, {row.cell['model']} depth"}) for row in masked]
    title = "Fewer layers, more heads in BERT"
    return curves(by_parameters(named), title, notes, "parameters", "masked-LM bits per byte", log_x=False)


CLAIMS = (
    Claim(
        "L7", "A BERT with a third fewer layers and twice the heads is as good (here: at its pre-training)",
        "L, experiments", "thinner-bert", partial(keeps, model="usual"),
        untestable="in 300 steps it is decided by when a run leaves the plateau of byte frequencies; fine-tuning "
        "learned nothing in this budget",
    ),
    Claim(
        "L11", "A 24-layer model can be thinned too", "a question L leaves open", "thinner-bert",
        partial(keeps, model="deep"),
        untestable="in 250 steps it is decided by when a run leaves the plateau of byte frequencies; on the later "
        "seeds alone it is open",
    ),
)  # fmt: skip
STUDY = Study("thinner-bert", __doc__, PRESETS, cells, chart, CLAIMS, keep_weights=True)
