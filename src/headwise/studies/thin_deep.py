"""Thin and deep (registered): can a model of 24 layers be thinned too?

Paper: Saratchandran, Teney, Lucey, "Leaner Transformers: More Heads, Less Depth" (arXiv 2505.20802); a question it
leaves open.
Claims: L11.
Task: masked bytes of IMDB's reviews, as in thin-bert, by a BERT of width 48.
Grid: base 24 layers × 4 heads of 12; thin 16 × 8 of 6; control 16 × 4 of 12; the same 4 dimensions of every head are
rotated. Learning rates are chosen on validation, from a grid that grows until the best is inside.
Margin: 2 % more masked-LM bits per byte.
Gates: the base beats 3-grams of both sides and has left the plateau of byte frequencies by half the steps; the control
is worse than the base; rates are inside.
Power: 5 seeds see 2 % with a power of 0.9 or more where paired log ratios have an SD of at most 1 %: a pilot must show
that runs are long past the plateau, where they have 5 %.
Command: headwise study run thin-deep --preset desktop --data text=imdb
"""

from headwise.ledger.registration import RegisteredClaim, Registration
from headwise.studies._recipes.masked import ALSO, GATES, GRID, REVIEWS, SAVING, TESTS, masked_arms
from headwise.studies._recipes.registered import registered_study, smaller

SHAPES = {"base": "w48-h4-p4-L24", "thin": "w48-h8-p4-L16", "control": "w48-h4-p4-L16"}
STEPS, SEEDS = 3000, 5

DESKTOP = Registration(
    study="thin-deep",
    claims=(
        RegisteredClaim(
            id="L11",
            claim="A 24-layer model can be thinned too",
            source="a question L leaves open",
            family="L",
            tests=TESTS,
            saving=SAVING,
            also=ALSO,
            gates=GATES,
            supersedes="250 steps showed when a run leaves the plateau of byte frequencies; on the later seeds alone "
            "it was open",
            restated="past the plateau, with a control that must be worse than the base",
        ),
    ),
    arms=masked_arms(SHAPES, STEPS, SEEDS),
    grid=GRID,
    sources=(REVIEWS,),
)
SMOKE = smaller(DESKTOP, {"base": "w8-h2-L3", "thin": "w8-h4-L2", "control": "w8-h2-L2"})
STUDY = registered_study("thin-deep", __doc__, DESKTOP, SMOKE)
