"""Image classification: what the task says of the data, against the data itself; and that a model learns it."""

import shutil
import warnings
import zipfile
from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from headwise.data import images as data
from headwise.options import preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import load_task, parse
from headwise.tasks.images import Images
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run

STREAMS = ("train", "validation", "test")
RANDOM = np.random.default_rng(0)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Eight classes that differ in one colour, one of them larger, in a zip with published splits."""
    path = tmp_path_factory.mktemp("images") / "set.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for split, count in (("train", 30), ("test", 7)):
            for number in range(8):
                for i in range(count + 5 * (number == 3)):
                    pixels = RANDOM.integers(0, 120, (12, 12, 3), dtype=np.uint8)
                    pixels[..., number % 3] += 16 * number
                    file = BytesIO()
                    Image.fromarray(pixels).save(file, "PNG")
                    archive.writestr(f"{split}/class {number}/{i}.png", file.getvalue())
    return str(path)


def every(task, stream, batch):
    """All batches of a held-out stream."""
    total = task.samples(stream)
    return [task.draw(0, stream, index, batch) for index in range(-(-total // batch))]


def pixels_of(task, inputs):
    """Bytes again, (batch, side, side, channels): what normalisation did is undone with numpy."""
    train = task.images().train.take()
    train = data.grey(train) if task.grey else train
    mean, deviation = train.astype(float).mean((0, 1, 2)), train.astype(float).std((0, 1, 2))
    return np.round(inputs.permute(0, 2, 3, 1).double().numpy() * deviation + mean).astype(np.uint8)


@pytest.mark.parametrize("stream", ["validation", "test"])
def test_a_held_out_split_is_read_once_in_order(stream):
    task = Images()
    batches = every(task, stream, 50)
    part = getattr(task.images(), stream)
    assert [len(labels) for _, labels in batches] == [50, 50, 50, 29]
    assert np.array_equal(torch.cat([labels for _, labels in batches]), part.labels)
    assert np.array_equal(pixels_of(task, torch.cat([inputs for inputs, _ in batches])), part.take())


def test_training_goes_through_all_images_in_a_new_order_each_time(pictures):
    task = Images(source=pictures)
    total = task.samples("train")
    seen = torch.cat([task.draw(5, "train", index, 10)[0] for index in range(2 * total // 10 + 1)])
    keys = [image.numpy().tobytes() for image in seen]
    first, second = keys[:total], keys[total : 2 * total]
    assert len(set(first)) == total
    assert set(first) == set(second)
    assert first != second


def test_labels_belong_to_their_images(pictures):
    task = Images(source=pictures)
    part = task.images().train
    labels = {image.tobytes(): label for image, label in zip(part.take(), part.labels, strict=True)}
    inputs, found = task.draw(0, "train", 3, 40)
    for image, label in zip(pixels_of(task, inputs), found.tolist(), strict=True):
        assert labels[image.tobytes()] == label
        mean = image.astype(float).mean((0, 1))
        assert label < 3 or mean.argmax() == label % 3


@pytest.mark.parametrize("grey", [False, True])
def test_training_pixels_are_normalised(pictures, grey):
    task = Images(source=pictures, grey=grey)
    inputs, _ = task.draw(0, "train", 0, task.samples("train"))
    assert inputs.shape[1] == (1 if grey else 3)
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(inputs.shape[1]), atol=1e-4, rtol=0)
    torch.testing.assert_close(inputs.std((0, 2, 3)), torch.ones(inputs.shape[1]), atol=1e-3, rtol=0)


def test_only_training_images_are_augmented(pictures):
    plain, full = Images(source=pictures), Images(source=pictures, augment="full")
    for stream in STREAMS:
        one, other = plain.draw(1, stream, 0, 16), full.draw(1, stream, 0, 16)
        assert torch.equal(one[1], other[1])
        assert torch.equal(one[0], other[0]) == (stream != "train")
    assert torch.equal(full.draw(1, "train", 0, 16)[0], full.draw(1, "train", 0, 16)[0])
    # the same image in another batch looks different
    total = full.samples("train")
    first = torch.cat([full.draw(1, "train", i, 5)[0] for i in range(2 * total // 5)])
    assert len({image.numpy().tobytes() for image in first}) > 1.9 * total


def test_the_trivial_error_is_what_the_commonest_class_scores(pictures):
    for task in (Images(), Images(source=pictures)):
        _, labels = task.draw(0, "train", 0, task.samples("train"))
        commonest = labels.bincount().argmax()
        scores = []
        for _, wanted in every(task, "test", 64):
            output = torch.zeros(len(wanted), len(task.images().classes))
            output[:, commonest] = 1
            scores.append(task.scores(output, wanted)["error"])
        assert task.trivial_error() == pytest.approx(float(torch.cat(scores).mean()), abs=1e-6)


def test_metrics_by_their_definition():
    output, labels = torch.randn(50, 10), torch.randint(0, 10, (50,))
    order = np.argsort(-output.numpy(), axis=1)
    found = Images().metrics(Images().scores(output, labels))
    first = np.mean([row[0] == label for row, label in zip(order, labels.numpy(), strict=True)])
    fifth = np.mean([label in row[:5] for row, label in zip(order, labels.numpy(), strict=True)])
    chance = output.double().softmax(-1)[torch.arange(50), labels]
    assert found["top1"] == pytest.approx(first)
    assert found["error"] == pytest.approx(1 - first)
    assert found["top5"] == pytest.approx(fifth)
    assert found["cross_entropy"] == pytest.approx(float(-chance.log().mean()), rel=1e-5)
    assert "top5" not in Images().scores(torch.randn(3, 5), torch.tensor([0, 1, 4]))


@pytest.mark.parametrize(("side", "patch"), [(8, 2), (28, 4), (32, 4), (64, 8), (96, 12)])
def test_the_usual_patch_leaves_16_to_64_tokens(side, patch):
    task = Images(side=side)
    assert task.default_options().patch == patch
    assert task.tokens == (side // patch) ** 2 + 1


@pytest.mark.parametrize("side", [6, 9, 31])
def test_a_side_without_a_usual_patch(side):
    with pytest.raises(SpecError, match=f"no patch cuts an image of {side} pixels into 16 to 64"):
        Images(side=side).default_options()


def test_models_of_any_shape_take_the_images(pictures):
    task = Images(source=pictures, grey=True, patch=3)
    inputs, labels = task.draw(0, "train", 0, 6)
    for shape in ("w16-h2", "w24-h3-r16-v4-g1-L2-m8", "w16-h4x1,2x1-L2"):
        model = task.build(ModelShape.parse(shape), task.default_options())
        output = model(inputs)
        assert output.shape == (6, 8)
        assert task.loss(output, labels).item() == pytest.approx(np.log(8), abs=0.2)  # the head begins small
        unit = task.build(ModelShape.parse(shape), task.default_options().replace(init="unit"))
        assert task.loss(unit(inputs), labels).item() == pytest.approx(np.log(8), abs=1e-5)  # and there with zeros


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 3}, "need a model with classes 10, not 3"),
        ({"channels": 3}, "need a model with channels 1, not 3"),
        ({"image": 16}, "need a model with image 8, not 16"),
    ],
)
def test_models_that_do_not_fit_are_refused(changes, message):
    facts = {"image": 8, "patch": 2, "channels": 1, "classes": 10} | changes
    with pytest.raises(SpecError, match=message):
        Images().build(ModelShape.parse("w16-h2"), preset("vit", **facts))


def test_another_family_and_a_patch_that_does_not_tile_are_refused():
    with pytest.raises(SpecError, match="family vit, not encoder"):
        Images().build(ModelShape.parse("w16-h2"), preset("encoder"))
    with pytest.raises(SpecError, match="patches of 3 do not tile an image of 8"):
        Images(patch=3).default_options()


def test_the_data_is_part_of_a_runs_key_and_its_place_is_not(pictures, tmp_path):
    shutil.copy(pictures, tmp_path / "moved.zip")
    one, other = parse(f"images:{pictures},augment=flip"), parse(f"images:{tmp_path / 'moved.zip'},augment=flip")
    runs = [Run(task=task.spec(), shape="w16-h2", options=task.default_options(), steps=1) for task in (one, other)]
    assert runs[0].key == runs[1].key
    assert load_task(one.spec()) == one
    with pytest.raises(SpecError, match="is not the data this run was planned with"):
        one.replace(content="0" * 16).draw(0, "train", 0, 2)


def test_classical_methods_know_the_digits():
    """Published errors of both on these digits are a few per cent; a fit that did not converge is an error here."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = Images().baselines()
    assert 0.005 < found["logistic regression"] < 0.05
    assert 0.002 < found["nearest neighbours"] < 0.03


def test_baselines_on_a_part_say_so(pictures, monkeypatch):
    monkeypatch.setattr("headwise.tasks.images.BASELINE_NUMBERS", 100 * 12 * 12 * 3)
    total = Images(source=pictures).samples("train")
    found = Images(source=pictures).baselines()
    assert list(found) == [f"{name} on 100 of {total} images" for name in ("logistic regression", "nearest neighbours")]
    assert found[f"logistic regression on 100 of {total} images"] < 0.2


def test_a_small_model_learns(pictures):
    task = parse(f"images:{pictures},patch=3")
    recipe = Recipe(learning_rate=0.003, batch=32)
    run = Run(
        task=task.spec(), shape="w16-h2-L1", options=task.default_options(), recipe=recipe, steps=80, evaluations=1
    )
    result = train_run(run)
    assert result.status == "done", result.message
    assert result.metrics["error"] < task.trivial_error() / 2
    assert result.tokens == 80 * 32 * 17


@pytest.mark.slow
def test_the_usual_shape_learns_the_digits():
    """As well as a logistic regression, up to the chance of 179 images (one standard error is 0.01)."""
    task = parse("images")
    recipe = Recipe(batch=64, weight_decay=0.05)
    run = Run(task=task.spec(), shape=task.usual_shape, options=task.default_options(), recipe=recipe, steps=2000)
    assert train_run(run).metrics["error"] < task.baselines()["logistic regression"] + 0.03
