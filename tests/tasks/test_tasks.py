"""The contract of a task, held by every file in tasks/; and what each says of itself, checked independently."""

import pytest
import torch

from headwise.shape import ModelShape, ShapeError
from headwise.spec import SpecError
from headwise.tasks import load_task, names, parse, written
from headwise.tasks.nearest_neighbor import NearestNeighbor
from headwise.tasks.stream import Draw
from headwise.training.loop import Interrupted, train_run
from headwise.training.run import Recipe, Run

STREAMS = ("train", "validation", "test")
OWN_TASK = """
from headwise.tasks.nearest_neighbor import NearestNeighbor

class Mine(NearestNeighbor):
    name = "mine"

TASK = Mine
"""


@pytest.fixture(params=names())
def task(request):
    return load_task({"name": request.param})


def rows_of(batch):
    inputs, labels = batch
    return {(tuple(a.flatten().tolist()), tuple(b.flatten().tolist())) for a, b in zip(inputs, labels, strict=True)}


def model_of(task):
    torch.manual_seed(0)
    return task.build(ModelShape.parse(task.usual_shape), task.default_options())


def test_a_batch_depends_on_its_address_alone(task):
    first = task.draw(1, "train", 7, 4)
    task.draw(2, "train", 3, 5)
    again = load_task(task.spec()).draw(1, "train", 7, 4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_seeds_and_steps_draw_other_batches(task):
    """Also where a generator with a short seed would fold them together."""
    addresses = [(seed, index) for seed in (0, 1, 2**33) for index in (0, 1, 1000)]
    samples = {tuple(sorted(rows_of(task.draw(seed, "train", index, 4)))) for seed, index in addresses}
    assert len(samples) == len(addresses)


def test_splits_never_overlap(task):
    """Every sample of a held-out split against many of training; endless streams are numbers of their own."""
    held = {stream: task.samples(stream) for stream in STREAMS[1:]}
    batch = min(256, *(count or 256 for count in held.values()))
    seen = set().union(*(rows_of(task.draw(0, "train", index, batch)) for index in range(4)))
    validation, test = (rows_of(task.draw(0, stream, 0, batch)) for stream in STREAMS[1:])
    assert not seen & validation
    assert not seen & test
    assert not validation & test


def test_a_finite_split_is_read_once(task):
    total = task.samples("test")
    if total is None:
        assert task.draw(0, "test", 2**33, 3)[0].shape[0] == 3
        return
    batch = total // 2 + 1
    first, last = (task.draw(0, "test", index, batch)[0] for index in (0, 1))
    assert (len(first), len(last)) == (batch, total - batch)
    assert torch.equal(first, task.draw(5, "test", 0, batch)[0]), "held-out samples are the same for every seed"


def test_a_model_of_the_usual_shape_takes_its_batches(task):
    inputs, labels = task.draw(0, "train", 0, 3)
    model = model_of(task)
    loss = task.loss(model(inputs), labels)
    loss.backward()
    assert loss.isfinite()
    with torch.no_grad():
        scores = task.scores(model(inputs), labels)
    assert {len(values) for values in scores.values()} == {3}
    assert 0 <= task.metrics(scores)["error"] < 100
    assert task.tokens > 0


def test_a_run_is_interrupted_and_resumed_without_a_trace(task, tmp_path, monkeypatch):
    spec = {"task": task.resolved().spec(), "shape": task.usual_shape, "options": task.default_options()}
    load_task(spec["task"]).trivial_error()  # remembered, so before anything below shortens the data
    run = Run(**spec, recipe=Recipe(batch=4, learning_rate=0.001), steps=4, evaluations=1)
    counts = iter(range(1, 100))
    for name in ("TEST_SAMPLES", "VALIDATION_SAMPLES"):
        monkeypatch.setattr(f"headwise.training.evaluation.{name}", 8)
    monkeypatch.setattr(type(task), "samples", lambda self, stream: 8)  # whole test sets are not what is tested here
    whole = train_run(run)
    with pytest.raises(Interrupted):
        train_run(run, checkpoints=tmp_path, should_stop=lambda: next(counts) >= 2)
    resumed = train_run(run, checkpoints=tmp_path)
    assert whole.status == "done", whole.message
    assert resumed.metrics == whole.metrics


def test_trivial_and_least_errors_are_in_order(task):
    trivial, floor = task.trivial_error(), task.floor()
    assert trivial > 0
    assert floor is None or 0 <= floor < trivial


def test_a_simple_baseline_is_named_and_no_worse_than_no_skill(task):
    name, error = task.simple_baseline()
    assert name
    assert (task.floor() or 0) < error <= task.trivial_error()
    assert load_task(task.spec()).simple_baseline() == (name, error)


def test_a_task_goes_into_a_run_and_out(task):
    assert load_task(task.spec()) == task
    assert parse(written(task)) == task.resolved()
    assert task.summary


def test_a_task_is_written_as_text():
    assert parse("recall,pairs=4").pairs == 4
    assert parse("nearest-neighbor,layout=orthogonal,bias=0.5,queries=separate").bias == 0.5
    with pytest.raises(SpecError, match="no field 'source'"):
        parse("recall:file.txt")


def test_the_source_of_a_task_may_be_code(tmp_path):
    """A name before the colon is a task's, whatever the file behind it is; a Python file alone is a task."""
    file = tmp_path / "letters.py"
    file.write_text("print('the text of a program')\n" * 2000)
    task = parse(f"text:{file},context=16")
    assert (task.source, task.context) == (str(file), 16)
    with pytest.raises(SpecError, match="TASK = YourTask"):
        parse(str(file))


@pytest.mark.parametrize(
    "text",
    [
        "recall,pairs=2,power=0.5",
        "pathfinder,distractors=0",
        "images,grey=true,augment=crop-flip",
        "in-context,kind=tree",
    ],
)
def test_a_task_is_written_as_it_was(text):
    assert written(parse(text)) == text


def test_unknown_tasks_and_options_are_refused():
    with pytest.raises(SpecError, match="no task 'chess'; there are glue, images"):
        load_task({"name": "chess"})
    with pytest.raises(SpecError, match="no field 'colour'"):
        load_task({"name": "nearest-neighbor", "colour": 3})


# ---- nearest neighbours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["uniform", "orthogonal", "antipodal"])
def test_labels_are_the_farthest_points_by_brute_force(layout):
    points, labels = NearestNeighbor(dim=8, points=6, layout=layout).draw(3, "train", 5, 10)
    torch.testing.assert_close(points.norm(dim=-1), torch.ones(10, 6))
    for one, wanted in zip(points, labels, strict=True):
        for point, label in zip(one, wanted, strict=True):
            distances = [(point - other).norm().item() for other in one]
            assert (point - label).norm().item() == pytest.approx(max(distances), abs=1e-5)


@pytest.mark.parametrize("bias", [0.0, 0.7])
def test_separate_queries_find_the_nearest_point_by_brute_force(bias):
    tokens, labels = NearestNeighbor(dim=8, points=6, queries="separate", bias=bias).draw(3, "train", 5, 50)
    for one, label in zip(tokens, labels, strict=True):
        points, query = one[:-1], one[-1]
        closeness = [float(point @ query) - (bias if i == 0 else 0.0) for i, point in enumerate(points)]
        assert torch.equal(label[0], points[closeness.index(max(closeness))])


def test_orthogonal_points_are_orthogonal():
    points, _ = NearestNeighbor(dim=8, points=8, layout="orthogonal").draw(0, "train", 0, 5)
    torch.testing.assert_close(points @ points.mT, torch.eye(8).expand(5, 8, 8), atol=1e-5, rtol=0)


def test_the_query_is_no_answer_to_itself():
    """Nothing may attend to it: its own vector is always the nearest to itself."""
    task = NearestNeighbor(dim=8, points=4, queries="separate")
    model = task.build(ModelShape.parse("w8-h1"), task.default_options())
    tokens, _ = task.draw(0, "train", 0, 2)
    _, weights = model.body.blocks[0].attention(
        tokens, padding=torch.tensor([[True] * 4 + [False]] * 2), need_weights=True
    )
    assert (weights[..., -1] == 0).all()
    assert model(tokens).shape == (2, 1, 8)


@pytest.mark.parametrize(("dim", "points", "expected"), [(64, 16, 0.892), (16, 8, 0.763), (64, 64, 0.903)])
def test_the_trivial_error_is_the_best_linear_baseline(dim, points, expected):
    """Values computed independently for these settings; 0.763 allows only the point itself, so it is no less."""
    found = NearestNeighbor(dim=dim, points=points).trivial_error()
    assert found <= expected + 0.004
    if (dim, points) == (64, 16):
        assert found == pytest.approx(expected, abs=0.004)


def test_predicting_nothing_has_error_one():
    task = NearestNeighbor()
    _, labels = task.draw(0, "test", 0, 100)
    assert task.loss(torch.zeros_like(labels), labels).item() == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 4, "points": 5, "layout": "orthogonal"}, "5 points cannot be orthogonal in 4 dimensions"),
        ({"points": 5, "layout": "antipodal"}, "come in pairs"),
        ({"bias": 0.5}, "needs separate queries"),
        ({"points": 1}, "points is 1"),
        ({"positions": "added", "queries": "separate"}, "positions are for self-search"),
        ({"positions": "concatenated", "tags": True}, "positions are for self-search"),
    ],
)
def test_impossible_tasks_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        NearestNeighbor(**options)


def test_a_width_that_does_not_fit_is_refused():
    with pytest.raises(ShapeError, match="need width 16, not 8"):
        NearestNeighbor().build(ModelShape.parse("w8-h1"), NearestNeighbor().default_options())


def test_replayed_batches_come_round_and_test_batches_do_not():
    task = NearestNeighbor(dim=4, points=3, replay=5)
    batches = [task.draw(1, "train", index, 2)[0] for index in range(12)]
    assert all(torch.equal(batches[i], batches[i + 5]) for i in range(7))
    assert len({tuple(batch.flatten().tolist()) for batch in batches}) == 5
    assert not torch.equal(task.draw(1, "test", 0, 2)[0], task.draw(1, "test", 5, 2)[0])


@pytest.mark.parametrize(("positions", "width"), [("none", 4), ("added", 4), ("concatenated", 8)])
def test_only_with_positions_does_the_order_of_points_matter(positions, width):
    task = NearestNeighbor(dim=4, points=3, positions=positions)
    torch.manual_seed(0)
    model = task.build(ModelShape.parse(f"w{width}-h1"), task.default_options())
    points, labels = task.draw(0, "test", 0, 5)
    order = [2, 0, 1]
    same = torch.allclose(model(points)[:, order], model(points[:, order]), atol=1e-6)
    assert same == (positions == "none")
    assert task.scores(model(points), labels)["error"].shape == (5,)


# ---- somebody's own task -------------------------------------------------------------------------------------------


def test_a_task_in_a_file_of_its_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(OWN_TASK)
    task = load_task({"name": str(file), "points": 4})
    assert task.points == 4
    spec = task.spec()
    assert spec["name"] == str(file)
    assert load_task(spec).draw(0, "train", 0, 2)[0].shape == (2, 4, 16)
    file.write_text(OWN_TASK + "\n# changed\n")
    with pytest.raises(SpecError, match="has changed since this run was planned"):
        load_task(spec)
    assert load_task({"name": str(file)}).spec()["hash"] != spec["hash"]


@pytest.mark.parametrize(("text", "message"), [("x = 1", "end it with TASK"), (None, "cannot read the task file")])
def test_a_file_that_is_no_task(tmp_path, text, message):
    file = tmp_path / "none.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SpecError, match=message):
        load_task({"name": str(file)})


# ---- random numbers by address -------------------------------------------------------------------------------------


def test_numbers_have_the_distribution_they_claim():
    draw = Draw(0, "train", 0)
    normal, uniform, whole = draw.normal(400, 400), draw.uniform(400, 400), draw.integers(2, 7, 400, 400)
    assert normal.mean().abs() < 0.01
    assert normal.var() == pytest.approx(1.0, abs=0.02)
    assert uniform.mean() == pytest.approx(0.5, abs=0.005)
    assert set(whole.unique().tolist()) == {2, 3, 4, 5, 6}


def test_the_next_index_is_no_continuation():
    """A batch must not begin where the one before it ends, however much that drew."""
    first = Draw(0, "train", 0).normal(100_000)
    second = Draw(0, "train", 1).normal(16)
    assert not torch.isin(second, first).all()
