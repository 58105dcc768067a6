"""What a plan would cost: training steps and evaluations apart, and nothing trained that need not be."""

from headwise.options import preset
from headwise.store.store import Store
from headwise.sweep.plan import make_plan, work
from headwise.sweep.price import Pace, price_plan
from headwise.training.run import Recipe, Run

RUN = Run(
    task={"name": "recall", "vocab": 32, "pairs": 4, "length": 16},
    shape="w16-h2-L1",
    options=preset("nanochat", vocab=32, context=16),
    recipe=Recipe(batch=8),
    steps=100,
    evaluations=4,
)


def test_a_run_takes_its_steps_and_its_evaluations():
    pace = Pace(speed=1e6, evaluation=2.0)
    assert pace.seconds(RUN) == work(RUN) / 1e6 + 8
    assert pace.seconds(RUN.replace(steps=200)) == 2 * work(RUN) / 1e6 + 8


def test_an_evaluation_is_not_priced_once_per_step(monkeypatch, tmp_path):
    """A held-out part that takes a second does not make 100 steps take half a minute."""
    from headwise.training import loop
    from headwise.training.run import RunResult

    monkeypatch.setattr(loop, "training_steps", lambda run: iter([1.0] * run.steps))
    monkeypatch.setattr(loop, "train_run", lambda run: RunResult(run.key, "done", steps=1, seconds=1.0))
    with Store(tmp_path / "runs.db") as store:
        price = price_plan(make_plan([RUN], store), workers=2)
    assert price.runs == 1
    assert 1.9 < price.seconds < 2.1  # four evaluations by two workers


def test_what_a_run_begins_with_is_not_trained_to_price_it(tmp_path):
    before = {"name": "pretrained", "run": {"task": RUN.task, "steps": 10**9}}
    with Store(tmp_path / "runs.db") as store:
        price = price_plan(make_plan([RUN.replace(begin=before)], store), workers=1)
    assert price.seconds > 0
