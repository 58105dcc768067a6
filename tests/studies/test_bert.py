"""BERT and long sequences with fewer layers: in invented worlds claims hold or fail as they should; what arms are."""

import pytest

from headwise.cost import parameters
from headwise.known import find as known
from headwise.ledger.judge import judge_claim
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.store.rows import Row
from headwise.studies import load
from headwise.studies.thinner_bert import MASKED, TUNED
from headwise.training import pretrained
from helpers.judging import judge_testable

NAMES = ("thinner-bert", "thinner-lra")


def world(study, tell):
    """Rows of the laptop preset with the error that `tell(place)` gives, a little different for each seed."""
    found = []
    for cell in study.of("laptop"):
        error = tell(cell.place) * (1 + 0.001 * (cell.run.seed + len(cell.place["arm"])) ** 2 % 0.003)
        size = float(parameters(cell.run.model_shape, cell.run.options)["total"])
        metrics = {"error": error, "trivial_error": 1.0, "parameters": size}
        found.append(Row(cell.place, cell.run.seed, metrics, cell.run.key))
    return found


def verdicts(name, tell):
    study = load(name)
    rows = world(study, tell)
    return {claim.id: judge_testable(claim, "laptop", rows).verdict for claim in study.claims}


def errors(base=0.5, thin=0.5, **special):
    """The same error everywhere but in the thin arm, or in what `special` (a task or model) says."""

    def tell(place):
        for name, value in special.items():
            if name in place.values() and place["arm"] == "thin":
                return value
        return thin if place["arm"] == "thin" else base

    return tell


@pytest.mark.parametrize(
    ("tell", "usual", "deep"),
    [
        (errors(), "holds", "holds"),
        (errors(thin=0.45), "holds", "holds"),  # better is as good
        (errors(thin=0.53), "fails", "fails"),
        (errors(usual=0.53), "fails", "holds"),
        (errors(deep=0.53), "holds", "fails"),
        (errors(base=0.99, thin=0.99), "fails", "fails"),  # neither has learned anything
    ],
)
def test_worlds_of_bert(tell, usual, deep):
    assert verdicts("thinner-bert", tell) == {"L7": usual, "L11": deep}


@pytest.mark.parametrize(
    ("tell", "wanted"),
    [
        (errors(), "holds"),
        (errors(thin=0.4), "holds"),  # better is as good
        (errors(thin=0.56), "fails"),
        (errors(base=0.97, thin=0.97), "fails"),
    ],
)
def test_worlds_of_long_sequences(tell, wanted):
    """At the lengths that were run the control could not fail, so whatever they say, they cannot tell."""
    study = load("thinner-lra")
    (found,) = (judge_claim(claim, "laptop", world(study, tell)) for claim in study.claims)
    assert (found.verdict, found.qualifier) == ("cannot tell", found.claim.untestable)
    assert judge_testable(found.claim, "laptop", world(study, tell)).verdict == wanted


def test_a_thin_model_that_saves_too_little_fails():
    study = load("thinner-bert")
    rows = [Row(row.cell, row.seed, row.metrics | {"parameters": 1e5}, row.key) for row in world(study, errors())]
    assert {judge_testable(claim, "laptop", rows).verdict for claim in study.claims} == {"fails"}


@pytest.mark.parametrize("name", NAMES)
def test_an_unfinished_preset_stays_open(name):
    study = load(name)
    rows = world(study, errors())
    for some in (rows[:1], rows[:6], rows[-3:], [row for row in rows if row.cell["arm"] != "thin"]):
        for claim in study.claims:
            assert judge_claim(claim, "laptop", some).verdict == "open"


# ---- arms ----------------------------------------------------------------------------------------------------------


def arms(preset):
    """Every group of arms of a preset, by name, as parameter counts."""
    for group in ("arms", "usual", "deep"):
        if hasattr(preset, group):
            yield {arm: ModelShape.parse(shape) for arm, shape in getattr(preset, group).items()}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("preset", ["smoke", "laptop", "paper"])
def test_arms_are_what_the_docstring_says(name, preset):
    study = load(name)
    options = study.of(preset)[0].run.options
    for group in arms(study.presets[preset]):
        sizes = {arm: parameters(shape, options)["total"] for arm, shape in group.items()}
        base, thin, control = (group[arm] for arm in ("base", "thin", "control"))
        assert thin.layers[0].heads == 2 * base.layers[0].heads
        assert control.layers[0] == base.layers[0]
        assert thin.depth == control.depth < base.depth
        assert sizes["thin"] == sizes["control"] < sizes["base"]
        if "as large" in group:
            large = group["as large"]
            assert (large.layers[0].qk_rank, large.mlps[0], large.depth) == (
                base.layers[0].qk_rank,
                base.mlps[0],
                thin.depth,
            )
            assert preset == "smoke" or sizes["as large"] == pytest.approx(sizes["base"], rel=0.01)


def test_the_paper_preset_has_the_papers_pair():
    shapes = load("thinner-bert").presets["paper"].usual
    assert (shapes["base"], shapes["thin"]) == (str(known("crammed-bert").shape), str(known("crammed-bert-thin").shape))


@pytest.mark.parametrize("preset", ["smoke", "laptop", "paper"])
def test_fine_tuning_begins_with_the_pre_training_that_is_judged(preset):
    """So that the weights of one are found by the other, whatever the learning rate that was chosen."""
    cells = load("thinner-bert").of(preset)
    masked = {(cell.place["arm"], cell.run.seed): cell.run for cell in cells
              if (cell.place["model"], cell.place["task"]) == ("usual", MASKED)}  # fmt: skip
    tuned = [cell for cell in cells if cell.place["task"] == TUNED]
    assert {cell.place["arm"] for cell in tuned} == set(load("thinner-bert").presets[preset].tuned)
    for cell in tuned[:: len(tuned) // 3]:
        run = cell.run.replace(recipe=cell.run.recipe.replace(learning_rate=0.123))
        alone = masked[cell.place["arm"], run.seed].replace(recipe=run.recipe)
        assert pretrained.earlier(run).cell_key == alone.cell_key


# ---- what there is to do -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "judged", "trials"), [("thinner-bert", 68, 22), ("thinner-lra", 20, 8)])
def test_so_many_runs(name, judged, trials):
    study = load(name)
    assert len({cell.run.key for cell in study.of("laptop")}) == judged
    assert len({cell.run.key for cell in study.trials("laptop")}) == trials


def test_data_that_must_be_given():
    load("thinner-lra").check_data("laptop", {})
    load("thinner-bert").check_data("smoke", {})
    with pytest.raises(SpecError, match="the laptop preset of thinner-bert needs GLUE's SST-2"):
        load("thinner-bert").check_data("laptop", {"text": "somewhere"})


@pytest.mark.parametrize("name", NAMES)
def test_a_power_is_stated(name):
    assert "Power: " in load(name).about


def test_a_chart_has_a_panel_a_depth_and_tells_of_fine_tuning():
    study = load("thinner-bert")
    drawn = study.chart(world(study, errors()), "laptop").to_dict()
    panels = {panel["title"]["text"] for panel in drawn["concat"]}
    assert panels == {"pre-training, usual depth", "pre-training, deep depth"}
    assert any("SST-2 after fine-tuning, base 0.5" in note for note in drawn["title"]["subtitle"])
