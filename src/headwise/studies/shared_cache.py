"""Shared cache (registered): grouped and compressed keys and values at equal cache and parameters, on look-up and text.

Source: the note on what the rank paper means for nanochat, points 3 and 4.
Claims: N3, N4.
Tasks: multi-query associative recall, and the next byte of TinyStories, by the same decoder (2 layers of 4 heads, width
32, queries and keys normalised alike in every variant).
Grid: the usual heads; two and one key/value heads for four (GQA, MQA); latents (MLA) with the cache of either, one of
a third of the width, and one of half that again. The MLP takes what is saved, so that parameters are equal.
Scale: a cost is the share of the base's gain that is lost, (e − e_base)/(e_constant − e_base), which an error near 0
and bits with a floor have in common.
Gates: recall: three quarters of the base's seeds solve it (error below 5 %); text: the base beats a 3-gram.
Power: recall is bimodal, so 16 seeds; text 6.
Command: headwise study run shared-cache --preset desktop --data text=tinystories.txt.xz
"""

from headwise.ledger.registration import Arm, Gates, Learned, RateGrid, RegisteredClaim, Registration, Test
from headwise.studies._recipes.registered import (
    MUON_RATES,
    STORIES_3GRAM,
    TINYSTORIES,
    beats,
    decoder,
    muon,
    refilled,
    registered_study,
    smaller,
)

BASE = "w32-h4-L2"
LATENT = "w32-h4-r16-v8-p8-c{}-L2"  # half of each head is rotated, outside of the latent, and is cached once: 8 more
SHAPES = {
    "base": BASE,
    "GQA": "w32-h4-g2-L2",
    "MQA": "w32-h4-g1-L2",
    "MLA, GQA's cache": LATENT.format(24),
    "MLA, a third of the width": LATENT.format(11),
    "MLA, MQA's cache": LATENT.format(8),
    "MLA, a sixth of the width": LATENT.format(5),
}
TUNED = ("base", "GQA", "MQA", "MLA, GQA's cache", "MLA, a third of the width", "MLA, a sixth of the width")
LOST = "share of the gain lost"


def arms() -> tuple[Arm, ...]:
    found = []
    for name, shape in SHAPES.items():
        rate = "" if name in TUNED else "like MLA, a third of the width"
        recall, text = decoder(vocab=32), decoder()
        found.append(
            Arm(
                variant=name, stratum="recall", task={"name": "recall", "vocab": 32, "pairs": 12, "length": 64},
                shape=refilled(shape, BASE, recall) if name != "base" else shape, options=recall, recipe=muon(32),
                steps=3000, seeds=16, rate=rate,
            )
        )  # fmt: skip
        found.append(
            Arm(
                variant=name, stratum="text", task={"name": "text", "context": 64},
                shape=refilled(shape, BASE, text) if name != "base" else shape, options=text, recipe=muon(32),
                steps=2000, seeds=6, rate=rate,
            )
        )  # fmt: skip
    return tuple(found)


def lost(name: str, variant: str, baseline: str, weights: dict[str, float], threshold: float = 0.0) -> Test:
    return Test(
        name=name, variant=variant, baseline=baseline, metric=LOST, scale="gain", weights=weights,
        direction="at least", threshold=threshold,
    )  # fmt: skip


def more_on_recall(variant: str) -> Test:
    weights = {f"recall:{variant}": 1.0, "recall:base": -1.0, f"text:{variant}": -1.0, "text:base": 1.0}
    return lost(f"{variant}: recall loses more than text", f"{variant} on recall", "on text", weights)


def bends(task: str) -> Test:
    """The second halving of the latent costs more than the first: 24 to 11 to 5."""
    first, middle, last = "MLA, GQA's cache", "MLA, a third of the width", "MLA, a sixth of the width"
    weights = {f"{task}:{last}": 1.0, f"{task}:{middle}": -2.0, f"{task}:{first}": 1.0}
    return lost(f"{task}: the second halving costs more", "latent 11 to 5", f"24 to 11; {task}", weights)


def at_equal_cache(task: str, latent: str, shared: str) -> Test:
    weights = {f"{task}:{shared}": 1.0, f"{task}:{latent}": -1.0}
    return lost(f"{task}: sharing loses more than compressing", shared, f"{latent}; {task}", weights)


GATES = Gates(
    learned=(
        Learned(stratum="recall", baseline="solved", value=0.05, solved=0.75, half=0.0),
        beats(STORIES_3GRAM, stratum="text"),
    ),
    rates=TUNED,
)
DESKTOP = Registration(
    study="shared-cache",
    claims=(
        RegisteredClaim(
            id="N4",
            claim="Sharing key/value heads costs most on retrieval-like tasks",
            source="N, 4",
            family="N",
            tests=(more_on_recall("MQA"),),
            also=(
                more_on_recall("GQA"),
                *(at_equal_cache(task, "MLA, MQA's cache", "MQA") for task in ("recall", "text")),
                *(at_equal_cache(task, "MLA, GQA's cache", "GQA") for task in ("recall", "text")),
            ),
            gates=GATES,
            supersedes="it compared an error near 0 with bits that have a floor, and sharing saved parameters",
            restated="as the share of the base's gain that is lost, at equal parameters",
        ),
        RegisteredClaim(
            id="N3",
            claim="Stronger compression of keys and values costs disproportionately",
            source="N, 3",
            family="N",
            tests=(bends("recall"), bends("text")),
            gates=GATES,
            supersedes="latents were not matched in parameters, cache or norm with anything",
            restated="as the share of the base's gain that is lost, with a latent of a third of the width among them",
        ),
    ),
    arms=arms(),
    grid=RateGrid(first=MUON_RATES),
    sources=(TINYSTORIES,),
)
SMOKE = smaller(DESKTOP, {})
STUDY = registered_study("shared-cache", __doc__, DESKTOP, SMOKE)
