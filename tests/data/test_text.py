"""A corpus in three parts that never overlap, its cache, byte pairs, n-grams and data sets by name."""

import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwise.data import hub, text
from headwise.data.ngrams import NONE, KneserNey, histories
from headwise.spec import SpecError

WORDS = ("the", "cat", "sat", "on", "a", "mat", "and", "saw", "one", "very", "old", "dog", "near", "house")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))


def story(words, seed=0):
    return " ".join(random.Random(seed).choices(WORDS, k=words))


@pytest.fixture
def file(tmp_path):
    place = tmp_path / "story.txt"
    place.write_text(story(6000))
    return place


def whole(corpus, part):
    return b"".join(piece.astype(np.uint8).tobytes() for piece in corpus.pieces(part))


# ---- parts ---------------------------------------------------------------------------------------------------------


@given(st.integers(40, 10_000_000))
def test_parts_tile_the_corpus_in_the_right_shares(total):
    segments = text.cut(total)
    owned = sorted((first, last, part) for part, rows in segments.items() for first, last in rows.tolist())
    assert owned[0][0] == 0
    assert owned[-1][1] == total
    for (_, end, part), (start, _, other) in pairwise(owned):
        assert end == start
        assert part != other
    sizes = {part: sum(last - first for first, last in rows.tolist()) for part, rows in segments.items()}
    block = min(text.BLOCK, total // 20)
    assert abs(sizes["validation"] - sizes["test"]) < 2 * block
    assert 18 * (total // (20 * block)) * block <= sizes["train"] <= 0.9 * total + 19 * block


def test_a_large_corpus_is_split_nine_to_a_half_to_a_half():
    sizes = {part: int((rows @ [-1, 1]).sum()) for part, rows in text.cut(200 * text.BLOCK).items()}
    assert sizes == {"train": 180 * text.BLOCK, "validation": 10 * text.BLOCK, "test": 10 * text.BLOCK}


def test_nothing_of_a_file_is_lost_or_shared(file):
    corpus = text.open_corpus(str(file))
    assert bytes(corpus.tokens) == file.read_bytes() + b"\n"
    assert sum(len(whole(corpus, part)) for part in text.PARTS) == len(corpus.tokens)


# ---- sources -------------------------------------------------------------------------------------------------------


def test_the_standard_library_is_the_default():
    corpus = text.open_corpus("")
    assert len(corpus.tokens) > 5_000_000
    assert b"import " in bytes(corpus.tokens[:100_000])
    assert text.digest("") == text.digest("")


def test_a_folder_is_its_files_in_order_of_their_names(tmp_path):
    folder = tmp_path / "texts"
    (folder / "b").mkdir(parents=True)
    (folder / "b" / "2.txt").write_bytes(b"second\n" * 10)
    (folder / "a.txt").write_bytes(b"first " * 10)
    (folder / ".hidden").write_bytes(b"no")
    (folder / "empty.txt").write_bytes(b"")
    assert bytes(text.open_corpus(str(folder)).tokens) == b"first " * 10 + b"\n" + b"second\n" * 10


def test_the_digest_is_of_the_content_alone(tmp_path, file):
    other = tmp_path / "elsewhere.md"
    other.write_bytes(file.read_bytes())
    assert text.digest(str(other)) == text.digest(str(file))
    other.write_bytes(file.read_bytes() + b"!")
    assert text.digest(str(other)) != text.digest(str(file))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes of text"),
        (b"too short", "has 10 bytes of text, too few"),
        (None, "there is no file or folder"),
    ],
)
def test_what_cannot_be_a_corpus_is_said_in_a_sentence(tmp_path, content, message):
    place = tmp_path / "some.txt"
    if content is not None:
        place.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        text.open_corpus(str(place))


# ---- the cache -----------------------------------------------------------------------------------------------------


def entries(tmp_path):
    return sorted(path.name for path in (tmp_path / "cache").iterdir())


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_a_damaged_cache_is_rebuilt(tmp_path, file, tokenizer):
    before = np.array(text.open_corpus(str(file), tokenizer, 300).tokens)
    for place in (tmp_path / "cache").rglob("tokens"):
        place.write_bytes(place.read_bytes()[:-1] + b"\xff")
    text._opened.cache_clear()
    assert np.array_equal(text.open_corpus(str(file), tokenizer, 300).tokens, before)
    for place in (tmp_path / "cache").rglob("facts.json"):
        place.write_text("{")
    text._opened.cache_clear()
    assert np.array_equal(text.open_corpus(str(file), tokenizer, 300).tokens, before)
    assert all("." not in name for name in entries(tmp_path)), "nothing unfinished is left behind"


def test_a_cache_is_used_again_and_made_once(tmp_path, file):
    text.open_corpus(str(file), "bpe", 300)
    times = {place: place.stat().st_mtime_ns for place in (tmp_path / "cache").rglob("*")}
    text._opened.cache_clear()
    text.open_corpus(str(file), "bpe", 300)
    assert {place: place.stat().st_mtime_ns for place in (tmp_path / "cache").rglob("*")} == times


def test_a_cache_that_cannot_be_written_is_said(tmp_path, file, monkeypatch):
    (tmp_path / "blocked").write_text("a file where a folder should be")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "blocked"))
    with pytest.raises(SpecError, match=r"cannot write to the cache .* set HEADWISE_CACHE"):
        text.open_corpus(str(file))


def _open_and_sum(place):
    return int(text.open_corpus(place, "bpe", 300).tokens.astype(np.int64).sum())


def test_several_processes_may_make_it_at_once(tmp_path, file):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        sums = pool.map(_open_and_sum, [str(file)] * 4, chunksize=1)
    assert len(set(sums)) == 1
    assert len(entries(tmp_path)) == 2
    assert all("." not in name for name in entries(tmp_path))


LIMITED = """
import resource, sys
from headwise.data import text
if sys.argv[2] == "bpe":
    text.learn_pairs([b"warm up " * 100], 300)
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + int(sys.argv[3]) * 2**20,) * 2)
corpus = text.open_corpus(sys.argv[1], sys.argv[2], 300)
print(len(corpus.tokens))
"""


def open_with_little_memory(file, tokenizer, megabytes):
    command = [sys.executable, "-c", LIMITED, str(file), tokenizer, str(megabytes)]
    environment = os.environ | {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of a process is read from /proc")
def test_a_large_file_needs_little_memory(tmp_path):
    """Sixty megabytes within twenty; the same limit stops a program that reads the file whole."""
    place = tmp_path / "large.txt"
    place.write_bytes(story(200_000).encode() * 70)
    found = open_with_little_memory(place, "bytes", 20)
    assert found.stdout.strip() == str(place.stat().st_size + 1), found.stderr
    whole = LIMITED.replace("corpus = ", "data = open(sys.argv[1], 'rb').read(); corpus = ")
    stopped = subprocess.run([sys.executable, "-c", whole, str(place), "bytes", "20"], capture_output=True, text=True)
    assert "MemoryError" in stopped.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory of a process is read from /proc")
def test_byte_pairs_of_a_large_file_need_little_memory(tmp_path):
    place = tmp_path / "large.txt"
    place.write_bytes(story(200_000).encode() * 20)
    found = open_with_little_memory(place, "bpe", 40)
    assert int(found.stdout) > 1_000_000, found.stderr


# ---- byte pairs ----------------------------------------------------------------------------------------------------


@given(st.binary(max_size=300))
def test_byte_pairs_give_any_bytes_back(data):
    pairs = _pairs()
    (numbers,) = text.encode(pairs, [data])
    back = "".join(pairs.id_to_token(int(number)) for number in numbers).encode("latin-1")
    assert back == data
    assert sum(text.token_sizes(pairs, 400)[number] for number in numbers) == len(data)


def _pairs(made=[]):  # noqa: B006 (made once for all examples)
    if not made:
        made.append(text.learn_pairs([story(3000).encode()], 400))
    return made[0]


def test_byte_pairs_come_from_the_training_part_alone(tmp_path):
    """The held-out parts speak another language, of which no pair is learned."""
    place = tmp_path / "two.txt"
    segments = text.cut(60_000)
    data = bytearray(b"q" * 60_000)
    for first, last in segments["train"]:
        data[first:last] = (story(6000).encode() * 2)[: last - first]
    place.write_bytes(bytes(data[:-1]))
    corpus = text.open_corpus(str(place), "bpe", 300)
    held_out = np.concatenate([*corpus.pieces("validation"), *corpus.pieces("test")])
    assert (corpus.sizes[held_out] == 1).all()
    assert corpus.sizes[np.concatenate(list(corpus.pieces("train")))].mean() > 2


def test_byte_pairs_keep_the_parts_and_their_bytes(file):
    plain, pairs = text.open_corpus(str(file)), text.open_corpus(str(file), "bpe", 300)
    assert len(pairs.tokens) < len(plain.tokens) / 2
    for part in text.PARTS:
        sizes = [int(pairs.sizes[pairs.tokens[a:b]].sum()) for a, b in pairs.segments[part]]
        assert sizes == (plain.segments[part] @ [-1, 1]).tolist()


def test_text_that_is_not_utf8_has_pairs_as_well(tmp_path):
    place = tmp_path / "latin.txt"
    numbers = random.Random(0)
    place.write_bytes(bytes(numbers.choice(range(32, 256)) for _ in range(5000)))
    corpus = text.open_corpus(str(place), "bpe", 300)
    assert corpus.sizes[corpus.tokens].sum() == 5001


# ---- characters ----------------------------------------------------------------------------------------------------


def spoken(corpus, part, alphabet):
    """A part's tokens as text; `?` where a character is unknown."""
    letters = np.array([*alphabet, "?"])
    return ["".join(letters[corpus.tokens[first:last]]) for first, last in corpus.segments[part]]


@pytest.mark.parametrize("alphabet", ["ab\n", "aé中😀\n"])
def test_a_character_is_a_token(tmp_path, alphabet, monkeypatch):
    """Decoded by Python from the whole text; whatever piece or part a character's bytes begin in has all of it."""
    monkeypatch.setattr(text, "PIECE", 50)
    place = tmp_path / "some.txt"
    whole_text = "".join(random.Random(0).choices(alphabet, k=3000)) + "\n"
    place.write_bytes(whole_text.encode())
    corpus = text.open_corpus(str(place), "characters")
    alphabet = sorted(alphabet)
    assert corpus.vocab == len(alphabet) + 1
    assert corpus.unknown == len(alphabet)
    assert corpus.sizes.tolist() == [*(len(letter.encode()) for letter in alphabet), 1]
    assert "".join(np.array(alphabet)[corpus.tokens]) == whole_text
    plain = text.open_corpus(str(place))
    for part in text.PARTS:
        for said, (first, last) in zip(spoken(corpus, part, alphabet), plain.segments[part], strict=True):
            raw = bytes(plain.tokens[max(0, first - 3) : last + 3])
            assert said.encode() in raw
            assert abs(len(said.encode()) - (last - first)) <= 3


def test_characters_that_training_does_not_have_are_unknown_bytes(tmp_path):
    place = tmp_path / "some.txt"
    data = bytearray("ab\n" * 20_000, "ascii")
    (first, _), *_ = text.cut(60_000)["test"]
    data[first + 10 : first + 16] = "é€a".encode()
    place.write_bytes(bytes(data[:-1]))
    corpus = text.open_corpus(str(place), "characters")
    assert "".join(spoken(corpus, "test", "\nab")).count("?") == 5
    assert corpus.sizes[corpus.tokens].sum() == 60_000, "every byte is counted"
    assert not any("?" in said for said in spoken(corpus, "train", "\nab"))


def test_bytes_that_are_not_utf8_are_characters_of_their_own(tmp_path):
    place = tmp_path / "latin.txt"
    place.write_bytes(("é à ü¿\n" * 500).encode("latin-1"))
    corpus = text.open_corpus(str(place), "characters")
    assert corpus.vocab == len(set("é à ü¿\n")) + 1
    assert (corpus.sizes == 1).all()
    assert len(corpus.tokens) == 3500


# ---- n-grams -------------------------------------------------------------------------------------------------------


def kneser_ney_by_hand(segments, vocab, order, history, token):
    """The formulas as they are written in the papers, one probability at a time."""
    counts = [Counter() for _ in range(order + 1)]
    for segment in segments:
        for i in range(len(segment) - order + 1):
            counts[order][tuple(segment[i : i + order])] += 1
    for n in range(order - 1, 0, -1):
        before = defaultdict(set)
        for gram in counts[n + 1]:
            before[gram[1:]].add(gram[0])
        counts[n] = Counter({gram: len(which) for gram, which in before.items()})

    def discounts(n):
        seen = Counter(counts[n].values())
        if not all(seen[i] for i in (1, 2, 3, 4)):
            return {1: 0.5, 2: 1.0, 3: 1.5}
        share = seen[1] / (seen[1] + 2 * seen[2])
        found = {i: i - (i + 1) * share * seen[i + 1] / seen[i] for i in (1, 2, 3)}
        return found if min(found.values()) > 0 else {1: 0.5, 2: 1.0, 3: 1.5}

    def probability(n, history):
        if n == 0:
            return 1 / vocab
        lower = probability(n - 1, history[1:])
        following = {gram: c for gram, c in counts[n].items() if gram[:-1] == history}
        if not following:
            return lower
        total, cost = sum(following.values()), discounts(n)
        own = following.get((*history, token), 0)
        kept = own - cost[min(own, 3)] if own else 0
        return kept / total + sum(cost[min(c, 3)] for c in following.values()) / total * lower

    known = tuple(history[i] for i in range(len(history)) if all(h != NONE for h in history[i:]))
    return probability(len(known) + 1, known)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("size", [90, 700])
def test_kneser_ney_is_what_the_formulas_say(order, size):
    """With too little to estimate discounts from, and with enough for the higher orders."""
    numbers = np.random.default_rng(0)
    segments = [np.minimum(numbers.geometric(0.3, length) - 1, 4) for length in (size, 3, 90)]
    model = KneserNey(segments, 5, order)
    asked = numbers.integers(-1, 5, (60, order - 1))
    tokens = numbers.integers(0, 5, 60)
    found = model.probabilities(asked, tokens)
    lists = [segment.tolist() for segment in segments]
    for history, token, value in zip(asked.tolist(), tokens.tolist(), found, strict=True):
        assert value == pytest.approx(kneser_ney_by_hand(lists, 5, order, history, token), rel=1e-12)


@given(st.integers(0, 2**32), st.integers(2, 12), st.integers(1, 4))
def test_probabilities_sum_to_one(seed, vocab, order):
    numbers = np.random.default_rng(seed)
    model = KneserNey([numbers.integers(0, vocab, 200) // 2], vocab, order)
    history = np.tile(numbers.integers(-1, vocab, order - 1), (vocab, 1))
    found = model.probabilities(history, np.arange(vocab))
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert (found > 0).all()


def test_a_learned_process_is_predicted_at_its_entropy():
    """A Markov chain whose entropy is known: enough of it brings the bigram there, and no model under it."""
    numbers = np.random.default_rng(0)
    chain = [0]
    for draw in numbers.random(40_000):
        chain.append((chain[-1] + (draw < 0.75)) % 3)
    tokens = np.array(chain)
    model = KneserNey([tokens[:30_000]], 3, 2)
    places = np.arange(30_001, 40_000)
    past = histories(tokens, places, np.full(len(places), 30_000), 2)
    bits = -np.log2(model.probabilities(past, tokens[places])).mean()
    assert bits == pytest.approx(-0.75 * math.log2(0.75) - 0.25 * math.log2(0.25), abs=0.02)


def test_histories_end_where_a_segment_begins():
    assert histories(np.arange(10), [4, 5, 8], [4, 4, 4], 4).tolist() == [[NONE] * 3, [NONE, NONE, 4], [5, 6, 7]]


# ---- data sets by name ---------------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """A folder in the form of the Hub's own: parquet files named by their split."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    folder = tmp_path / "stories"
    rows = [story(20, seed) for seed in range(100)] + [""]
    datasets.Dataset.from_dict({"text": rows, "id": range(101)}).to_parquet(folder / "train-00000-of-00001.parquet")
    return folder, rows


def test_a_data_set_is_a_corpus(dataset):
    folder, rows = dataset
    assert hub.is_dataset(str(folder))
    expected = "".join(row + "\n" for row in rows if row).encode()
    assert bytes(text.open_corpus(str(folder)).tokens) == expected


def test_a_data_sets_column_may_be_named(dataset):
    with pytest.raises(SpecError, match=r"'id' is not of text; columns of text: text; .* field=NAME"):
        text.open_corpus(str(dataset[0]), field="id")
    assert text.digest(str(dataset[0]), "text") == text.digest(str(dataset[0]))


def test_the_same_texts_are_the_same_corpus_whatever_they_are_kept_in(dataset, tmp_path):
    folder, rows = dataset
    (tmp_path / "plain.txt").write_text("".join(f"{row}\n" for row in rows if row))
    (tmp_path / "lines.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    (file,) = folder.iterdir()
    sources = [folder, file, tmp_path / "plain.txt", tmp_path / "lines.jsonl"]
    assert len({text.digest(str(source)) for source in sources}) == 1


def test_a_split_or_data_set_that_is_not_there_is_said(dataset):
    with pytest.raises(SpecError, match="cannot load split 'test' of the data set in folder"):
        hub.load_split(str(dataset[0]), "test")
    with pytest.raises(SpecError, match=r"there is no file or folder 'nobody/nothing', .* give the path of a local"):
        text.open_corpus("nobody/nothing")


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(SpecError, match=r"pip install 'headwise\[hf\]'"):
        text.open_corpus("roneneldan/TinyStories")


@pytest.mark.parametrize("name", ["owner/name", "name", "owner/name:part", "Salesforce/wikitext:wikitext-2-raw-v1"])
def test_names_of_data_sets(name):
    assert hub.is_dataset(name)


@pytest.mark.parametrize("name", ["", "./name", "/a/b", "~/data", "owner/name.txt", "a/b/c", "data.tar", "C:\\data"])
def test_what_is_no_name_of_a_data_set(name):
    assert not hub.is_dataset(name)
