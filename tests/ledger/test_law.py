"""The law of loss: it finds a law that was put in, its intervals cover what they say, and it knows where it ends."""

import math
import random

import numpy as np
import pytest
from scipy.stats import spearmanr

from headwise.ledger import law as law_module
from headwise.ledger.law import FEATURES, SIZE, LossPoint, features, fit, rank_correlation
from headwise.shape import ModelShape
from headwise.spec import SpecError

SHAPES = [
    f"w{width}-h{heads}-r{rank}-L{depth}-m{mlp}"
    for width, heads, rank, depth, mlp in [
        (16, 2, 8, 1, 64), (16, 4, 8, 2, 32), (24, 1, 24, 3, 96), (32, 2, 16, 2, 64), (32, 8, 4, 1, 256),
        (32, 4, 16, 4, 128), (48, 3, 16, 1, 192), (48, 6, 8, 3, 96), (64, 2, 32, 2, 256), (64, 8, 8, 1, 512),
        (64, 4, 16, 6, 128), (24, 3, 8, 2, 48), (48, 1, 48, 2, 384), (16, 1, 16, 6, 64), (32, 16, 2, 3, 64),
        (64, 1, 64, 4, 64),
    ]
]  # fmt: skip
SLOPES = {"parameters": -0.1, "steps": -0.3, "depth": -0.05, "heads": 0.04, "qk_rank": -0.08, "mlp": 0.02}
FLOOR = 1.2


def truth(shape, steps):
    found = features(ModelShape.parse(shape), steps)
    return FLOOR + 8 * math.exp(sum(slope * math.log(found[name]) for name, slope in SLOPES.items()))


def made(noise=0.0, seed=0, steps=(100, 400)):
    chance = random.Random(seed)
    return [
        LossPoint(ModelShape.parse(text), count, truth(text, count) * math.exp(chance.gauss(0, noise)))
        for count in steps
        for text in SHAPES
    ]


def test_features_are_counted_by_hand():
    """w8-h2-r4-L3-m16: three layers of 4·8·8 attention weights and 2·8·16 of the MLP."""
    found = features(ModelShape.parse("w8-h2-L3-m16"), 50)
    assert found == {"parameters": 3 * 512, "steps": 50, "depth": 3, "heads": 2, "qk_rank": 4, "mlp": 16}
    assert features(ModelShape.parse("w8-h2x1,4x3"), 50)["heads"] == 3.5
    with pytest.raises(SpecError, match="only models with an MLP"):
        features(ModelShape.parse("w8-h2-m0"), 50)


def test_a_law_that_was_put_in_is_found_again():
    law = fit(made())
    for shape, steps in (("w48-h2-r24-L2", 200), ("w24-h6-r4-L5-m48", 150)):
        assert law.loss(ModelShape.parse(shape), steps) == pytest.approx(truth(shape, steps), rel=0.005)
    assert law.floor == pytest.approx(FLOOR, abs=0.15)


def test_least_squares_and_leave_one_out_agree_with_doing_it_by_hand():
    known = made(0.02)
    law, losses = fit(known), np.array([point.loss for point in known])
    rows = np.array([law._row(point.shape, point.steps) for point in known])
    shrunk = law.penalty * np.array([0.0, *(name not in SIZE for name in FEATURES)])
    wide = np.vstack([rows, np.diag(np.sqrt(shrunk))])  # ridge is least squares with made points
    wanted = np.concatenate([np.log(losses - law.floor), np.zeros(len(shrunk))])
    assert law.slopes == pytest.approx(np.linalg.lstsq(wide, wanted, rcond=None)[0], abs=1e-8)
    errors = []
    for i in range(len(known)):
        rest = np.delete(wide, i, axis=0)
        slopes = np.linalg.lstsq(rest, np.delete(wanted, i), rcond=None)[0]
        errors.append(math.log(law.floor + math.exp(rows[i] @ slopes)) - math.log(losses[i]))
    found = law_module._left_out_error(rows, losses, law.floor, shrunk)
    assert found == pytest.approx(np.square(errors).mean(), rel=1e-6)


def test_intervals_cover_what_they_say():
    """Of shapes that the law did not see, in worlds that obey it; 95 % of 160, give or take three deviations."""
    inside = []
    for seed in range(20):
        points = made(0.02, seed)
        random.Random(seed).shuffle(points)
        law = fit(points[8:])
        for point in points[:8]:
            found = law.predict(point.shape, point.steps)
            assert found.low < found.value < found.high
            inside.append(found.low <= point.loss <= found.high)
    assert 0.90 <= np.mean(inside) <= 0.995


def test_the_law_says_what_lies_outside():
    law = fit(made())
    assert law.predict(ModelShape.parse("w32-h4-r8-L2"), 200).outside == ()
    assert law.predict(ModelShape.parse("w32-h4-r8-L2"), 4000).outside == ("steps 4,000, runs have 100 to 400",)
    large = law.predict(ModelShape.parse("w768-h12-L12"), 200).outside
    assert [told.split()[0] for told in large] == ["parameters", "depth", "mlp"]
    within_each = law.predict(ModelShape.parse("w16-h16-r64-L1-m32"), 200)
    assert len(within_each.outside) == 1
    assert "combination" in within_each.outside[0]
    shared = law.predict(ModelShape.parse("w32-h4-r8-v16-g2-L2"), 200).outside
    assert shared == tuple(f"{name}, which the law does not look at" for name in ("v_rank", "kv_heads"))


def test_rank_correlation_is_spearmans():
    chance = random.Random(0)
    first, second = [[chance.randrange(8) for _ in range(20)] for _ in range(2)]
    assert rank_correlation(first, second) == pytest.approx(spearmanr(first, second).statistic)


def test_too_few_shapes_are_refused():
    with pytest.raises(SpecError, match="a law needs runs of 9 shapes or more, not 8"):
        fit(made()[:8])
