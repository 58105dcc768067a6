"""ListOps: values by rewriting text, distributions against a recursive generator, published files and bad ones."""

import gzip
import random
import re
import statistics
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from headwise.data import listops as published
from headwise.data.listops import SPLITS, SYMBOLS
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import parse
from headwise.tasks.listops import ListOps
from headwise.training.loop import train_run
from headwise.training.run import Recipe, Run

LONG_RANGE_ARENA = {"shortest": 501, "longest": 1999, "depth": 10, "arguments": 10}
INNERMOST = re.compile(r"\[(MIN|MAX|MED|SM) ((?:\d ?)+)\]")
RULES = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(statistics.median(values)),
    "SM": lambda values: sum(values) % 10,
}


def rewritten(text):
    """The value of an expression: replace what has no brackets inside by its value until one number is left."""
    while "[" in text:
        text = INNERMOST.sub(lambda found: str(RULES[found[1]]([int(value) for value in found[2].split()])), text)
    return int(text)


def texts(tokens):
    return [" ".join(SYMBOLS[token] for token in row if token) for row in tokens.tolist()]


def drawn(task, stream="train", batch=256, index=0):
    tokens, labels = task.draw(0, stream, index, batch)
    return texts(tokens), labels.tolist()


def binarised(text):
    """An expression as published: round brackets around each argument with all that stands before it."""
    stack = [[]]
    for symbol in text.split():
        if symbol.startswith("["):
            stack.append([symbol])
            continue
        if symbol != "]":
            stack[-1].append(symbol)
            continue
        head, *rest = stack.pop()
        for part in [*rest, "]"]:
            head = f"( {head} {part} )"
        stack[-1].append(head)
    return stack[0][0]


# ---- generated -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {"shortest": 40, "longest": 128, "depth": 6, "arguments": 8}, LONG_RANGE_ARENA]
)
def test_labels_are_the_values_by_rewriting(options):
    found, labels = drawn(ListOps(**options), batch=64)
    assert [rewritten(text) for text in found] == labels


@given(
    st.integers(1, 6),
    st.integers(2, 7),
    st.integers(1, 20),
    st.integers(1, 60),
    st.sampled_from(SPLITS),
    st.integers(0, 9),
)
@settings(max_examples=25, deadline=None)
def test_any_expression_is_within_its_limits(depth, arguments, shortest, room, stream, index):
    largest = sum(2 * arguments**level for level in range(depth - 1)) + arguments ** (depth - 1)
    task = ListOps(depth=depth, arguments=arguments, shortest=min(shortest, largest), longest=shortest + room)
    if largest < 5:
        return  # so few expressions that a held-out stream may have none
    found, labels = drawn(task, stream, 16, index)
    for text, label in zip(found, labels, strict=True):
        assert task.shortest <= len(text.split()) <= task.longest
        deepest, counts = shape_of(text)
        assert deepest <= depth
        assert all(2 <= count <= arguments for count in counts)
        assert rewritten(text) == label


def shape_of(text):
    """Levels of an expression, and how many arguments its operators have."""
    open_, counts, deepest = [0], [], 1
    for symbol in text.split():
        if symbol == "]":
            counts.append(open_.pop())
            continue
        open_[-1] += 1
        deepest = max(deepest, len(open_))
        if symbol.startswith("["):
            open_.append(0)
    return deepest, counts


def grown(rng, task, depth=1):
    """The published description, said plainly: recursive, one expression at a time."""
    if depth == task.depth or rng.random() > 0.25:
        return [str(rng.randrange(10))]
    inside = [symbol for _ in range(rng.randint(2, task.arguments)) for symbol in grown(rng, task, depth + 1)]
    return [rng.choice(["[MIN", "[MAX", "[MED", "[SM"]), *inside, "]"]


def plainly_grown(task, count):
    rng, found = random.Random(0), []
    while len(found) < count:
        one = grown(rng, task)
        if task.shortest <= len(one) <= task.longest:
            found.append(" ".join(one))
    return found


@pytest.mark.parametrize("options", [{}, {"shortest": 20, "longest": 100, "depth": 5, "arguments": 7}])
def test_expressions_are_distributed_as_described(options):
    """Against the recursive generator: lengths, levels, symbols and values."""
    task = ListOps(**options)
    plain, (ours, _) = plainly_grown(task, 2000), drawn(task, batch=2000)
    for measure in (lambda text: len(text.split()), lambda text: shape_of(text)[0], rewritten):
        both = [Counter(measure(text) for text in side) for side in (plain, ours)]
        assert same_distribution(both), measure
    symbols = [Counter(symbol for text in side for symbol in text.split()[:1]) for side in (plain, ours)]
    assert same_distribution(symbols)


def same_distribution(both):
    """A chi-square test with the rare outcomes taken together."""
    rare = [key for key in both[0] | both[1] if both[0][key] + both[1][key] < 30]
    table = [
        [side[key] for key in both[0] | both[1] if key not in rare] + [sum(side[key] for key in rare)] for side in both
    ]
    table = np.array(table)[:, np.sum(table, axis=0) > 0]
    return stats.chi2_contingency(table).pvalue > 1e-4


def test_long_range_arena_sizes():
    """Lengths between 500 and 2000, no more than ten arguments and levels; extremes are the commonest values."""
    found, labels = drawn(ListOps(**LONG_RANGE_ARENA), batch=400)
    lengths = [len(text.split()) for text in found]
    assert min(lengths) > 500
    assert max(lengths) < 2000
    assert max(lengths) > 1500
    shapes = [shape_of(text) for text in found]
    assert max(deepest for deepest, _ in shapes) == 10
    assert {count for _, counts in shapes for count in counts} == set(range(2, 11))
    assert {value for value, _ in Counter(labels).most_common(2)} == {0, 9}
    assert set(labels) == set(range(10))


def test_held_out_expressions_are_never_trained_on():
    """Where there are only a few hundred expressions each stream keeps to its own."""
    task = ListOps(shortest=4, longest=4, depth=2, arguments=2)
    found = {stream: set(drawn(task, stream, 4000)[0]) for stream in SPLITS}
    assert [len(found[stream]) / 400 for stream in SPLITS] == pytest.approx([0.8, 0.1, 0.1], abs=0.05)
    assert sum(len(part) for part in found.values()) == len(set.union(*found.values())) == 400


def test_the_trivial_error_is_measured():
    task = ListOps()
    _, labels = drawn(task, "test", 8192, index=1)
    commonest = Counter(labels).most_common(1)[0][1] / len(labels)
    assert task.trivial_error() == pytest.approx(1 - commonest, abs=0.02)


def test_counting_symbols_helps_a_little():
    found = ListOps().baselines()
    assert 0.2 < found["bag of symbols"] < found["commonest value"] - 0.2


def test_padding_changes_nothing():
    short = ListOps(longest=24, depth=3)
    long = short.replace(longest=40)
    tokens, _ = short.draw(0, "train", 0, 8)
    model = long.build(ModelShape.parse("w16-h2-L2"), long.default_options()).eval()
    padded = torch.nn.functional.pad(tokens, (0, 16))
    torch.testing.assert_close(model(tokens), model(padded))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shortest": 50, "longest": 40}, "at least 50 and at most 40"),
        ({"shortest": 30, "longest": 40, "depth": 2, "arguments": 5}, "at most 7 symbols, not 30; raise depth"),
        ({"arguments": 1}, "arguments is 1"),
    ],
)
def test_impossible_expressions_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        ListOps(**options)


def test_expressions_too_rare_to_find_are_refused():
    with pytest.raises(SpecError, match="none has 5000 to 5001 symbols"):
        ListOps(shortest=5000, longest=5001, depth=7, arguments=5).draw(0, "train", 0, 2)


def test_a_model_of_another_kind_is_refused():
    with pytest.raises(SpecError, match="family 'bert' with 10 classes and a vocab of 16"):
        ListOps().build(ModelShape.parse("w16-h2"), ListOps().default_options().replace(classes=2))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_usual_shape_learns_more_than_classical_methods():
    task = ListOps()
    recipe = Recipe(learning_rate=3e-3, batch=64, warm_up=0.1, clip=1.0)
    run = Run(task=task.spec(), shape=task.usual_shape, options=task.default_options(), recipe=recipe, steps=1000)
    assert train_run(run).metrics["error"] < min(task.baselines().values()) - 0.05


# ---- published files -----------------------------------------------------------------------------------------------


@pytest.fixture
def lines():
    return [f"{rewritten(text)}\t{binarised(text)}" for text in plainly_grown(ListOps(), 300)]


def as_long_range_arena(lines):
    return ["Source\tTarget", *("\t".join(line.split("\t")[::-1]) for line in lines)]


def write(path, lines, end="\n"):
    text = end.join([*lines, ""]).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


def read_back(task):
    """Every sample of every stream, as (stream, text, label)."""
    found = []
    for stream in SPLITS:
        total = task.samples(stream)
        for index in range(-(-total // 7)):
            tokens, labels = task.draw(0, stream, index, 7)
            if stream == "train":  # the last batch of the first time through begins the second
                tokens, labels = tokens[: total - 7 * index], labels[: total - 7 * index]
            found += [(stream, *pair) for pair in zip(texts(tokens), labels.tolist(), strict=True)]
    return found


def test_binarised_as_published():
    assert binarised("[SM 6 5 9 0 ]") == "( ( ( ( ( [SM 6 ) 5 ) 9 ) 0 ) ] )"
    assert binarised("[MIN 5 [SM 5 4 ] 0 ]") == "( ( ( ( [MIN 5 ) ( ( ( [SM 5 ) 4 ) ] ) ) 0 ) ] )"


@pytest.mark.parametrize("name", ["data.tsv", "data.tsv.gz", "arena.tsv"])
def test_a_file_gives_each_expression_once_in_one_split(tmp_path, lines, name):
    source = write(tmp_path / name, as_long_range_arena(lines) if name == "arena.tsv" else lines)
    found = read_back(ListOps(source=source))
    wanted = Counter((rewritten(text), text) for text in (unwrapped(line) for line in lines))
    assert Counter((label, text) for _, text, label in found) == wanted
    sides = {}
    for stream, text, _ in found:
        assert sides.setdefault(text, stream) == stream


def unwrapped(line):
    return " ".join(re.sub("[()]", " ", line.split("\t")[1]).split())


def test_equal_expressions_stay_together(tmp_path, lines):
    found = read_back(ListOps(source=write(tmp_path / "twice.tsv", lines + lines)))
    assert Counter(Counter(text for _, text, _ in found).values()).keys() <= {2, 4, 6}
    assert len({(stream, text) for stream, text, _ in found}) == len({text for _, text, _ in found})


def test_a_folder_gives_the_published_splits(tmp_path, lines):
    parts = {"basic_train.tsv": lines[:200], "basic_val.tsv.gz": lines[200:250], "basic_test.tsv": lines[250:]}
    for name, part in parts.items():
        write(tmp_path / name, as_long_range_arena(part), end="\r\n")
    task = ListOps(source=str(tmp_path))
    assert [task.samples(stream) for stream in SPLITS] == [200, 50, 50]
    tokens, labels = task.draw(3, "test", 1, 32)
    assert texts(tokens) == [unwrapped(line) for line in lines[282:]]
    assert labels.tolist() == [int(line[0]) for line in lines[282:]]


def test_expressions_out_of_range_are_left_out(tmp_path, lines):
    task = ListOps(source=write(tmp_path / "data.tsv", lines), shortest=10, longest=20)
    inside = sum(10 <= len(unwrapped(line).split()) <= 20 for line in lines)
    assert sum(task.samples(stream) for stream in SPLITS) == inside
    with pytest.raises(SpecError, match="no train expression of 900 to 1000 symbols"):
        task.replace(shortest=900, longest=1000).samples("train")


def test_a_lone_number_is_an_expression():
    assert published.value_of([SYMBOLS.index("7")]) == 7


def test_the_hash_is_of_the_text_alone(tmp_path, lines):
    plain, packed = (write(tmp_path / name, lines) for name in ("a.tsv", "b.tsv.gz"))
    assert ListOps(source=plain).digest() == ListOps(source=packed).digest()
    task = parse(f"listops:{plain},longest=40")
    assert task.content == task.digest()
    assert task.longest == 40
    write(tmp_path / "a.tsv", lines[:-1])
    with pytest.raises(SpecError, match="not the data this run was planned with"):
        task.draw(0, "train", 0, 4)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("3\t( ( [MAX 3 ) 2 ) ] ) (", "line 3: its round brackets are not balanced"),
        ("3\t( ( ( [MAX 3 ) 2 ) ]", "line 3: its round brackets are not balanced"),
        ("3\t[MAX 3 2", "line 3: a '\\[' is not closed"),
        ("3\t[MAX 3 2 ] ]", "line 3: a '\\]' closes nothing"),
        ("3\t[MAX ]", "line 3: an operator has no argument"),
        ("3\t3 2", "line 3: there are 2 expressions"),
        ("3\t", "line 3: there are 0 expressions"),
        ("3\t[MAX 3 x ]", "line 3: 'x' is not a symbol of ListOps"),
        ("3\t[FIRST 3 2 ]", "line 3: '\\[FIRST' is not a symbol of ListOps"),
        ("3\t[MAX 3 12 ]", "line 3: '12' is not a symbol"),
        ("4\t[MAX 3 2 ]", "line 3: its label is '4', but the value of the expression is 3"),
        ("x\t[MAX 3 2 ]", "line 3: its label is 'x'"),
        ("[MAX 3 2 ]", "line 3: it has 1 columns"),
        ("3\t[MAX 3 \xff ]", "line 3: .* is not a symbol"),
        ("", "line 3: it has 1 columns"),
    ],
)
def test_bad_lines_are_named(tmp_path, lines, line, message):
    source = write(tmp_path / "bad.tsv", [*lines[:2], line, *lines[2:]])
    with pytest.raises(SpecError, match=f"bad.tsv, {message}"):
        ListOps(source=source).draw(0, "train", 0, 4)


def test_data_that_cannot_be_read(tmp_path, lines):
    with pytest.raises(SpecError, match="no ListOps data at nowhere"):
        ListOps(source="nowhere").samples("train")
    with pytest.raises(SpecError, match=r"has no basic_train\.tsv"):
        ListOps(source=str(tmp_path)).samples("train")
    with pytest.raises(SpecError, match=r"empty\.tsv has no expressions"):
        ListOps(source=write(tmp_path / "empty.tsv", [])).samples("train")
    with pytest.raises(SpecError, match="too few expressions: of 1, none falls into the"):
        ListOps(source=write(tmp_path / "one.tsv", lines[:1])).samples("train")
    whole = tmp_path / "whole.tsv.gz"
    write(whole, lines)
    cut = tmp_path / "cut.tsv.gz"
    cut.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(SpecError, match=r"cut\.tsv\.gz is damaged or cut short"):
        ListOps(source=str(cut)).samples("train")
