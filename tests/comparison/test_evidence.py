"""The published evidence: every row is sound, weighing counts labs, and the test of itself scores what it says."""

import csv
import math
from dataclasses import replace
from statistics import mean

import pytest
from scipy.stats import linregress, ttest_1samp

import headwise as hw
from headwise.comparison.evidence.leave_out import METHODS, leave_one_out
from headwise.comparison.evidence.own import READINGS, own_rows
from headwise.comparison.evidence.rows import FILE, OWN, EvidenceRow, dose_of, knob_size, published, read_row
from headwise.comparison.evidence.table import judged_claims
from headwise.comparison.evidence.weigh import shares, weigh
from headwise.shape import ModelShape
from headwise.spec import SpecError
from helpers.commands import as_json, headwise

DOCS = FILE.parents[4] / "docs" / "results"
FACTS = {"source": "Paper", "url": "https://arxiv.org/abs/1", "year": 2024, "trust": "read-primary", "task": "text"}
FACTS |= {"base": "a model", "metric": "loss", "unit": "loss", "better": "lower", "seeds": "1", "kind": "quality"}


def row(lab, change, knob="less", size=10**8, **given):
    """A lab's row whose arm changes the loss by a part of it."""
    given = {"axis": "kv_heads", "family": "kv_heads", "held": "params", "stated_dose": "up to 4x", **given}
    values = {"value_base": 2.0, "value_arm": 2.0 * (1 + change), "params_base": size}
    return EvidenceRow(**FACTS | given | values, id=f"{lab}{change}", lab=lab, knob=knob)


@pytest.mark.parametrize("one", published(), ids=lambda one: one.id)
def test_every_row_is_sound(one):
    """Shapes parse, values are finite and the source is linked (the schema); the knob is what the shapes say."""
    assert one.effect is not None or one.knob is None
    assert all(math.isfinite(value) for value in (one.value_base, one.value_arm, one.relative) if value is not None)
    if one.base_shape and one.arm_shape and one.knob and one.axis != "kv_latent":
        before, after = (knob_size(one.axis, ModelShape.parse(text)) for text in (one.base_shape, one.arm_shape))
        assert (after > before) == (one.knob == "more")


def test_the_table_as_a_whole():
    rows = published()
    assert len({one.id for one in rows}) == len(rows) == 202
    assert len({one.lab for one in rows}) == 39
    assert {one.kind for one in rows} == {"quality", "speed"}
    assert all(one.effect is None for one in rows if one.kind == "speed")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arm_shape": "w512-h7"}, "7 heads do not divide width 512"),
        ({"url": "somewhere"}, "no https link"),
        ({"value_arm": ""}, "give both values or none"),
        ({"value_arm": "nan"}, "finite"),
        ({"effect": "worse"}, "leave effect empty"),
        ({"axis": "colour"}, "axis is 'colour'"),
        ({"family": "head_dim"}, "not of the axis"),
        ({"lab": ""}, "lab"),
    ],
)
def test_a_wrong_row_says_what_is_wrong(change, message):
    with FILE.open() as file:
        first = next(csv.DictReader(file))
    with pytest.raises(SpecError, match=message):
        read_row(first | change)


def test_changes_are_of_the_loss_whatever_the_metric():
    first = next(one for one in published() if one.id == "e001")  # perplexity 4.92 → 5.29
    assert first.relative == pytest.approx(-math.log(5.29 / 4.92) / math.log(4.92))
    assert next(one for one in published() if one.id == "e048").relative == pytest.approx(-2.0)  # 0.38 → 0.36
    assert next(one for one in published() if one.id == "e066").loss_change == pytest.approx(-0.005)
    assert row("A", 0.0019).effect == "tie"
    assert row("A", 0.0021).effect == "worse"
    assert row("A", 0.0021).of_more == "better"
    assert (dose_of(4.0), dose_of(0.25), dose_of(5.0)) == ("up to 4x", "up to 4x", "more than 4x")


# ---- weighing ------------------------------------------------------------------------------------------------------


def test_the_unit_is_the_lab():
    changes = [0.01, 0.02, -0.01, 0.03, 0.005]
    rows = [row(f"lab{i}", change) for i, change in enumerate(changes)]
    many = rows + [row("lab0", 0.01)] * 20
    assert weigh(many).change == weigh(rows).change
    found = weigh(rows).change
    wanted = ttest_1samp(changes, 0).confidence_interval()
    assert (found.value, found.low, found.high) == pytest.approx((mean(changes), wanted.low, wanted.high))
    assert weigh(rows).directions == {"better": 1.0, "tie": 0.0, "worse": 4.0}
    assert weigh(rows).shares == pytest.approx({"better": 1.5 / 6.5, "tie": 0.5 / 6.5, "worse": 4.5 / 6.5})
    assert shares(dict.fromkeys(("better", "tie", "worse"), 0.0)) == pytest.approx(
        dict.fromkeys(("better", "tie", "worse"), 1 / 3)
    )


def test_no_number_below_five_labs_nor_from_benchmarks():
    rows = [row(f"lab{i}", 0.01) for i in range(4)]
    assert weigh(rows).change is None
    points = row("lab4", 0.0).replace(unit="points", better="higher", value_base=50.0, value_arm=48.0)
    assert weigh([*rows, points]).change is None
    assert weigh([*rows, points]).directions["worse"] == 5
    assert weigh([*rows, row("lab4", 0.01)]).change is not None


def test_agreement_is_never_taken_for_more_than_single_runs_allow():
    same = weigh([row(f"lab{i}", 0.01) for i in range(5)]).change
    assert same.high - same.value == pytest.approx(2.776 * 0.003 / math.sqrt(5), rel=1e-3)


def test_more_is_the_opposite_of_less():
    rows = [row("A", 0.01), row("B", -0.02, knob="more")]  # both: less costs
    less, more = weigh(rows, "less"), weigh(rows, "more")
    assert less.directions == {"better": 0.0, "tie": 0.0, "worse": 2.0}
    assert more.directions == {"better": 2.0, "tie": 0.0, "worse": 0.0}


def test_conflicts_and_trends_are_shown():
    sizes = [10**7, 10**8, 10**9, 10**9, 10**10]
    changes = [0.02, 0.012, -0.004, 0.006, -0.01]
    rows = [row(f"lab{i}", change, size=size) for i, (change, size) in enumerate(zip(changes, sizes, strict=True))]
    found = weigh(rows)
    assert found.conflict == {"better": ("lab2", "lab4"), "worse": ("lab0", "lab1", "lab3")}
    assert found.trend.value == pytest.approx(linregress([math.log10(s) for s in sizes], changes).slope)
    assert weigh([one.replace(params_base=10**8 + i) for i, one in enumerate(rows)]).trend is None


def test_changes_within_the_noise_of_one_run_are_marked():
    assert [row("A", change).within_noise for change in (0.0029, 0.0031, -0.0029)] == [True, False, True]
    points = row("A", 0.0).replace(unit="points", better="higher", value_base=50.0, value_arm=50.9)
    assert (points.effect, points.within_noise) == ("better", True)
    assert not points.replace(value_arm=51.1).within_noise
    found = weigh([points, row("B", 0.01), row("C", 0.01)])
    assert found.within_noise == {"better": ("A",), "worse": ()}
    shown = headwise("evidence", "--axis", "kv_heads").stdout
    assert "Gemma 2 *" in shown
    assert "* within the noise of one run: 0.3% of the loss, 1 point" in shown


# ---- leaving a lab out -----------------------------------------------------------------------------------------------


def test_labs_that_agree_predict_each_other_and_coins_do_not():
    agreeing = [row(f"lab{i}", 0.01) for i in range(8)]
    score = leave_one_out(agreeing).scores[0]
    assert score.hits == {"forecast": 1.0, "majority": 1.0, "no difference": 0.0, "more is better": 1.0}
    assert score.brier < 0.1
    split = [row(f"lab{i}", 0.01 if i % 2 else -0.01) for i in range(8)]
    assert leave_one_out(split).scores[0].hits["forecast"] == 0.0  # the others always lean to the other side
    assert leave_one_out(split).scores[0].brier > 0.5  # worse than a coin


def test_a_lab_counts_once_and_is_never_its_own_witness():
    rows = [row("A", 0.01)] * 9 + [row("B", -0.01), row("C", -0.01)]
    score = leave_one_out(rows).scores[0]
    assert score.labs == 3
    assert score.hits["more is better"] == pytest.approx(1 / 3)


def test_the_published_table_is_what_the_docs_say():
    """The page is written by the command; the numbers are those of today's rows."""
    test = hw.evidence().leave_one_out()
    records = {record["axis"]: record for record in test.records()}
    assert (records["all"]["labs"], records["five labs or more"]["labs"]) == (63, 50)
    assert records["qk_rank"]["forecast"] is None  # four labs
    page = (DOCS / "evidence.md").read_text()
    for record in test.records():
        if record["brier"] is not None:
            cells = " | ".join(f"{record[name]:.2f}" for name in METHODS)
            assert f"| {record['axis']} | {record['labs']} | {cells} | {record['brier']:.2f} |" in page
    assert sum(point["labs"] for point in test.calibration()) == pytest.approx(63)


# ---- the command -----------------------------------------------------------------------------------------------------


def test_the_command_and_the_call():
    rows = as_json("evidence", "--axis", "kv_heads", "--near", "gpt2", "--held", "params")
    assert rows == hw.evidence("kv_heads", "gpt2", "params").as_dict()
    assert {one["axis"] for one in rows} == {"kv_heads"}
    distances = [abs(math.log10(one["scale"] / 124_439_808)) for one in rows if one["scale"]]
    assert distances == sorted(distances)
    assert hw.evidence().table.height == 202 + sum(one["lab"] == OWN for one in as_json("evidence"))
    for words in ([], ["--axis", "heads"], ["--test"]):
        assert all(len(line) <= 80 for line in headwise("evidence", *words).stdout.splitlines())
    nearest = headwise("evidence", "--near", "gpt2", "--limit", "2").stdout
    assert all(one["id"] in nearest for one in as_json("evidence", "--near", "gpt2")[:2])
    assert as_json("evidence", "--axis", "qk_rank", "--test")["scores"][0]["forecast"] is None


def test_the_page_and_its_charts(tmp_path):
    names = [file.name for file in hw.write_evidence(hw.evidence(), tmp_path)]
    assert names[:3] == ["evidence.md", "evidence-calibration.png", "evidence-kv-heads.png"]
    assert len(names) == 12
    assert (tmp_path / "evidence.md").read_text() == (DOCS / "evidence.md").read_text()  # headwise evidence --out
    assert (tmp_path / names[1]).read_bytes().startswith(b"\x89PNG")


def test_our_own_claims_have_the_same_form():
    judged = [replace(one, verdict="open") for one in judged_claims()]
    own = {one.id: one for one in own_rows(judged)}
    assert own["L6"].effect == "worse"
    assert own["L6"].loss_change == pytest.approx(0.033, abs=0.001)
    assert own["N1"].of_more == "better"
    assert not any(one.lab == OWN for one in hw.evidence(own=False).rows)


def test_a_claim_that_cannot_tell_is_no_evidence():
    told = {one.claim.id for one in judged_claims() if one.verdict != "cannot tell"}
    assert {one.id for one in hw.evidence().rows if one.lab == OWN} == told & set(READINGS)
