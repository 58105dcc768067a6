"""Thin BERT (registered): fewer layers with more heads in pre-training on masked text, then fine-tuned.

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802).
Claims: L7.
Task: masked bytes of IMDB's reviews in windows of 64, by a BERT of width 64 with BERT's own initialisation, norms
before each part, and the same 4 dimensions of every head rotated, so that frequencies do not move with the rank; then
SST-2, beginning with that very pre-training, at its learning rate.
Grid: base 6 layers × 4 heads of 16; thin 4 × 8 of 8; control 4 × 4 of 16. Learning rates are chosen on validation of
the masked bytes, from a grid that grows until the best is inside.
Margin: 2 % more masked-LM bits per byte. SST-2 has 872 sentences to test on: differences below 2 points mean nothing,
so errors after fine-tuning are shown beside it, against 8 % of themselves, and decide nothing.
Gates: the base beats 3-grams of both sides and has left the plateau of byte frequencies by half the steps; the control
is worse than the base; rates are inside.
Power: 6 seeds see 2 % with a power of 0.95 or more where paired log ratios have an SD of at most 1 %. On the plateau
they have 5 %: a pilot must show that runs are long past it.
Command: headwise study run thin-bert --preset desktop --data text=imdb --data glue=SST-2
"""

from headwise.ledger.claims import ERROR
from headwise.ledger.registration import Arm, Data, RegisteredClaim, Registration
from headwise.studies._recipes.masked import ALSO, GATES, GRID, REVIEWS, SAVING, TASK, TESTS, bert, masked_arms
from headwise.studies._recipes.registered import better, keeps, registered_study, smaller

SHAPES = {"base": "w64-h4-p4-L6", "thin": "w64-h8-p4-L4", "control": "w64-h4-p4-L4"}
STEPS, TUNED_STEPS, SEEDS, TUNED = 3000, 1000, 6, "SST-2"
SENTENCES = Data(
    task="glue",
    about="GLUE's SST-2 as its folder of train.tsv and dev.tsv",
    digest="167099f9ac1417b3b4",
    train=65_369 * 64,
    split="validation from the training sentences; the published dev file is the test",
)


def tuned(masked: Arm) -> Arm:
    """The same model into good and bad opinions, beginning with what it learned from masked bytes."""
    return masked.replace(
        stratum=TUNED,
        task={"name": "glue", "task": "sst-2", "tokenizer": "bytes", "length": 64},
        options=bert(vocab=259, head="classes", classes=2),
        begin={"name": "pretrained", "run": {"task": TASK, "steps": masked.steps}},
        steps=TUNED_STEPS,
        rate=f"like {masked.variant}",
    )


MASKED = masked_arms(SHAPES, STEPS, SEEDS)
AFTER = tuple(
    test.replace(weights={f"{TUNED}:{name}": weight for name, weight in test.weights.items()})
    for test in (
        keeps("thin", "base", 0.08, ERROR).replace(name="kept after fine-tuning on SST-2"),
        better("thin", "control", "finer heads after fine-tuning on SST-2", ERROR),
    )
)
DESKTOP = Registration(
    study="thin-bert",
    claims=(
        RegisteredClaim(
            id="L7",
            claim="A BERT with a third fewer layers and twice the heads is as good (here: at its pre-training)",
            source="L, experiments",
            family="L",
            tests=TESTS,
            saving=SAVING,
            also=(*ALSO, *AFTER),
            gates=GATES,
            supersedes="300 steps showed when a run leaves the plateau of byte frequencies, and SST-2 learned nothing",
            restated="on reviews, past the plateau, with a control that must be worse than the base",
        ),
    ),
    arms=(*MASKED, *map(tuned, MASKED)),
    grid=GRID,
    sources=(REVIEWS, SENTENCES),
)
SMOKE = smaller(DESKTOP, {"base": "w8-h2-L2", "thin": "w8-h4-L1", "control": "w8-h2-L1"})
STUDY = registered_study("thin-bert", __doc__, DESKTOP, SMOKE, keep_weights=True)
