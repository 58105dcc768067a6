"""Long-Range Arena: reviews from folders and archives, pairs of papers, images by pixels."""

import io
import tarfile

import numpy as np
import pytest
import torch

from headwise.data import grammar, images
from headwise.data.tables import END, PAD, SPECIAL, START
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import parse
from headwise.tasks.lra import LongRangeArena
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run

SHAPE = ModelShape.parse("w16-h2")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))


def write_reviews(folder, splits=("train", "test"), each=20):
    """As aclImdb is laid out; a review says its own name."""
    for split in splits:
        for opinion in ("pos", "neg"):
            place = folder / split / opinion
            place.mkdir(parents=True)
            for number in range(each):
                (place / f"{number}_7.txt").write_text(f"{split} {opinion} {number} <br />naïve", encoding="utf-8")
    (folder / "README").write_text("not a review")
    (folder / "train" / "unsup").mkdir(parents=True)
    (folder / "train" / "unsup" / "0_0.txt").write_text("no label")


def opinions_of(examples):
    return {text: int(label) for text, label in zip(examples.column(0), examples.labels, strict=True)}


# ---- reviews -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "tar", "tar.gz", "tar.xz"])
def test_reviews_are_read_as_published(tmp_path, kind):
    folder = tmp_path / "aclImdb"
    write_reviews(folder)
    source = folder
    if kind != "folder":
        source = tmp_path / f"reviews.{kind}"
        with tarfile.open(source, "w:" + kind.partition(".")[2]) as archive:
            archive.add(folder, "aclImdb")
    task = LongRangeArena(source=str(source))
    parts = task.parts
    train = opinions_of(parts["train"]) | opinions_of(parts["validation"])
    assert train == {f"train {o} {i} <br />naïve": int(o == "pos") for o in ("pos", "neg") for i in range(20)}
    assert set(opinions_of(parts["test"]).values()) == {0, 1}
    assert len(parts["validation"]) == 4
    assert task.digest() == LongRangeArena(source=str(folder)).digest()


def test_published_validation_stays_and_may_stand_for_train(tmp_path):
    write_reviews(tmp_path / "three", ("train", "val", "test"))
    parts = LongRangeArena(source=str(tmp_path / "three")).parts
    assert [len(parts[stream]) for stream in ("train", "validation", "test")] == [40, 40, 40]
    assert all(text.startswith("val ") for text in parts["validation"].texts)
    write_reviews(tmp_path / "two", ("val", "test"))
    parts = LongRangeArena(source=str(tmp_path / "two")).parts
    assert [len(parts[stream]) for stream in ("train", "validation", "test")] == [36, 4, 40]


def test_the_order_of_reviews_says_nothing_of_their_labels(tmp_path):
    write_reviews(tmp_path / "imdb", each=100)
    labels = LongRangeArena(source=str(tmp_path / "imdb")).labels("test")
    assert 30 < labels[:100].sum() < 70


def test_an_archive_is_not_unpacked_nor_trusted(tmp_path):
    """Links and names that lead elsewhere are not followed; a review that is no review is refused."""
    source = tmp_path / "bad.tar"
    (tmp_path / "secret.txt").write_text("secret")

    def add(archive, name, content=b"", **facts):
        member = tarfile.TarInfo(name)
        member.size = len(content)
        for fact, value in facts.items():
            setattr(member, fact, value)
        archive.addfile(member, io.BytesIO(content))

    with tarfile.open(source, "w") as archive:
        for split in ("train", "test"):
            for number in range(20):
                add(archive, f"{split}/pos/{number}.txt", f"{split}{number}".encode())
        add(archive, "../../train/pos/out.txt", b"outside")
        add(archive, "train/neg/link.txt", type=tarfile.SYMTYPE, linkname=str(tmp_path / "secret.txt"))
    before = sorted(tmp_path.rglob("*"))
    parts = LongRangeArena(source=str(source)).parts
    assert sorted(tmp_path.rglob("*")) == before
    assert not any("secret" in text for examples in parts.values() for text in examples.texts)
    with tarfile.open(source, "a") as archive:
        add(archive, "train/neg/huge.txt", b"x" * (2 << 20))
    with pytest.raises(SpecError, match=r"huge.txt in .* has 2097152 bytes, too many"):
        _ = LongRangeArena(source=str(source)).parts


def test_damaged_reviews_are_named(tmp_path):
    write_reviews(tmp_path / "imdb")
    with tarfile.open(tmp_path / "cut.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "imdb", "imdb")
    whole = (tmp_path / "cut.tar.gz").read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "imdb" / "test" / "pos" / "3_7.txt").write_bytes(b"\xff\xfe")
    (tmp_path / "empty").mkdir()
    for source, message in (
        ("cut.tar.gz", "is no readable tar archive"),
        ("imdb", r"test/pos/3_7.txt .* is not UTF-8"),
        ("empty", "has no reviews as IMDB publishes them"),
        ("none.tar", "there is no file or folder"),
    ):
        with pytest.raises(SpecError, match=message):
            _ = LongRangeArena(source=str(tmp_path / source)).parts


def test_reviews_of_a_data_set(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    for split in ("train", "test"):
        rows = {"text": [f"{split} {i}" for i in range(40)], "label": [i % 2 for i in range(40)]}
        datasets.Dataset.from_dict(rows).to_parquet(tmp_path / "set" / f"{split}-00000-of-00001.parquet")
    parts = LongRangeArena(source=str(tmp_path / "set")).parts
    assert opinions_of(parts["test"]) == {f"test {i}": i % 2 for i in range(40)}


# ---- papers --------------------------------------------------------------------------------------------------------


def write_papers(folder, label="1.0"):
    folder.mkdir()
    for split in ("train", "eval", "test"):
        lines = [f'{label if i % 2 else "0.0"}\tid{i}\tid{i + 1}\t{split} "one" {i}\ttwo {i}' for i in range(30)]
        (folder / f"new_aan_pairs.{split}.tsv").write_text("\n".join(lines) + "\n")


def test_papers_are_read_as_published_and_each_alone(tmp_path):
    write_papers(tmp_path / "aan")
    task = LongRangeArena(source=str(tmp_path / "aan"), part="retrieval", length=16)
    assert task.parts["validation"].column(0)[3] == 'eval "one" 3'
    assert task.labels("test").tolist() == [0, 1] * 15
    inputs, _ = task.draw(0, "test", 0, 2)
    assert inputs.shape == (2, task.tokens) == (2, 32)
    halves = [[byte + SPECIAL for byte in text] for text in (b'test "one" 0', b"two 0")]
    expected = [[START, *half, END, *[PAD] * (14 - len(half))] for half in halves]
    assert inputs[0].tolist() == expected[0] + expected[1]
    model = task.build(SHAPE, task.default_options())
    changed = inputs.clone()
    changed[:, 16:] = inputs.flip(0)[:, 16:]
    first = [model.bert(x[:, :16], padding=x[:, :16] != PAD) for x in (inputs, changed)]
    assert torch.equal(*first)
    assert not torch.equal(model(inputs), model(changed))
    assert model(inputs).shape == (2, 2)


def test_damaged_papers_are_named(tmp_path):
    write_papers(tmp_path / "aan", label="yes")
    with pytest.raises(SpecError, match=r"new_aan_pairs.train.tsv, line 2: 'yes' is no label; there are 0 and 1"):
        _ = LongRangeArena(source=str(tmp_path / "aan"), part="retrieval").parts
    with pytest.raises(SpecError, match=r"cannot read .*new_aan_pairs.train.tsv"):
        _ = LongRangeArena(source=str(tmp_path), part="retrieval").parts


# ---- images --------------------------------------------------------------------------------------------------------


def test_images_are_their_grey_pixels_in_order():
    task = parse("lra,part=image")
    assert (task.tokens, task.classes, task.samples("test")) == (65, 10, len(images.load_images("").test))
    inputs, labels = task.draw(0, "test", 1, 8)
    part = images.load_images("").test
    assert torch.equal(labels, torch.from_numpy(part.labels[8:16]))
    assert (inputs[:, 0] == START).all()
    assert np.array_equal(inputs[:, 1:] - SPECIAL, images.grey(part.take(np.arange(8, 16))).reshape(8, 64))
    assert task.build(SHAPE, task.default_options())(inputs).shape == (8, 10)
    majority = np.bincount(images.load_images("").train.labels).argmax()
    assert task.trivial_error() == pytest.approx(float((part.labels != majority).mean()))


# ---- data that is made ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["text", "retrieval"])
def test_made_parts_share_no_example(part):
    parts = LongRangeArena(part=part, length=64).parts
    seen = [tuple(examples.column(i) for i in range(examples.pairs.shape[1])) for examples in parts.values()]
    rows = [row for columns in seen for row in zip(*columns, strict=True)]
    assert len(rows) == len(set(rows)) == 4000
    assert max(len(text) for row in rows for text in row) <= 64
    with pytest.raises(SpecError, match="generated texts need a length of at least 64, not 20"):
        LongRangeArena(part=part, length=20)


def test_made_reviews_mostly_say_what_their_label_says():
    agree = []
    for (text,), label in grammar.reviews(500, 512):
        clauses = [clause.split() for clause in text.split(" . ")[:-1]]
        good = [(clause[-1] in grammar.GOOD) != ("not" in clause) for clause in clauses]
        agree.append(np.mean([opinion == label for opinion in good]))
    assert np.mean(agree) == pytest.approx(0.75, abs=0.02)


def test_a_model_learns():
    task = LongRangeArena(length=128, tokenizer="bpe", vocab=400)
    run = Run(
        task=task.spec(),
        shape="w32-h2-L1",
        options=task.default_options(),
        recipe=Recipe(batch=32, learning_rate=0.003),
        steps=120,
        evaluations=1,
    )
    result = train_run(run)
    assert result.status == "done", result.message
    assert result.metrics["error"] < task.trivial_error() - 0.1
