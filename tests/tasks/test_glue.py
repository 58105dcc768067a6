"""GLUE's files as published, its official metrics against other libraries, and models and methods on them."""

import random

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwise.data import grammar
from headwise.data.tables import END, PAD, SPECIAL, START, Examples, encoder, part_of, table_rows
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import parse
from headwise.tasks.glue import GLUE_TASKS, METRICS, Glue
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run

HEADERS = {
    "cola": None,
    "sst-2": "sentence\tlabel",
    "mrpc": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String",
    "qqp": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate",
    "sts-b": "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore",
    "mnli": "index\tpairID\tsentence1\tsentence2\tlabel1\tgold_label",
    "mnli-mm": "index\tpairID\tsentence1\tsentence2\tlabel1\tgold_label",
    "qnli": "index\tquestion\tsentence\tlabel",
    "rte": "index\tsentence1\tsentence2\tlabel",
    "wnli": "index\tsentence1\tsentence2\tlabel",
}
WORDS = ("a", '"b', 'c"', "don't", "café", "ünïcode", "1.5", ",", "it", "is", "so", '"')


def row_of(task, number, numbers):
    """A row as published, with its texts and label."""
    published = GLUE_TASKS[task]
    columns = list(published.names) or HEADERS[task].lstrip("\ufeff").split("\t")
    texts = tuple(" ".join(numbers.choices(WORDS, k=5)) + f" {number}" for _ in published.texts)
    label = numbers.randrange(len(published.labels)) if published.labels else round(numbers.uniform(0, 5), 3)
    fields = dict.fromkeys(columns, "x")
    fields |= dict(zip(published.texts, texts, strict=True))
    fields[published.label] = published.labels[label] if published.labels else str(label)
    return "\t".join(fields[name] for name in columns), (texts, label)


def write(folder, task, train=60, dev=30):
    folder.mkdir(exist_ok=True)
    expected = {}
    for file, count in (("train", train), (GLUE_TASKS[task].dev, dev)):
        numbers = random.Random(file)
        made = [row_of(task, f"{file}{number}", numbers) for number in range(count)]
        lines = ([HEADERS[task]] if HEADERS[task] else []) + [line for line, _ in made]
        (folder / f"{file}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        expected[file] = [row for _, row in made]
    return expected


def as_rows(examples):
    return [
        (tuple(examples.texts[i] for i in pair), y) for pair, y in zip(examples.pairs, examples.labels, strict=True)
    ]


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(GLUE_TASKS))
def test_every_published_file_is_read_as_it_is(tmp_path, name):
    expected = write(tmp_path / GLUE_TASKS[name].folder, name)
    for place in (tmp_path, tmp_path / GLUE_TASKS[name].folder):
        parts = Glue(source=str(place), task=name).parts
        assert as_rows(parts["test"]) == expected[GLUE_TASKS[name].dev]
        train, validation = as_rows(parts["train"]), as_rows(parts["validation"])
        assert len(validation) == 6
        assert sorted(train + validation) == sorted(expected["train"])


@pytest.mark.parametrize("name", list(GLUE_TASKS))
def test_a_model_takes_every_task(tmp_path, name):
    write(tmp_path / "task", name)
    task = Glue(source=str(tmp_path / "task"), task=name, length=32, tokenizer="bpe", vocab=300)
    inputs, labels = task.draw(0, "train", 0, 4)
    assert inputs.shape == (4, 32)
    model = task.build(ModelShape.parse("w8-h1"), task.default_options())
    assert task.loss(model(inputs), labels).isfinite()
    assert "error" in task.metrics(task.scores(model(inputs).detach(), labels))


def test_a_field_with_a_line_feed_is_one_field(tmp_path):
    """As in the published QQP."""
    file = tmp_path / "some.tsv"
    file.write_text("id\tone\ttwo\tlabel\n1\ta\tb\t0\n2\tbroken\nhere\tc\t1\n3\td\te\t0\n\n")
    found = list(table_rows(file))
    assert [line for line, _ in found] == [2, 3, 5]
    assert found[1][1] == {"id": "2", "one": "broken\nhere", "two": "c", "label": "1"}


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("rte", lambda t: t[: len(t) // 2].rpartition("\t")[0], "columns instead of 4; the file is cut short"),
        ("rte", lambda t: t.replace("\nx\t", "\nx\textra\t", 1), "line 2: 5 columns instead of 4"),
        ("rte", lambda t: t.replace("\nx\t", "\nx\nx\t", 1), "line 2: 1 columns instead of 4"),
        ("rte", lambda t: t.replace("entailment\n", "maybe\n", 1), "maybe' is no label; there are entailment, not_ent"),
        (
            "sts-b",
            lambda t: t[:-2].rpartition("\t")[0] + "\t5.5\n",
            "line 61: '5.5' is no label; it should be a number",
        ),
        ("cola", lambda t: t.replace("\t1\t", "\t2\t", 1), "'2' is no label"),
        ("sst-2", lambda t: t.replace("sentence", "text", 1), "has no column 'sentence'; SST-2 has one"),
        ("sst-2", lambda t: t.replace("\t1\n", "\t\n", 1), "'' is no label"),
        ("sst-2", lambda t: "", "has only 0 examples"),
    ],
)
def test_damaged_files_are_named_with_the_line(tmp_path, task, change, message):
    write(tmp_path / "task", task)
    file = tmp_path / "task" / "train.tsv"
    file.write_text(change(file.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(SpecError, match=message) as error:
        _ = Glue(source=str(tmp_path / "task"), task=task).parts
    assert "train.tsv" in str(error.value)


def test_what_is_not_there_or_no_text_is_said(tmp_path):
    with pytest.raises(SpecError, match=r"cannot read .*train.tsv: No such file"):
        _ = Glue(source=str(tmp_path)).parts
    with pytest.raises(SpecError, match="there is no folder"):
        _ = Glue(source=str(tmp_path / "none.tsv")).parts
    with pytest.raises(SpecError, match="texts of rte are not on this machine: give source="):
        Glue(task="rte")
    (tmp_path / "train.tsv").write_bytes(b"sentence\tlabel\n\xff\xfe\t1\n")
    with pytest.raises(SpecError, match=r"train.tsv is not UTF-8"):
        _ = Glue(source=str(tmp_path)).parts


def test_other_data_than_planned_is_refused(tmp_path):
    write(tmp_path / "task", "sst-2")
    task = parse(f"glue:{tmp_path / 'task'}")
    write(tmp_path / "task", "sst-2", train=61)
    with pytest.raises(SpecError, match="not the data this run was planned with"):
        task.replace().draw(0, "train", 0, 1)


def test_a_data_set_gives_what_the_files_do(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    expected = write(tmp_path / "files", "mnli")
    for split, file in (("train", "train"), ("validation_matched", "dev_matched")):
        texts, labels = zip(*expected[file], strict=True)
        first, second = zip(*texts, strict=True)
        table = datasets.Dataset.from_dict({"premise": first, "hypothesis": second, "label": labels})
        table.to_parquet(tmp_path / "set" / "data" / f"{split}-00000-of-00001.parquet")
    ours, theirs = (Glue(source=str(tmp_path / place), task="mnli") for place in ("files", "set"))
    assert ours.digest() == theirs.digest()
    with pytest.raises(SpecError, match="has no column 'sentence'"):
        _ = Glue(source=str(tmp_path / "set")).parts


# ---- tokens --------------------------------------------------------------------------------------------------------


def padded(texts, length, **options):
    examples = Examples.of([(texts, 0)])
    return encoder(examples)(examples).padded(np.array([0]), length, **options)[0].tolist()


def numbers_of(text):
    return [byte + SPECIAL for byte in text.encode()]


def test_texts_are_joined_and_padded():
    assert padded(("hé",), 7) == [START, *numbers_of("hé"), END, PAD, PAD]
    assert padded(("ab", "c"), 8) == [START, *numbers_of("ab"), END, *numbers_of("c"), END, PAD, PAD]
    assert padded(("ab", "c"), 12, apart=True) == [
        *[START, *numbers_of("ab"), END, PAD, PAD],
        *[START, *numbers_of("c"), END, PAD, PAD, PAD],
    ]
    assert padded(("", ""), 4) == [START, END, END, PAD]


@given(st.integers(0, 30), st.integers(0, 30), st.integers(8, 40))
def test_what_does_not_fit_is_cut_off_the_longer_text(first, second, length):
    """The lengths that remain when one token at a time is taken from the longer, or at equal length the second."""
    found = padded(("a" * first, "b" * second), length)
    while first + second > length - 3:
        first, second = (first - 1, second) if first > second else (first, second - 1)
    expected = [START, *numbers_of("a" * first), END, *numbers_of("b" * second), END]
    assert found == expected + [PAD] * (length - len(expected))


def test_a_reader_knows_padding_and_the_second_text(tmp_path):
    write(tmp_path / "task", "rte")
    task = Glue(source=str(tmp_path / "task"), task="rte", length=96, tokenizer="bytes")
    torch.manual_seed(0)
    model = task.build(ModelShape.parse("w16-h2"), task.default_options())
    inputs, _ = task.draw(0, "train", 0, 4)
    shorter = inputs[:, : int((inputs != PAD).sum(1).max())]
    assert shorter.shape[1] < 96
    torch.testing.assert_close(model(shorter), model(inputs))
    before = model(inputs)
    with torch.no_grad():
        model.bert.segments.weight[1, 0] += 1
    assert not torch.allclose(model(inputs), before)


def test_byte_pairs_are_learned_from_the_training_texts_alone():
    numbers = encoder(Examples.of([(("aaaa aaaa " * 50,), 0)]), 300)
    known, other = (numbers(Examples.of([((text,), 0)])).numbers for text in ("aaaa aaaa", "bbbb bbbb"))
    assert len(known) < 4
    assert len(other) == 9


def test_options_that_do_not_fit_are_refused():
    task = Glue()
    with pytest.raises(SpecError, match="needs a bert with head 'classes' and classes=2"):
        task.build(ModelShape.parse("w8-h1"), task.default_options().replace(classes=3))
    with pytest.raises(SpecError, match="needs context=128, not 64"):
        task.build(ModelShape.parse("w8-h1"), task.default_options().replace(context=64))


# ---- metrics -------------------------------------------------------------------------------------------------------

THEIRS = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1": lambda y, p: sklearn.metrics.f1_score(y, p, zero_division=0),
    "matthews": sklearn.metrics.matthews_corrcoef,
    "pearson": lambda y, p: scipy.stats.pearsonr(y, p).statistic,
    "spearman": lambda y, p: scipy.stats.spearmanr(y, p).statistic,
}


@pytest.mark.filterwarnings("ignore:A single label was found")
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=40))
def test_metrics_of_classes_agree_with_scikit_learn(answers):
    labels, predictions = np.array(answers).T
    for name in ("accuracy", "f1", "matthews"):
        assert METRICS[name](labels, predictions) == pytest.approx(THEIRS[name](labels, predictions), abs=1e-12)


@given(st.integers(0, 2**32), st.integers(3, 200), st.booleans())
def test_correlations_agree_with_scipy(seed, size, ties):
    numbers = np.random.default_rng(seed)
    labels = numbers.normal(size=size)
    predictions = labels + numbers.normal(size=size)
    if ties:
        labels, predictions = np.round(labels), np.round(predictions)
    for name in ("pearson", "spearman"):
        if np.ptp(labels) and np.ptp(predictions):
            assert METRICS[name](labels, predictions) == pytest.approx(THEIRS[name](labels, predictions), abs=1e-10)


def test_a_constant_answer_has_no_correlation():
    constant = np.full(5, 0.1)
    assert all(METRICS[name](np.arange(5), constant) == 0 for name in ("matthews", "pearson", "spearman"))


@pytest.mark.parametrize("name", list(GLUE_TASKS))
def test_the_trivial_error_is_that_of_a_constant_answer(tmp_path, name):
    write(tmp_path / "task", name)
    task = Glue(source=str(tmp_path / "task"), task=name)
    labels = torch.from_numpy(task.labels("test"))
    errors = []
    for answer in range(task.classes):
        output = torch.zeros(len(labels), task.classes)
        output[:, answer] = 1
        errors.append(task.metrics(task.scores(output, labels))["error"])
    assert task.trivial_error() in errors
    if GLUE_TASKS[name].metrics in (("matthews",), ("pearson", "spearman")):
        assert task.trivial_error() == 1


def test_glue_averages_two_metrics():
    """MRPC's majority answer, as published: F1 81.2 and accuracy 68.4 at 279 of 408."""
    task = Glue(source="MRPC.tsv", task="mrpc")
    labels = np.array([1] * 279 + [0] * 129)
    found = task.judge(labels, np.ones(408))
    assert found["f1"] == pytest.approx(0.812, abs=5e-4)
    assert found["accuracy"] == pytest.approx(0.684, abs=5e-4)
    assert found["error"] == pytest.approx(1 - (0.8122 + 0.6838) / 2, abs=1e-4)


# ---- data that is made, and what learns it -------------------------------------------------------------------------


def test_made_sentences_are_all_different_and_their_labels_follow_the_rule():
    made = grammar.opinions(2000)
    assert len({texts for texts, _ in made}) == 2000
    for (text,), label in made:
        words = text.split(" but ")[-1].split(" and ")[0].split()
        assert label == ((words[-1] in grammar.GOOD) != ("not" in words))
    assert 0.45 < np.mean([label for _, label in made]) < 0.55


def test_parts_share_no_text():
    texts = [set(examples.texts) for examples in Glue().parts.values()]
    assert sum(map(len, texts)) == len(set.union(*texts)) == 6000


def test_validation_is_a_tenth_or_two_thousand():
    for count, expected in ((100, 10), (67_349, 1980)):
        train, validation = part_of(Examples.of(((str(i),), i % 2) for i in range(count)))
        assert (len(train), len(validation)) == (count - expected, expected)


def test_a_model_learns():
    task = Glue(length=32)
    run = Run(
        task=task.spec(),
        shape="w32-h2-L1",
        options=task.default_options(),
        recipe=Recipe(batch=32, learning_rate=0.003),
        steps=150,
        evaluations=1,
    )
    result = train_run(run)
    assert result.status == "done", result.message
    assert result.metrics["error"] < 0.2, "words alone, without their order, do not get there"
    assert result.metrics["accuracy"] == pytest.approx(1 - result.metrics["error"])


def test_words_tell_what_one_word_decides(tmp_path):
    """Where a single word is the label, regression on words makes no mistake; for a score it correlates."""
    folder = tmp_path / "task"
    folder.mkdir()
    numbers = random.Random(0)
    for name, count in (("train", 200), ("dev", 50)):
        lines = ["sentence\tlabel"]
        for _ in range(count):
            label = numbers.randrange(2)
            words = [*numbers.choices(WORDS, k=6), ("bad", "good")[label]]
            lines.append(f"{' '.join(numbers.sample(words, 7))}\t{label}")
        (folder / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    assert Glue(source=str(folder)).baselines() == {"logistic regression on words": 0.0}


def test_words_tell_how_much_two_texts_share(tmp_path):
    folder = tmp_path / "task"
    folder.mkdir()
    numbers = random.Random(0)
    for name, count in (("train", 300), ("dev", 60)):
        lines = ["sentence1\tsentence2\tscore"]
        for _ in range(count):
            first, other = (numbers.sample([f"w{i}" for i in range(k, 200, 2)], 5) for k in (0, 1))
            shared = numbers.randrange(6)
            second = first[:shared] + other[shared:]
            lines.append(f"{' '.join(first)}\t{' '.join(second)}\t{shared}")
        (folder / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    assert Glue(source=str(folder), task="sts-b").baselines()["ridge regression on words"] < 0.1
