"""Judging: answers that statistics books agree with, none where there is none, and no worse one crowned."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from headwise.comparison import verdict
from headwise.comparison.designs import Paired, Unpaired
from headwise.comparison.judge import DECIDED, crossing, probabilities_best, rank_variants, seeds_needed
from headwise.comparison.metric import known_direction, measured
from headwise.spec import SpecError
from headwise.store.rows import Row
from helpers.comparisons import BASE, OTHER, THIRD, arm, rows_of


def test_two_arms_are_a_paired_t_test():
    one, two = [1.00, 1.12, 0.95, 1.30], [0.96, 1.11, 0.90, 1.22]
    found = rank_variants(rows_of({BASE: one, OTHER: two}), BASE)
    book = stats.ttest_rel(two, one)
    low, high = book.confidence_interval(0.95)
    assert (arm(found, OTHER).delta_low, arm(found, OTHER).delta_high) == pytest.approx((low, high))
    assert arm(found, OTHER).delta == pytest.approx(np.mean(two) - np.mean(one))
    assert found.winner == OTHER
    assert found.probability_best == pytest.approx(1 - book.pvalue / 2, abs=0.002)
    mean = stats.t.interval(0.95, 3, np.mean(one), stats.sem(one))
    assert (arm(found, BASE).low, arm(found, BASE).high) == pytest.approx(mean)


def test_several_arms_are_a_randomised_block_design():
    """Against least squares with a dummy for each arm and seed."""
    random = np.random.default_rng(3)
    errors = {str(a): list(1 + 0.1 * a + random.normal(size=5)) for a in range(4)}
    table = np.array(list(errors.values()))
    design = [np.eye(4)[a].tolist() + np.eye(5)[s, 1:].tolist() for a in range(4) for s in range(5)]
    fit, (residual,), *_ = np.linalg.lstsq(np.array(design), table.ravel(), rcond=None)
    half = stats.t.ppf(1 - 0.025 / 3, 12) * math.sqrt(2 * residual / 12 / 5)
    found = arm(rank_variants(rows_of(errors), "0"), "3")
    assert found.delta == pytest.approx(fit[3] - fit[0])
    assert (found.delta_low, found.delta_high) == pytest.approx((found.delta - half, found.delta + half))


def test_probabilities_of_several_arms_against_an_integral():
    """Given the noise, arms are independent: P(best) is an integral over one arm's mean and over the noise's scale."""
    errors = {"a": [1.0, 1.2, 0.9], "b": [1.1, 1.2, 1.05], "c": [1.3, 1.31, 1.1]}
    table = np.array(list(errors.values()))
    residuals = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    unit = math.sqrt((residuals**2).sum() / 4 / 3)
    scales = unit * np.sqrt(4 / stats.chi2.ppf((np.arange(400) + 0.5) / 400, 4))
    mean, z = table.mean(1), np.linspace(-8, 8, 2001)
    wanted = []
    for one in range(3):
        at = mean[one] + z * scales[:, None]
        others = [stats.norm.sf((at - mean[other]) / scales[:, None]) for other in range(3) if other != one]
        wanted.append(float(((others[0] * others[1] * stats.norm.pdf(z)).sum(1) * (z[1] - z[0])).mean()))
    assert sum(wanted) == pytest.approx(1, abs=1e-3)
    assert list(probabilities_best(paired(errors)).values()) == pytest.approx(wanted, abs=0.005)


def paired(errors):
    return Paired({variant: dict(enumerate(values)) for variant, values in errors.items()})


def test_a_missing_seed_drops_a_pair_and_not_a_variant():
    """Against least squares with a dummy for each arm and seed, over the runs that there are."""
    errors = {"0": [1.0, 1.3, 0.8, 1.1], "1": [0.9, None, 0.75, 1.05], "2": [None, 1.0, 0.7, None], "3": [0.5, 0.9]}
    found = rank_variants(rows_of(errors), "0")
    assert [one.note for one in found.arms] == [""] * 4
    assert [one.seeds for one in found.arms] == [4, 3, 2, 2]
    runs = [(int(v), s, e) for v, values in errors.items() for s, e in enumerate(values) if e is not None]
    design = np.array([np.eye(4)[v].tolist() + np.eye(4)[s, 1:].tolist() for v, s, _ in runs])
    fit, (residual,), *_ = np.linalg.lstsq(design, np.array([e for *_, e in runs]), rcond=None)
    free = len(runs) - 7
    inverse = np.linalg.inv(design.T @ design)
    for v in (1, 2, 3):
        contrast = np.eye(7)[v] - np.eye(7)[0]
        half = stats.t.ppf(1 - 0.025 / 3, free) * math.sqrt(contrast @ inverse @ contrast * residual / free)
        one = arm(found, str(v))
        assert (one.delta, one.delta_high - one.delta) == pytest.approx((contrast @ fit, half))
    posterior = stats.multivariate_t(fit[:4], inverse[:4, :4] * residual / free, free)
    drawn = posterior.rvs(200_000, random_state=1).argmin(1)
    wanted = np.bincount(drawn, minlength=4) / len(drawn)
    assert [one.probability_best for one in found.arms] == pytest.approx(wanted, abs=0.005)
    assert "1 has 3 of 4 seeds: only pairs count" in verdict.reservations(found)
    two = rank_variants(rows_of({BASE: [1.0, 1.2, 1.1, 1.4], OTHER: [0.9, None, 1.05, 1.2]}), BASE)
    book = stats.ttest_rel([0.9, 1.05, 1.2], [1.0, 1.1, 1.4]).confidence_interval(0.95)
    assert (arm(two, OTHER).delta_low, arm(two, OTHER).delta_high) == pytest.approx((book.low, book.high))
    assert arm(two, BASE).metric == pytest.approx(np.mean([1.0, 1.1, 1.4]))
    assert f"{BASE}: seed 1 does not count, as no other judged variant has it" in verdict.reservations(two)


def test_variants_that_share_no_seed_are_not_compared():
    apart = [
        Row({"arm": v}, s, {"error": 1.0 + s}, f"{v}{s}")
        for v, first in ((BASE, 0), (OTHER, 9))
        for s in range(first, first + 3)
    ]
    found = rank_variants(apart, BASE)
    assert {one.note for one in found.arms} == {"its seeds are not those of the other variants"}
    assert (found.winner, verdict.verdict(found)) == (None, "No answer: nothing could be judged.")
    linked = rank_variants([*apart, *rows_of({THIRD: [1.1, 2.2, 2.9]})], BASE)
    assert [bool(one.note) for one in linked.arms] == [False, True, False]
    with pytest.raises(SpecError, match=f"two runs of {BASE} with seed 0"):
        rank_variants([*apart, apart[0]], BASE)


def test_runs_without_seeds_are_not_paired():
    one, two, three = [1.00, 1.30, 0.80, 1.10, 1.25], [0.70, 0.72, 0.69], [0.9, 1.0, 1.6]
    found = rank_variants(rows_of({BASE: one, OTHER: two}), BASE, paired=False)
    book = stats.ttest_ind(two, one, equal_var=False)
    low, high = book.confidence_interval(0.95)
    assert (arm(found, OTHER).delta_low, arm(found, OTHER).delta_high) == pytest.approx((low, high))
    drawn = [
        np.mean(v) + stats.sem(v) * stats.t(len(v) - 1).rvs(200_000, random_state=n) for n, v in enumerate((one, two))
    ]
    assert arm(found, OTHER).probability_best == pytest.approx((drawn[1] < drawn[0]).mean(), abs=0.005)
    assert "not paired" in verdict.how(found)
    several = rank_variants(rows_of({BASE: one, OTHER: two, THIRD: three}), BASE, paired=False)
    corrected = stats.ttest_ind(three, one, equal_var=False).confidence_interval(0.975)
    assert arm(several, THIRD).delta_high == pytest.approx(corrected.high)
    assert [one.seeds for one in several.arms] == [5, 3, 3]
    assert rank_variants(rows_of({BASE: [1.0], OTHER: [0.5]}), BASE, paired=False).winner is None


@pytest.mark.parametrize("design", [Paired, Unpaired])
def test_equal_variants_are_decided_in_one_case_of_twenty(monkeypatch, design):
    """At most; and the intervals against the base hold together in nineteen."""
    monkeypatch.setattr("headwise.comparison.judge.DRAWS", 1000)
    random, many = np.random.default_rng(5), 300
    for variants in (2, 3, 4):
        wrong = covered = 0
        for _ in range(many):
            losses = random.normal(size=4) * (design is Paired) + 0.1 * random.normal(size=(variants, 4))
            runs = design({str(v): dict(enumerate(map(float, one))) for v, one in enumerate(losses)})
            wrong += max(probabilities_best(runs).values()) >= DECIDED
            level = 1 - 0.05 / (variants - 1)
            intervals = (runs.difference(other, "0", level) for other in runs.variants[1:])
            covered += all(low <= 0 <= high for _, low, high in intervals)
        assert stats.binomtest(wrong, many, 0.05, alternative="greater").pvalue > 0.01
        assert stats.binomtest(covered, many, 0.95, alternative="less").pvalue > 0.01


# ---- the metric ----------------------------------------------------------------------------------------------------


def test_more_accuracy_wins():
    """What crowned the worse variant: every number as it is, and the higher one is better."""
    one, two = [0.90, 0.91, 0.89, 0.90], [0.80, 0.82, 0.79, 0.80]
    found = rank_variants(rows_of({BASE: one, OTHER: two}), BASE, metric=measured("accuracy"))
    assert (found.winner, found.decided) == (BASE, True)
    low, high = stats.ttest_rel(two, one).confidence_interval(0.95)
    worse = arm(found, OTHER)
    assert (worse.metric, worse.delta) == pytest.approx((np.mean(two), np.mean(two) - np.mean(one)))
    assert (worse.delta_low, worse.delta_high) == pytest.approx((low, high))
    mean = stats.t.interval(0.95, 3, np.mean(two), stats.sem(two))
    assert (worse.low, worse.high) == pytest.approx(mean)
    less = rank_variants(rows_of({BASE: one, OTHER: two}), BASE)
    assert (less.winner, arm(less, OTHER).delta) == (OTHER, worse.delta)
    close = rank_variants(rows_of({BASE: [0.5, 0.52, 0.51], OTHER: [0.51, 0.50, 0.53]}), BASE, metric=measured("acc"))
    assert f"{OTHER} has the highest acc" in verdict.verdict(close)
    noise = [0.0, 0.001, -0.001]
    both = {BASE: [0.5 + n for n in noise], OTHER: [0.8, 0.81, 0.8], THIRD: [0.81, 0.8, 0.8]}
    found = rank_variants(rows_of(both), BASE, metric=measured("acc"))
    assert verdict.verdict(found).startswith("Better than the base, but")
    wild = rank_variants(rows_of({BASE: one, OTHER: [math.inf, *two[1:]], THIRD: two}), BASE, metric=measured("acc"))
    assert (wild.winner, arm(wild, OTHER).note) == (BASE, "diverged with seed 0")


def test_curves_of_what_rises_are_crossed_from_below():
    rows = [Row({"arm": v}, s, {"error": 0.9, "step_seconds": 1.0}, f"{v}-{s}") for v in (BASE, OTHER) for s in (0, 1)]
    curves = {row.key: [(10, 0.2), (20, 0.6)] if row.cell["arm"] == BASE else [(10, 0.6), (20, 0.9)] for row in rows}
    found = rank_variants(rows, BASE, curves, metric=measured("accuracy"))
    assert (arm(found, BASE).steps_to_base, arm(found, OTHER).steps_to_base, arm(found, OTHER).speed_up) == (20, 10, 2)


RISING = (
    "accuracy acc ACC val_acc test_accuracy_pct valAccuracy testacc BLEU sacreBLEU rouge1 ROUGE-L F1 macro_f1 MMLU "
    "mmlu_5shot HellaSwag hellaswag_acc_norm exact_match EM pass@1 tokens_per_second tokens/s top1 mAP AUC r2 gsm8k "
    "neg_log_loss throughput"
)
FALLING = (
    "loss val_loss valloss evalLoss bpb val_bpb perplexity PPL error WER accuracy_error error_rate top1_error "
    "1-accuracy one_minus_acc negative_log_likelihood NLL seconds_per_step lambada_ppl cross_entropy bits_per_byte "
    "brier_score"
)


def test_the_direction_of_known_metrics_and_of_unknown_ones():
    assert {name for name in RISING.split() if known_direction(name) is not True} == set()
    assert {name for name in (*FALLING.split(), "error rate", "1 - acc") if known_direction(name) is not False} == set()
    assert [known_direction(name) for name in ("metric", "quality", "value", "tests")] == [None] * 4
    unknown = measured("quality")
    assert (unknown.higher_is_better, unknown.direction) == (
        False,
        "quality: lower is better, which is assumed; if not, say --higher-is-better",
    )
    assert measured("quality", True).direction == "quality: higher is better"
    assert not measured("accuracy", False).higher_is_better
    found = rank_variants(rows_of({BASE: [1.0, 1.1], OTHER: [1.2, 1.0]}), BASE, metric=unknown)
    assert verdict.how(found).startswith("quality: lower is better, which is assumed")
    assert unknown.direction in verdict.reservations(found)


def test_a_clear_winner_a_tie_and_what_would_decide():
    noise = [0.00, 0.01, -0.01, 0.005]
    clear = rank_variants(rows_of({BASE: [1 + n for n in noise], OTHER: [0.5 - n for n in noise]}), BASE)
    assert (clear.winner, clear.decided, clear.needed) == (OTHER, True, None)
    assert "is best" in verdict.verdict(clear)
    equal = rank_variants(rows_of({BASE: [1.00, 1.02, 1.00, 1.02], OTHER: [1.02, 1.00, 1.02, 1.00]}), BASE)
    assert not equal.decided
    assert equal.needed is None
    assert (equal.winner, verdict.verdict(equal)) == (
        None,
        f"Not decided: no variant alone has the lowest test error; {BASE} or {OTHER} may.",
    )
    assert "equal" in verdict.csv_settle(equal)
    both = rank_variants(
        rows_of({BASE: [2 + n for n in noise], OTHER: [1.00, 1.02, 1.0, 1.02], "c": [1.02, 1.0, 1.02, 1.0]}), BASE
    )
    assert verdict.verdict(both).startswith("Better than the base, but which is best is not decided")
    errors = {BASE: [1.00, 1.10, 0.95, 1.02], OTHER: [0.97, 1.09, 0.99, 0.94]}
    close = rank_variants(rows_of(errors), BASE)
    assert not close.decided
    gaps = np.subtract(errors[BASE], errors[OTHER])

    def chance(seeds):
        return stats.t.cdf(gaps.mean() / (gaps.std(ddof=1) / math.sqrt(seeds)), seeds - 1)

    assert close.needed == seeds_needed(paired(errors)) == next(n for n in itertools.count(5) if chance(n) >= 0.975)


def test_no_noise_is_no_doubt_and_one_seed_is_no_answer():
    sure = rank_variants(rows_of({BASE: [2.0, 3.0], OTHER: [1.0, 2.0]}), BASE)
    assert (sure.winner, sure.probability_best, sure.decided) == (OTHER, 1.0, True)
    for values in ([1.0, 2.0], [0.1 + 0.2, 0.7, 1 / 3]):
        tie = rank_variants(rows_of({BASE: values, OTHER: values, THIRD: values}), BASE)
        assert [one.probability_best for one in tie.arms] == pytest.approx([1 / 3] * 3)
        assert (tie.winner, tie.decided, math.isnan(tie.probability_best)) == (None, False, True)
    single = rank_variants(rows_of({BASE: [2.0], OTHER: [1.0]}), BASE)
    assert single.winner is None
    assert "too few" in verdict.verdict(single)
    assert all(math.isnan(one.probability_best) for one in single.arms)
    alone = rank_variants(rows_of({BASE: [1.0, 1.1, 1.2], OTHER: [math.inf] * 3}), BASE)
    assert (alone.winner, alone.decided, math.isnan(alone.probability_best)) == (None, False, True)
    assert math.isnan(arm(alone, BASE).probability_best)
    assert verdict.verdict(alone) == f"No answer: only {BASE} could be judged."


def test_diverged_and_missing_runs():
    inf = math.inf
    errors = {BASE: [1.0, 1.1, 1.2, 1.1], OTHER: [0.1, 0.1, inf, 0.1], THIRD: [0.8, 0.9, None, 0.95], "few": [0.1]}
    found = rank_variants(rows_of(errors), BASE)
    assert (found.seeds, arm(found, BASE).seeds, arm(found, THIRD).seeds) == ((0, 1, 3), 3, 3)
    assert arm(found, OTHER).note == "diverged with seed 2"
    assert arm(found, "few").note == "only 1 of 4 seeds finished"
    assert (arm(found, OTHER).probability_best, arm(found, "few").probability_best) == (0.0, 0.0)
    assert found.winner == THIRD
    without_base = rank_variants(rows_of({BASE: [inf] * 3, OTHER: [0.5, 0.6, 0.5], THIRD: [0.7, 0.9, 0.7]}), BASE)
    assert without_base.winner == OTHER
    assert math.isnan(arm(without_base, OTHER).delta)
    assert rank_variants([], BASE).winner is None


def test_steps_until_the_base_is_reached():
    curve = [(10, 4.0), (20, 2.0), (30, 1.0), (40, 1.5)]
    assert crossing(curve, 3.0) == 15
    assert crossing(curve, 1.0) == 30
    assert crossing(curve, 5.0) == 10
    assert math.isnan(crossing(curve, 0.5))
    assert math.isnan(crossing([], 1.0))
    rows = [
        Row({"arm": arm}, seed, {"error": 1.0 + seed, "step_seconds": cost}, f"{arm}-{seed}")
        for arm, cost in ((BASE, 2.0), (OTHER, 3.0))
        for seed in (0, 1)
    ]
    curves = {f"{BASE}-{s}": [(10, 3.0 + s), (20, 2.0 + s)] for s in (0, 1)}
    curves |= {f"{OTHER}-{s}": [(10, 2.0 + s), (20, 1.0 + s)] for s in (0, 1)}
    found = rank_variants(rows, BASE, curves)
    assert (arm(found, BASE).steps_to_base, arm(found, BASE).seconds_to_base, arm(found, BASE).speed_up) == (20, 40, 1)
    assert (arm(found, OTHER).steps_to_base, arm(found, OTHER).seconds_to_base) == (10, 30)
    assert arm(found, OTHER).speed_up == pytest.approx(40 / 30)
