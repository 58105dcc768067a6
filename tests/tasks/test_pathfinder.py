"""Pathfinder: labels read off the pictures by an eye that knows no geometry, fairness, and the margins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage, stats

from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks.pathfinder import SHADE, Pathfinder
from headwise.tasks.stream import Draw
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run

SCALE = 6


def enlarged(task):
    """The same pictures with more pixels: every length times SCALE."""
    lengths = {name: SCALE * getattr(task, name) for name in ("side", "dash", "gap", "thickness", "radius", "margin")}
    return task.replace(**lengths, levels=256, distractors=task.side // 8)


def pictures(task, stream, index, batch):
    pixels, labels = task.draw(0, stream, index, batch)
    return pixels.reshape(-1, task.side, task.side).numpy() / (task.levels - 1), labels.numpy()


def circles(picture):
    """Middles of the two circles, the only bright things, and where they and their edges are."""
    bright = picture > (1 + SHADE) / 2
    blobs, count = ndimage.label(bright)
    if count == 1:
        return None, bright  # they overlap
    assert count == 2
    return np.array(ndimage.center_of_mass(bright, blobs, [1, 2])), ndimage.binary_dilation(bright, iterations=2)


def disc(radius):
    y, x = np.ogrid[-int(radius) : int(radius) + 1, -int(radius) : int(radius) + 1]
    return x**2 + y**2 <= radius**2


def joined(picture, gap):
    """Swell the dashes until gaps close, then ask whether both circles are next to the same piece."""
    middles, covered = circles(picture)
    if middles is None:
        return None
    dashes = (picture > SHADE / 2) & ~covered
    pieces, _ = ndimage.label(ndimage.binary_dilation(dashes, disc(gap / 2 + 1)))
    places = np.argwhere(dashes)
    nearest = [places[np.square(places - middle).sum(1).argmin()] for middle in middles]
    return len({pieces[tuple(place)] for place in nearest}) == 1


@pytest.mark.parametrize("options", [{}, {"side": 16, "dashes": 3}, {"side": 24, "dashes": 5, "turn": 80.0}])
def test_labels_are_what_an_eye_sees(options):
    task = enlarged(Pathfinder(**options))
    seen = [(joined(one, task.gap), bool(label)) for one, label in zip(*pictures(task, "test", 0, 60), strict=True)]
    judged = [(found, label) for found, label in seen if found is not None]
    assert len(judged) > 50
    assert [found for found, _ in judged] == [label for _, label in judged]


@pytest.mark.parametrize("options", [{}, {"side": 24, "dashes": 6}])
def test_small_pictures_are_the_large_ones_with_fewer_pixels(options):
    """So what the eye sees in the large ones holds for the small ones; and an average is another way to draw them."""
    task = Pathfinder(**options, levels=256)
    small, labels = pictures(task, "train", 3, 40)
    large, same = pictures(enlarged(task), "train", 3, 40)
    assert (labels == same).all()
    pooled = large.reshape(40, task.side, SCALE, task.side, SCALE).mean((2, 4))
    assert np.abs(pooled - small).max() < 0.35
    assert np.abs(pooled - small).mean() < 0.02


def test_labels_are_fair_coins():
    _, labels = Pathfinder().draw(0, "train", 0, 4096)
    assert stats.binomtest(int(labels.sum()), 4096).pvalue > 1e-4


def test_the_distance_of_the_circles_tells_nothing():
    found = {0: [], 1: []}
    for picture, label in zip(*pictures(enlarged(Pathfinder()), "train", 0, 600), strict=True):
        middles, _ = circles(picture)
        if middles is not None:
            found[int(label)].append(float(np.linalg.norm(middles[0] - middles[1])) / SCALE)
    assert stats.ks_2samp(found[0], found[1]).pvalue > 1e-3
    assert np.mean(found[0]) == pytest.approx(np.mean(found[1]), abs=0.5)


def test_paths_keep_their_margin_and_stay_inside():
    """Against points along every path, many to a pixel: no formula for the distance of steps."""
    task = Pathfinder(side=24, dashes=5, turn=80.0)
    draw = Draw(0, "train", 0)
    nothing = np.zeros((64, 0, 2), dtype=np.complex64)
    first = task._path(draw, nothing, task.dashes)
    second = task._path(draw, np.stack([first[:, :-1], first[:, 1:]], axis=2), task.dashes)
    parts = np.linspace(0, 1, 50)
    along = [(path[:, :-1, None] * (1 - parts) + path[:, 1:, None] * parts) for path in (first, second)]
    placed = ~np.isnan(second).any(1)
    assert placed.mean() > 0.5
    one, other = (path[placed].reshape(placed.sum(), -1) for path in along)
    assert np.abs(one[:, :, None] - other[:, None]).min() >= task.margin - 1e-4
    for path in along:
        for step in range(task.dashes - 2):
            later = path[placed, step + 2 :].reshape(placed.sum(), -1)
            assert np.abs(path[placed, step][:, :, None] - later[:, None]).min() >= task.margin - 1e-4
        for places in (path[placed].real, path[placed].imag):
            assert places.min() >= task.radius - 1e-4
            assert places.max() <= task.side - task.radius + 1e-4


@given(st.integers(12, 24), st.integers(1, 2), st.integers(0, 3), st.integers(4, 256), st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_any_size_gives_pixels(side, dashes, distractors, levels, batch):
    task = Pathfinder(side=side, dashes=dashes, distractors=distractors, levels=levels)
    pixels, labels = task.draw(5, "train", 1, batch)
    assert pixels.shape == (batch, side**2)
    assert pixels.min() == 0
    assert pixels.max() == levels - 1
    assert set(labels.tolist()) <= {0, 1}


@pytest.mark.parametrize("side", [32, 64])
def test_the_published_sizes_can_be_drawn(side):
    sizes = {32: {}, 64: {"dash": 4.0, "gap": 1.5, "margin": 4.0, "radius": 2.5}}
    task = Pathfinder(side=side, dashes=14, levels=256, **sizes[side])
    pixels, _ = task.draw(0, "train", 0, 8)
    assert pixels.shape == (8, side**2)
    assert len(pixels.unique()) > 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"margin": 4.0}, "keeps a path from itself; use at most dash \\+ gap = 3"),
        ({"margin": 1.0}, "paths could cross; use more than 1.5"),
        ({"dash": 1.0}, "must be longer than its thickness"),
        ({"side": 4}, "side is 4"),
        ({"levels": 2}, "levels is 2"),
    ],
)
def test_impossible_pictures_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        Pathfinder(**options)


def test_paths_that_do_not_fit_are_refused():
    with pytest.raises(SpecError, match="two paths of 12 dashes do not fit a side of 8"):
        Pathfinder(side=8, dashes=12).draw(0, "train", 0, 4)


def test_a_model_of_another_kind_is_refused():
    task = Pathfinder()
    with pytest.raises(SpecError, match="family 'bert' with 2 classes and a vocab of 4"):
        task.build(ModelShape.parse("w16-h2"), task.default_options().replace(classes=3))


def test_logistic_regression_on_pixels_sees_little():
    assert 0.4 < Pathfinder().baselines()["logistic regression on pixels"] < 0.52


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_usual_shape_learns_more_than_classical_methods():
    task = Pathfinder()
    recipe = Recipe(learning_rate=3e-3, batch=64, warm_up=0.1, clip=1.0)
    run = Run(task=task.spec(), shape=task.usual_shape, options=task.default_options(), recipe=recipe, steps=1500)
    assert train_run(run).metrics["error"] < min(task.baselines().values()) - 0.05
