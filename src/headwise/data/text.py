"""A corpus as a memory-mapped stream of tokens, in three parts that never overlap.

    corpus = open_corpus("stories.txt")                         # one token per byte
    corpus = open_corpus("stories.txt", "characters")           # one per character of the training part
    corpus = open_corpus("stories.txt", "bpe", 1024)            # byte pairs, learned from the training part alone

A corpus is what `documents` reads of a source. The stream is cut into blocks, and of every twenty blocks one is for
validation and one for test; a `segment` is a run of neighbouring blocks of one part, and no window and no token
crosses its ends. It is read, hashed and tokenised in pieces, so its size needs no memory, and kept in a cache by
content: written under another name and renamed, verified when opened, rebuilt if it is damaged.

Characters are numbered in order of their code points. A byte that is not UTF-8 is a character of its own. A character
that only held-out text has becomes one unknown token for each of its bytes, so that all bytes are counted; since the
token does not say which byte, whoever scores it adds the 8 bits that do.
"""

import codecs
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from headwise.data import cache_folder, stamp
from headwise.data.documents import PIECE, stream
from headwise.extras import extra
from headwise.spec import SpecError

Tokenizer = Literal["bytes", "characters", "bpe"]
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
BYTES = 256

BLOCK = 65_536  # bytes, less where a corpus has not enough for one round of blocks
BLOCKS_PER_ROUND = 20  # blocks, of which these are held out:
HELD_OUT: dict[int, Part] = {9: "validation", 19: "test"}

LEARNED_FROM = 64 << 20  # bytes a byte-pair vocabulary is learned from at most, spread evenly over the training part
_SPACE = r" \t\r\n\f\v"
_WORD = r"A-Za-z\x80-\xff"  # bytes above 127 are letters of some script
# A word, a number or signs, each with the space before it; of longer space the last belongs to what follows.
_PRETOKEN = rf" ?[{_WORD}]+| ?[0-9]{{1,3}}| ?[^{_SPACE}{_WORD}0-9]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
CODE_POINTS = 0x110000
NO_TOKEN = -1


@dataclass(frozen=True)
class Corpus:
    """Tokens in the order of the corpus, where each part's segments begin and end, and what a token is in bytes."""

    tokens: Any  # (total,), memory-mapped
    segments: dict[Part, Any]  # (segments, 2): first token, and one past the last
    sizes: Any  # (vocab,): bytes of each token
    unknown: int = NO_TOKEN  # stands for any byte of a character that the training part does not have

    @property
    def vocab(self) -> int:
        return len(self.sizes)

    def pieces(self, part: Part) -> Iterator[Any]:
        """The part's tokens, at most `PIECE` at a time and never across segments."""
        for first, last in self.segments[part]:
            for at in range(first, last, PIECE):
                yield self.tokens[at : min(at + PIECE, last)]


# ---- what is read --------------------------------------------------------------------------------------------------


def digest(source: str, field: str = "") -> str:
    """A hash of the corpus, and of nothing else."""
    return _measure(source, field)[0]


def _measure(source: str, field: str) -> tuple[str, int]:
    return _measured(source, field, stamp(source) if source else ())


@lru_cache(maxsize=16)
def _measured(source: str, field: str, state: object) -> tuple[str, int]:
    """Hash and bytes of a corpus in that state."""
    hashed, total = hashlib.sha256(), 0
    for piece in stream(source, field):
        hashed.update(piece)
        total += len(piece)
    if total < 2 * BLOCKS_PER_ROUND:
        what = source or "the standard library's source code"
        raise SpecError(f"{what} has {total} bytes of text, too few for a part to train on and two held out")
    return hashed.hexdigest()[:16], total


# ---- parts ---------------------------------------------------------------------------------------------------------


def cut(total: int) -> dict[Part, Any]:
    """Where the segments of each part begin and end in a corpus of so many bytes; the last block takes the rest."""
    block = min(BLOCK, total // BLOCKS_PER_ROUND)
    count = total // block
    owner = np.zeros(count, dtype=np.int64)
    for place, part in HELD_OUT.items():
        owner[place::BLOCKS_PER_ROUND] = PARTS.index(part)
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    edges = np.append(first * block, total)
    return {part: np.stack([edges[:-1], edges[1:]], 1)[owner[first] == i] for i, part in enumerate(PARTS)}


# ---- tokens --------------------------------------------------------------------------------------------------------


def open_corpus(source: str, tokenizer: Tokenizer = "bytes", vocab: int = BYTES, field: str = "") -> Corpus:
    """The corpus as tokens; read and tokenised the first time, opened from the cache after that."""
    content, total = _measure(source, field)
    return _opened(source, field, content, total, tokenizer, vocab, str(cache_folder()))


@lru_cache(maxsize=8)
def _opened(source: str, field: str, content: str, total: int, tokenizer: Tokenizer, vocab: int, cache: str) -> Corpus:
    raw = Corpus(
        _cached(Path(cache) / f"text-{content}-bytes", lambda place: _write_bytes(source, field, content, place))[0],
        cut(total),
        np.ones(BYTES, dtype=np.int64),
    )
    if tokenizer == "bytes":
        return raw
    if tokenizer == "characters":
        name, write = "characters", partial(_write_characters, raw)
    else:
        name, write = f"bpe-{vocab}", partial(_write_pairs, raw, vocab)
    tokens, facts = _cached(Path(cache) / f"text-{content}-{name}", write)
    segments = {part: np.array(facts["segments"][part]) for part in PARTS}
    return Corpus(tokens, segments, np.array(facts["sizes"]), facts.get("unknown", NO_TOKEN))


def _write_bytes(source: str, field: str, expected: str, place: Path) -> dict[str, Any]:
    hashed = hashlib.sha256()
    with (place / "tokens").open("wb") as file:
        for piece in stream(source, field):
            hashed.update(piece)
            file.write(piece)
    if hashed.hexdigest()[:16] != expected:
        raise SpecError(f"{source} changed while it was read; try again when nothing writes to it")
    return {"type": "uint8"}


def _write_segments(raw: Corpus, place: Path, encoded: Callable[[int, int], Iterator[Any]]) -> dict[Part, Any]:
    """The tokens of every segment, which `encoded` gives for its first byte and one past its last; where each lies."""
    segments: dict[Part, list[tuple[int, int]]] = {part: [] for part in PARTS}
    written = 0
    with (place / "tokens").open("wb") as file:
        for first, last, part in sorted((*ends, at) for at in PARTS for ends in raw.segments[at].tolist()):
            start = written
            for numbers in encoded(first, last):
                numbers.tofile(file)
                written += len(numbers)
            segments[part].append((start, written))
    return segments


def _write_pairs(raw: Corpus, vocab: int, place: Path) -> dict[str, Any]:
    pairs = learn_pairs(_training_sample(raw), vocab)

    def encoded(first: int, last: int) -> Iterator[Any]:
        for at in range(first, last, PIECE):
            yield from encode(pairs, _blocks(raw.tokens[at : min(at + PIECE, last)].tobytes()))

    return {
        "segments": _write_segments(raw, place, encoded),
        "type": "uint16",
        "sizes": token_sizes(pairs, vocab),
    }


# ---- characters ----------------------------------------------------------------------------------------------------


def _write_characters(raw: Corpus, place: Path) -> dict[str, Any]:
    known = np.zeros(CODE_POINTS, dtype=bool)
    for first, last in raw.segments["train"].tolist():
        for points in _code_points(raw.tokens, first, last):
            known[points] = True
    characters = np.flatnonzero(known)
    unknown, numbers = len(characters), np.cumsum(known) - 1
    kind = "uint16" if unknown < 1 << 16 else "uint32"

    def encoded(first: int, last: int) -> Iterator[Any]:
        for points in _code_points(raw.tokens, first, last):
            tokens = np.where(known[points], numbers[points], unknown)
            yield np.repeat(tokens, np.where(known[points], 1, _bytes_of(points))).astype(kind)

    segments = _write_segments(raw, place, encoded)
    return {"type": kind, "segments": segments, "sizes": [*_bytes_of(characters).tolist(), 1], "unknown": unknown}


def _code_points(tokens: Any, first: int, last: int) -> Iterator[Any]:
    """Of the characters that begin in this stretch of bytes, also where the last one's end is beyond it."""
    first, last = (_character_start(tokens, place) for place in (first, last))
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    for at in range(first, last, PIECE):
        end = min(at + PIECE, last)
        text = decoder.decode(tokens[at:end].tobytes(), final=end == last)
        yield np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


def _character_start(tokens: Any, place: int) -> int:
    """The first place from here on that is not within a UTF-8 character, which has at most three bytes more."""
    start = place
    while 0 < start < min(place + 3, len(tokens)) and tokens[start] & 0xC0 == 0x80:
        start += 1
    return start


def _bytes_of(points: Any) -> Any:
    """Bytes of each character; one that is not UTF-8 is an escaped byte."""
    escaped = (points >= 0xDC80) & (points <= 0xDCFF)
    return np.where(escaped, 1, 1 + (points > 0x7F) + (points > 0x7FF) + (points > 0xFFFF))


# ---- byte pairs ----------------------------------------------------------------------------------------------------


def learn_pairs(texts: Iterable[bytes], vocab: int) -> Any:
    """A byte-pair vocabulary. Each byte is a character of Latin-1, so any bytes will do."""
    with extra("data", "byte pairs"):
        from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    pairs = Tokenizer(models.BPE())
    pairs.pre_tokenizer = pre_tokenizers.Split(Regex(_PRETOKEN), behavior="isolated")
    alphabet = [chr(byte) for byte in range(BYTES)]
    trainer = trainers.BpeTrainer(vocab_size=vocab, initial_alphabet=alphabet, show_progress=False)
    pairs.train_from_iterator((text.decode("latin-1") for text in texts), trainer)
    return pairs


def encode(pairs: Any, texts: list[bytes]) -> list[Any]:
    """Token numbers of each text."""
    encodings = pairs.encode_batch_fast([text.decode("latin-1") for text in texts])
    return [np.array(one.ids, dtype=np.uint16) for one in encodings]


def _training_sample(raw: Corpus) -> Iterator[bytes]:
    """In blocks: the library keeps 256 texts at a time."""
    size = int((raw.segments["train"] @ [-1, 1]).sum())
    every = max(1, -(-size // LEARNED_FROM))
    for i, piece in enumerate(raw.pieces("train")):
        if i % every == 0:
            yield from _blocks(piece.tobytes())


def _blocks(text: bytes) -> list[bytes]:
    return [text[at : at + BLOCK] for at in range(0, len(text), BLOCK)]


def token_sizes(pairs: Any, vocab: int) -> list[int]:
    """Bytes of each token; 1 for numbers that a short corpus left without a token."""
    sizes = [1] * vocab
    for token, number in pairs.get_vocab().items():
        sizes[number] = len(token)
    return sizes


# ---- the cache -----------------------------------------------------------------------------------------------------


def _cached(place: Path, write: Callable[[Path], dict[str, Any]]) -> tuple[Any, dict[str, Any]]:
    """Tokens and facts of a cache entry, which `write` makes where it is missing or damaged.

    Several processes may do so at once: each writes under its own name, and one rename wins.
    """
    for _ in range(3):
        entry = _open_entry(place)
        if entry:
            return entry
        _make_entry(place, write)
    raise SpecError(
        f"the cache entry {place} is damaged each time it is written; check the disk, or set HEADWISE_CACHE"
    )


def _open_entry(place: Path) -> tuple[Any, dict[str, Any]] | None:
    try:
        facts = json.loads((place / "facts.json").read_text())
        tokens = np.memmap(place / "tokens", dtype=facts["type"], mode="r")
        return (tokens, facts) if _hash(place / "tokens") == facts["hash"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _make_entry(place: Path, write: Callable[[Path], dict[str, Any]]) -> None:
    mine = place.with_name(f"{place.name}.{uuid4().hex}")
    try:
        mine.mkdir(parents=True)
        facts = write(mine)
        facts["hash"] = _hash(mine / "tokens")
        (mine / "facts.json").write_text(json.dumps(facts))
        with suppress(OSError):  # what is damaged, or not there
            aside = place.with_name(f"{place.name}.{uuid4().hex}")
            place.rename(aside)
            shutil.rmtree(aside)
        with suppress(OSError):  # another process was first: its entry is as good
            mine.rename(place)
    except OSError as error:
        raise SpecError(
            f"cannot write to the cache {place.parent}: {error.strerror}; set HEADWISE_CACHE to a folder with room"
        ) from None
    finally:
        shutil.rmtree(mine, ignore_errors=True)


def _hash(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
