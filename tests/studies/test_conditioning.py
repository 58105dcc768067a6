"""The studies of conditioning: κ and steps read off histories, planted slopes found again, invented worlds."""

import math

import pytest

from headwise.ledger.judge import judge_claim
from headwise.ledger.study import study_rows
from headwise.store.rows import Row
from headwise.store.store import Store
from headwise.studies import conditioning_and_speed as speed
from headwise.studies import conditioning_in_training as training
from headwise.studies import gaussian_heads, load
from headwise.studies._recipes.statistics import kappa
from headwise.training.loop import train_run

PROBE = "heads-condition"


def world(name, tell):
    """Rows of the laptop preset with the history that `tell(place, noise)` gives; noise is near 1, one value a seed."""
    found = []
    for cell in load(name).of("laptop"):
        history = tell(cell.place, 1 + 0.01 * (cell.run.seed % 2))
        if cell.place["part"] == "beginning":
            history = [(0, name, value) for step, name, value in history if step == 0]
        else:
            history = [point for point in history if point[0] > 0]
        found.append(Row(cell.place, cell.run.seed, {}, cell.run.key, tuple(history)))
    return found


def judged(rows, name, claim):
    return judge_claim(next(one for one in load(name).claims if one.id == claim), "laptop", rows)


# ---- reading a history ---------------------------------------------------------------------------------------------


def row(*history):
    return Row({}, 0, {}, "", history)


def test_kappa_is_a_geometric_mean_over_layers_and_evaluations():
    values = [[2.0, 8.0], [1.0, 9.0], [4.0, 4.0], [10.0, 1000.0]]
    told = [
        (step, f"{PROBE}.layer{i}", v)
        for step, pair in zip((5, 10, 15, 20), values, strict=True)
        for i, v in enumerate(pair)
    ]
    other = (20, "residual-heads-condition.layer0", 7.0), (20, "error", 0.5)
    assert kappa(row(*told, *other), PROBE) == pytest.approx(100)
    assert kappa(row(*told, *other), PROBE, 0.5, 0.5) == pytest.approx(3)
    assert kappa(row(*told, *other), PROBE, 0.0, 0.75) == pytest.approx((16 * 9 * 16) ** (1 / 6))
    assert math.isnan(kappa(row(*other), PROBE))
    singular = row((20, f"{PROBE}.layer0", math.inf), (20, f"{PROBE}.layer1", 4.0))
    assert kappa(singular, PROBE) == math.inf
    assert kappa(singular, PROBE, most=100.0) == pytest.approx(20)


def curve(*values):
    return row(*((10 * (i + 1), "cross_entropy", value) for i, value in enumerate(values)))


def test_steps_to_a_target_are_read_between_evaluations():
    falling = curve(2.0, 1.5, 1.7, 1.1, 0.9)
    assert speed.steps_to(falling, 1.6) == pytest.approx(18)
    assert speed.steps_to(falling, 1.25) == pytest.approx(37.5)
    assert speed.steps_to(falling, 0.9) == pytest.approx(50)
    assert speed.steps_to(falling, 0.5) == 50  # never: all its steps
    assert speed.steps_to(falling, 2.5) == 10
    assert speed.target_of(falling) == 1.7


# ---- more heads, lower κ, through training -------------------------------------------------------------------------


def by_heads(begin, middle, end):
    """κ as a power of the heads, at each stage."""

    def tell(place, noise):
        powers = {0: begin, 100: begin, 200: middle, 300: middle, 400: end}
        return [
            (step, f"{PROBE}.layer{i}", 50 * noise * place["heads"] ** p) for step, p in powers.items() for i in (0, 1)
        ]

    return tell


@pytest.mark.parametrize(
    ("powers", "wanted"),
    [
        ((-0.5, -0.5, -0.3), "holds"),
        ((-0.5, -0.5, 0.2), "fails"),
        ((-0.5, 0.2, -0.5), "fails"),
        ((0.3, -0.5, -0.5), "holds"),
    ],
)
def test_more_heads_must_lower_kappa_in_the_middle_and_at_the_end(powers, wanted):
    found = judged(world("conditioning-in-training", by_heads(*powers)), "conditioning-in-training", "L3")
    assert found.verdict == wanted
    assert found.seeds == 10


def test_singular_matrices_of_one_head_do_not_leave_the_claim_open():
    def tell(place, noise):
        told = by_heads(-0.5, -0.5, -0.5)(place, noise)
        return [(step, name, math.inf if place["heads"] == 1 else value) for step, name, value in told]

    found = judged(world("conditioning-in-training", tell), "conditioning-in-training", "L3")
    assert found.verdict == "holds"


def test_the_value_at_the_beginning_is_told():
    comparisons = training.stays_true(world("conditioning-in-training", by_heads(-0.5, -0.2, -0.1)))
    assert len(comparisons) == 8  # two tasks, 1 to 8 and 8 to 32 heads, middle and end
    first = comparisons[0]
    assert (first.variant, first.baseline, first.where) == ("8 heads", "1 head", "images, in the middle")
    assert dict(first.beside) == {"at the beginning": pytest.approx(8**0.5)}
    assert comparisons[0].ratios == pytest.approx((8**0.2,) * 10)


def test_a_gain_that_stops_at_a_few_heads_is_not_enough():
    def tell(place, noise):
        return by_heads(-0.5, -0.5, -0.5)(
            {**place, "heads": min(place["heads"], 8)}, noise * (1.1 if place["heads"] > 8 else 1)
        )

    found = judged(world("conditioning-in-training", tell), "conditioning-in-training", "L3")
    assert found.verdict == "fails"
    assert (found.deciding.comparison.variant, found.deciding.comparison.baseline) == ("32 heads", "8 heads")


def test_runs_are_shared_by_both_axes():
    cells = load("conditioning-in-training").of("laptop")
    assert len(cells) == 2 * 2 * (3 * 10 + 3 * 2 + 6 * 2)  # begun and trained, on images and text
    assert len({cell.run.key for cell in cells}) == len(cells) - 2 * 2 * 2  # 8 heads of 8
    for cell in cells:
        layer = cell.run.model_shape.layers[0]
        assert layer.heads == cell.place["heads"]
        assert layer.heads * layer.qk_rank == 64 if cell.place["axis"] == "fixed width" else layer.qk_rank == 8
        assert (cell.run.steps == 0) == (cell.place["part"] == "beginning")


# ---- conditioning and speed ----------------------------------------------------------------------------------------


def fall(steps, last=300):
    """Cross-entropy that falls on a straight line to 1 at so many steps, and on."""
    return [(step, "cross_entropy", 2 - step / steps) for step in range(15, last + 1, 15)]


def laws(kappas, power, slower=None):
    """κ by the kind of arm (heads: 60 / heads^0.5 with a bend), steps as a power of κ, of heads and of depth."""

    def tell(place, noise):
        usual = 60 / place["heads"] ** 0.5 + 3 * (place["heads"] % 3)
        kappa = kappas.get(place["kind"], usual) * noise
        steps = 25 * kappa**power * place["heads"] ** 0.1 / place["depth"] ** 0.2 * (slower or {}).get(place["kind"], 1)
        probed = [
            (step, f"{PROBE}.layer{i}", kappa) for step in (0, *range(15, 301, 15)) for i in range(place["depth"])
        ]
        return [*probed, *fall(steps, last=3000)]

    return tell


LOWER = {"query/key norm": 20.0, "orthogonal": 15.0, "whitened tokens": 8.0}


def named(name, tell):
    return judged(world("conditioning-and-speed", tell), "conditioning-and-speed", name)


def test_a_planted_slope_is_found_again():
    rows = speed.measured_rows(world("conditioning-and-speed", laws(LOWER, 0.5)))
    for metric in (speed.BEGINNING, speed.TRAINING):
        found = speed._per_doubling(rows, metric)
        assert found.ratios == pytest.approx((2**0.5,) * 5, rel=0.02)


@pytest.mark.parametrize(
    ("tell", "wanted"),
    [
        (laws(LOWER, 0.5), "holds"),
        (laws(LOWER, -0.3), "fails"),
        (laws(LOWER, 0.5, {"orthogonal": 3.0}), "fails"),  # it lowers κ and slows the model down
        (laws({**LOWER, "orthogonal": 50.0}, 0.5), "holds"),  # it raises κ and slows: nothing against the claim
        (laws(dict.fromkeys(LOWER, 50.0), 0.5), "open"),  # nothing lowered κ
    ],
)
def test_lower_kappa_must_make_faster_both_ways(tell, wanted):
    assert named("L12", tell).verdict == wanted


@pytest.mark.parametrize(
    ("kappas", "wanted"),
    [(LOWER, "holds"), ({**LOWER, "whitened tokens": 14.0}, "holds"), (dict.fromkeys(LOWER, 30.0), "fails")],
)
def test_one_intervention_must_condition_as_well_as_any_number_of_heads(kappas, wanted):
    assert named("L13", laws(kappas, 0.5)).verdict == wanted


def test_every_arm_differs_from_the_plain_one_in_one_thing():
    cells = [cell for cell in load("conditioning-and-speed").of("laptop") if cell.place["part"] == "training"]
    plain = next(cell.run for cell in cells if cell.place["kind"] == "plain")
    assert len({cell.run.key for cell in cells}) == 11 * 5
    for cell in cells:
        if cell.place["kind"] in speed.INTERVENTIONS:
            assert cell.run.shape == plain.shape
            assert cell.run.options == plain.options.replace(**speed.INTERVENTIONS[cell.place["kind"]])
        else:
            assert cell.run.options == plain.options


@pytest.mark.parametrize(
    ("name", "place", "key"),
    [
        ("conditioning-in-training", {"task": "images", "axis": "fixed width", "heads": 8}, "0cc1950947f74443"),
        ("conditioning-in-training", {"task": "text", "axis": "fixed width", "heads": 8}, "a5bd13ea52d8acef"),
        ("conditioning-and-speed", {"kind": "plain"}, "912df427d093045f"),
    ],
)
def test_known_runs_keep_their_names(name, place, key):
    """The runs are made by a neighbour's function, and results that are done stand under these names."""
    (found,) = (
        cell.run.cell_key
        for cell in load(name).of("laptop")
        if cell.run.seed == 1 and cell.run.steps and place.items() <= cell.place.items()
    )
    assert found == key


# ---- both ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["conditioning-in-training", "conditioning-and-speed"])
def test_an_unfinished_preset_can_be_judged(name):
    study = load(name)
    tell = by_heads(-0.5, -0.5, -0.5) if name == "conditioning-in-training" else laws(LOWER, 0.5)
    rows = world(name, tell)
    assert "Power: " in study.about
    for some in (rows[:1], rows[:7], rows[-9:], rows[1::2], rows[::2]):
        assert study.chart(some, "laptop").to_dict()
        for claim in study.claims:
            claim.decide(some)


def test_history_comes_back_from_files(tmp_path):
    """What is committed is Parquet: a run's probes and its curve must be there for the claims to read."""
    study = load("conditioning-and-speed")
    cells = [cell for cell in study.of("smoke") if cell.place["kind"] == "whitened tokens" and cell.run.seed == 0]
    trials = [cell for cell in study.trials("smoke") if cell.place in [{**c.place, "trial": 0.003} for c in cells]]
    with Store(tmp_path / "here.db") as here, Store(tmp_path / "there.db") as there:
        results = {}
        for run in (cell.run for cell in (*trials, *cells)):
            results[run.seed, run.steps] = train_run(run)
            here.add(run, results[run.seed, run.steps])
        there.merge([here.export(tmp_path / "runs.parquet")])
        found = {row.cell["part"]: row for row in study_rows(study, "smoke", there)}
    assert set(found) == {"beginning", "training"}
    for part, steps in (("beginning", 0), ("training", 4)):
        result = results[0, steps]
        assert result.status == "done"
        assert result.probes
        assert {*result.probes} <= {*found[part].history}
        assert math.isfinite(kappa(found[part], PROBE))
    assert [step for step, name, _ in found["training"].history if name == "cross_entropy"] == [1, 2, 3, 4]


def test_the_table_of_gaussian_heads_is_what_is_drawn():
    assert list(gaussian_heads.drawn()) == [8, 16, 32, 64, 128, 256, 512, 1024]
    for heads, conditions in gaussian_heads.drawn().items():
        assert conditions == pytest.approx(gaussian_heads.draw(heads), rel=1e-9), heads
