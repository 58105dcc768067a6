"""Predicted losses: from the ladder's laws and no further, else what others published."""

import json
import math

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from headwise.cli.app import app
from headwise.comparison.prediction import COMMAND, Rung, fit_variant, predict
from headwise.ledger.statistics import LEVEL
from headwise.spec import SpecError
from headwise.studies.ladder import SIZES
from helpers.ladder import climb, truth

BETWEEN = "w80-h4-L6"  # a size that the ladder does not have


@pytest.fixture(scope="module")
def climbed(tmp_path_factory):
    return climb(tmp_path_factory.mktemp("ladder") / "made.db")


def asked(*words):
    return CliRunner().invoke(app, ["predict", *words])


def told(*words):
    return " ".join(asked(*words).stdout.split())


def as_json(*words):
    return json.loads(asked(*words, "--json").stdout)


def test_the_line_is_the_textbooks_with_its_covariance():
    """Against weighted least squares written out: every seed a point, the spread that of the sizes' means."""
    rungs = [Rung(10**5, 1.1, 6), Rung(3 * 10**5, 0.98, 5), Rung(8 * 10**5, 0.9, 3), Rung(2 * 10**6, 0.79, 2)]
    law = fit_variant("base", rungs)
    x, y, w = (np.array([getattr(one, name) for one in rungs], float) for name in ("parameters", "log_loss", "seeds"))
    slope, level = np.polyfit(np.log(x), y, 1, w=np.sqrt(w))
    near, far = law.predict(500_000), law.predict(50_000_000)
    assert math.log(near.value) == pytest.approx(level + slope * math.log(500_000))
    repeated = np.repeat(np.log(x), w.astype(int))
    left = y - level - slope * np.log(x)
    variance = float(w @ left**2) / 2
    around = np.square(repeated - repeated.mean()).sum()
    error = math.sqrt(variance * (1 + 1 / len(repeated) + (math.log(500_000) - repeated.mean()) ** 2 / around))
    assert math.log(near.high / near.value) == pytest.approx(stats.t.ppf(0.5 + LEVEL / 2, 2) * error)
    assert law.covariance[1, 1] == pytest.approx(variance / around)
    assert math.log(far.high / far.low) > 1.5 * math.log(near.high / near.low)
    assert (near.outside, len(far.outside)) == ((), 1)


def test_a_variant_has_its_own_law_of_the_ladder(climbed):
    found = as_json(BETWEEN, "--store", str(climbed))
    size = 6 * (4 * 80 * 80 + 8 * 80 * 80) + 2 * 256 * 80
    assert found["loss"] == pytest.approx(truth(size), rel=0.02)
    assert found["low"] < found["loss"] < found["high"]
    assert (found["shape"], found["points"], found["outside"], found["evidence"]) == ("w80-h4-p4-L6", 5, [], [])
    assert found["steps"] == pytest.approx(10 * size / 2048, rel=0.001)
    assert "variant 'base', fitted to 5 sizes (22 runs)" in found["law"]
    for part in ("books.txt.xz", "bytes", "context 64", "batch 32", "10 bytes per parameter", "decoder", "rotary"):
        assert part in found["trained"]
    assert "'thin'" in as_json("w80-h8-p4-L4", "--store", str(climbed))["law"]
    assert as_json(BETWEEN, "--steps", str(found["steps"]), "--store", str(climbed))["loss"] == found["loss"]


def test_the_interval_widens_and_what_is_carried_on_says_so(climbed):
    near, far = (as_json(shape, "--store", str(climbed)) for shape in (BETWEEN, "w512-h4-L6"))
    assert math.log(far["high"] / far["low"]) > math.log(near["high"] / near["low"])
    assert "parameters 19," in far["outside"][0]
    assert f"the ladder has {min(SIZES.values()):,} to" in far["outside"][0]
    assert "carried on beyond the runs: parameters" in told("w512-h4-L6", "--store", str(climbed))


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("w1024-h4-L6",), "a law reaches 30 times at most"),
        (("gpt2",), "the only laws are of the ladder's variants, by width: base h4-p4-L6"),
        ((BETWEEN, "--steps", "99"), "no law knows 99; leave --steps out"),
    ],
)
def test_where_no_law_reaches_there_is_published_evidence_and_no_number(climbed, words, why):
    found = as_json(*words, "--store", str(climbed))
    assert (found["loss"], found["low"], found["high"]) == (None, None, None)
    assert why in found["why_not"]
    assert len(found["evidence"]) == 5
    printed = told(*words, "--store", str(climbed))
    assert printed.startswith("No number for")
    assert "Published comparisons nearest in scale" in printed
    assert "bits per byte (" not in printed


def test_the_rows_are_those_nearest_in_scale(climbed):
    assert all(5e7 < row["scale"] < 3e8 for row in as_json("gpt2", "--store", str(climbed))["evidence"])


def test_without_a_ladder_there_is_no_number(tmp_path):
    """A plain sentence, with the command that makes its runs; published evidence stands beside it."""
    for shape in (BETWEEN, "gpt2"):
        found = asked(shape, "--store", str(tmp_path / "empty.db"))
        printed = " ".join(found.stdout.split())
        assert found.exit_code == 0
        assert "there are no judged runs of the ladder here" in printed
        assert COMMAND in printed
        assert "Published comparisons nearest in scale" in printed
        assert all(len(line) <= 80 for line in found.stdout.splitlines())


def test_two_sizes_make_no_law(tmp_path):
    found = predict(BETWEEN, store=climb(tmp_path / "begun.db", strata=("w32", "w48")))
    assert found.loss is None
    assert "'base' has judged runs at 2 sizes, and a law needs 3" in found.headline


def test_another_task_is_refused():
    with pytest.raises(SpecError, match="headwise compare measures shapes on any task"):
        predict(BETWEEN, task="recall")
