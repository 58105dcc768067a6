"""Advice agrees with the evidence, the guide and the ledger: what is recommended, what is a coin flip, and why."""

import math
import re
from pathlib import Path

import pytest

import headwise as hw
from headwise.comparison import suggest as module
from headwise.comparison.evidence.rows import published
from headwise.comparison.evidence.weigh import LEAST_LABS
from headwise.comparison.suggest import ADVICE, advice
from headwise.known import KNOWN, find
from headwise.report.evidence_page import ADVISED, advised
from headwise.shape import ModelShape
from helpers.commands import headwise

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = re.sub(r"\s+", " ", (DOCS / "guides" / "choosing.md").read_text())


def one(better, tie, worse, *, labs=9, cell=None, other=None, refilled=True):
    expected = {"better": better, "tie": tie, "worse": worse}
    evidence = {"cell": {"loss_change": cell}, "other": {"loss_change": other}}
    return {"expected": expected if labs >= LEAST_LABS else None, "evidence": evidence, "refilled": refilled}


EVEN, HARM = {"value": 0.003, "low": -0.001, "high": 0.007}, {"value": 0.004, "low": 0.001, "high": 0.007}


@pytest.mark.parametrize(
    ("evidence", "memory", "quality"),
    [
        (one(0.5, 0.2, 0.3), "recommended", "recommended"),
        (one(0.2, 0.6, 0.2), "recommended", "coin flip"),
        (one(0.2, 0.4, 0.4), "coin flip", "coin flip"),
        (one(0.2, 0.4, 0.4, cell=EVEN), "recommended", "coin flip"),
        (one(0.2, 0.4, 0.4, cell=HARM), "coin flip", "coin flip"),
        (one(0.2, 0.4, 0.4, other=EVEN), "recommended", "coin flip"),
        (one(0.2, 0.4, 0.4, other=EVEN, refilled=False), "coin flip", "coin flip"),  # of labs that spent the saving
        (one(0.1, 0.2, 0.7), "likely worse", "likely worse"),
        (one(0.8, 0.1, 0.1, labs=LEAST_LABS - 1), "too few labs", "too few labs"),
    ],
)
def test_the_words_follow_from_the_forecast_and_the_measured_loss(evidence, memory, quality):
    assert (advice(evidence, "memory"), advice(evidence, "quality")) == (memory, quality)


# ---- the evidence ----------------------------------------------------------------------------------------------------


def counts(family, spent="", dose=""):
    """Of the guide's marker: a family, or one of its cells."""
    shown = hw.evidence()
    if not spent:
        return shown.weighed()[family]
    return next(
        it for name, refilled, size, it in shown.cells() if (name, refilled, size) == (family, spent == "spent", dose)
    )


def test_the_counts_in_the_guide_are_those_of_the_rows():
    marked = re.findall(r"([\d.]+) / ([\d.]+) / ([\d.]+)<!-- (\w+)(?: (spent|kept) (.+?))? -->", GUIDE)
    assert len(marked) == GUIDE.count("<!--") - 1 == 13
    for *said, family, spent, dose in marked:
        assert said == [f"{count:.1f}" for count in counts(family, spent, dose).directions.values()], (family, dose)
    (value, low, high, family, spent, dose) = re.findall(
        r"([\d.]+) % \[−([\d.]+) %, \+([\d.]+) %\]<!-- loss (\w+) (\w+) (.+?) -->", GUIDE
    )[0]
    change = counts(family, spent, dose).change
    assert [value, low, high] == [f"{100 * part:.1f}" for part in (change.value, -change.low, change.high)]


def test_the_advice_turns_with_the_evidence(monkeypatch):
    """Nothing is fixed by hand: were latents better in every lab, one would be first; were sharing worse, not it."""
    rows = published()

    def first(family, effect):
        turned = [
            row.replace(value_base=None, value_arm=None, stated_effect=effect if row.knob == knob else other)
            if row.family == family and row.effect
            else row
            for row in rows
        ]
        monkeypatch.setattr(module, "published", lambda: turned)
        return hw.suggest("qwen3-0.6b", "memory").document["suggestions"]

    knob, other = "more", "worse"
    assert (first("kv_latent", "better")[0]["move"], first("kv_latent", "better")[0]["advice"]) == (
        "a latent cache",
        "recommended",
    )
    knob, other = "less", "better"
    found = {one["move"]: one["advice"] for one in first("kv_heads", "worse")}
    assert "recommended" not in found.values()


def test_no_forecast_below_five_labs_and_the_rows_are_listed_instead():
    """Four labs made as large a change as a latent for nanochat; eight measured a latent at all."""
    document = hw.suggest("nanochat-d20", "memory").document
    latent = next(one for one in document["suggestions"] if one["move"] == "a latent cache")
    assert (latent["labs"], latent["expected"], latent["advice"]) == (4, None, "too few labs")
    assert sum(latent["found"].values()) == pytest.approx(4)
    for one in document["suggestions"]:
        assert (one["expected"] is None) == (one["labs"] < LEAST_LABS)
    lines = headwise("suggest", "nanochat-d20", "--goal", "memory").stdout
    shown = lines.partition("2  w1280-h10-c512")[2].partition("\n3  ")[0]
    assert "no forecast from 4 labs; better in 3.8, even in 0.0, worse in 0.2" in shown
    assert all(row["id"] in shown for row in latent["nearest"])
    assert "%" not in shown.partition("quality")[2].partition("nearest")[0]


@pytest.mark.parametrize("name", ADVISED)
def test_the_rows_behind_a_move_are_the_nearest_in_scale(name):
    document = hw.suggest(name, "memory").document
    for one in document["suggestions"]:
        sizes = [row["scale"] for row in one["nearest"] if row["scale"]]
        distances = [abs(math.log10(size / document["parameters"])) for size in sizes]
        assert distances == sorted(distances)
        assert len({row["lab"] for row in one["nearest"]}) == len(one["nearest"]) == min(3, one["labs"])


@pytest.mark.parametrize("name", ADVISED)
def test_a_suggestion_is_at_most_a_screen(name):
    lines = headwise("suggest", name, "--goal", "memory").stdout.splitlines()
    assert len(lines) <= 40
    assert all(len(line) <= 80 for line in lines if not line.startswith("  headwise compare"))


# ---- the guide and the ledger ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, known in KNOWN.items() if not known.options.image])
def test_what_is_recommended_is_what_the_guide_says(name):
    """Its bold sentences: four query heads per KV head and two KV heads, a latent only instead of a KV head each."""
    base = find(name).shape.layers[0]
    for goal in ("memory", "speed"):
        document = hw.suggest(name, goal).document
        order = [ADVICE.index(one["advice"]) for one in document["suggestions"]]
        assert order == sorted(order)
        for one in document["suggestions"]:
            arm = ModelShape.parse(one["shape"]).layers[0]
            if one["move"] == "a latent cache":
                assert one["advice"] == {"more than 4x": "too few labs", "up to 4x": "coin flip"}[one["dose"]]
                assert base.group == 1 or one["advice"] == "coin flip"
            elif "KV heads" in one["move"]:
                assert arm.kv_heads >= 2
                assert (one["advice"] == "recommended") == (arm.group <= 4)
            elif one["move"] != "fewer, larger heads":
                assert one["advice"] == "too few labs"
    said = ["Up to four query heads per KV head", "never fewer than two KV heads", "Instead of GQA: a coin flip"]
    said += ["Llama-3-8B, which has four query heads per KV head, gets no recommendation"]
    assert [sentence for sentence in said if sentence not in GUIDE] == []


def test_nothing_that_our_own_runs_contradict_is_recommended():
    for name in ADVISED:
        document = hw.suggest(name, "memory").document
        for one in document["suggestions"]:
            failed = [claim["id"] for claim in one["claims"] if claim["verdict"] == "fails"]
            assert one["advice"] != "recommended" or failed == []
        assert document["found_worse"] == []  # L6, L7 and L11 cannot tell


def test_the_four_models_of_the_page():
    first = {name: hw.suggest(name, "memory").document["suggestions"][0] for name in ADVISED}
    assert {name: (one["move"], one["advice"]) for name, one in first.items()} == {
        "gpt2": ("fewer KV heads", "recommended"),
        "nanochat-d20": ("fewer KV heads", "recommended"),
        "qwen3-0.6b": ("fewer KV heads", "recommended"),
        "llama-3-8b": ("a latent cache", "coin flip"),
    }
    page = (DOCS / "results" / "evidence.md").read_text()
    assert all(f"| {' | '.join(row)} |" in page for row in advised())
    assert hw.suggest("llama-3-8b", "memory").headline.startswith("Nothing is recommended for memory")
