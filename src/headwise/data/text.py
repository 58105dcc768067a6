"""A corpus as a memory-mapped stream of tokens, in three parts that never overlap.

    corpus = open_corpus("stories.txt")                         # one token per byte
    corpus = open_corpus("stories.txt", "bpe", 1024)            # byte pairs, learned from the training part alone

A corpus is a file, the files of a folder in order of their names, a data set by name, or, with no source, the source
code of Python's standard library. Each document ends with a line feed. The stream is cut into blocks, and of every
twenty blocks one is for validation and one for test; a `segment` is a run of neighbouring blocks of one part, and no
window and no token crosses its ends. It is read, hashed and tokenised in pieces, so its size needs no memory, and
kept in a cache by content: written under another name and renamed, verified when opened, rebuilt if it is damaged.
"""

import hashlib
import json
import shutil
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from headwise.data import cache_folder, files, hub, stamp
from headwise.spec import SpecError

Tokenizer = Literal["bytes", "bpe"]
Part = Literal["train", "validation", "test"]
PARTS: tuple[Part, ...] = ("train", "validation", "test")
BYTES = 256

BLOCK = 65_536  # bytes, less where a corpus has not enough for one round of blocks
BLOCKS_PER_ROUND = 20  # blocks, of which these are held out:
HELD_OUT: dict[int, Part] = {9: "validation", 19: "test"}

PIECE = 1 << 20  # bytes read or encoded at a time
LEARNED_FROM = 64 << 20  # bytes a byte-pair vocabulary is learned from at most, spread evenly over the training part
_SPACE = r" \t\r\n\f\v"
_WORD = r"A-Za-z\x80-\xff"  # bytes above 127 are letters of some script
# A word, a number or signs, each with the space before it; of longer space the last belongs to what follows.
_PRETOKEN = rf" ?[{_WORD}]+| ?[0-9]{{1,3}}| ?[^{_SPACE}{_WORD}0-9]+|[{_SPACE}]+(?![^{_SPACE}])|[{_SPACE}]+"
_NOT_LIBRARY = {"site-packages", "test", "tests", "idle_test"}


@dataclass(frozen=True)
class Corpus:
    """Tokens in the order of the corpus, where each part's segments begin and end, and what a token is in bytes."""

    tokens: Any  # (total,), memory-mapped
    segments: dict[Part, Any]  # (segments, 2): first token, and one past the last
    sizes: Any  # (vocab,): bytes of each token

    @property
    def vocab(self) -> int:
        return len(self.sizes)

    def pieces(self, part: Part) -> Iterator[Any]:
        """The part's tokens, at most `PIECE` at a time and never across segments."""
        for first, last in self.segments[part]:
            for at in range(first, last, PIECE):
                yield self.tokens[at : min(at + PIECE, last)]


# ---- what is read --------------------------------------------------------------------------------------------------


def documents(source: str) -> Iterator[Iterator[bytes]]:
    """The documents of a source, each in pieces."""
    place = Path(source)
    if source and hub.is_dataset(source):
        rows = hub.load_split(source, "train")
        column = hub.text_column(rows, source)
        yield from (iter([text.encode("utf-8", "surrogatepass")]) for text in _column(rows, column))
    elif source and not place.exists():
        raise hub.no_source(source)
    else:
        yield from map(_read, files(place) if source else _library_files())


def _column(rows: Any, name: str) -> Iterator[str]:
    for some in rows.select_columns([name]).iter(batch_size=256):
        yield from (text for text in some[name] if text)


def _library_files() -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    files = [file for file in library.rglob("*.py") if not _NOT_LIBRARY & set(file.relative_to(library).parts)]
    return sorted(files, key=lambda file: file.relative_to(library).as_posix())


def _read(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as stream:
            while piece := stream.read(PIECE):
                yield piece
    except OSError as error:
        raise SpecError(f"cannot read {file}: {error.strerror}") from None


def stream(source: str) -> Iterator[bytes]:
    """The whole corpus in pieces; each document ends with a line feed."""
    for document in documents(source):
        piece = b""
        for piece in document:
            yield piece
        if piece and not piece.endswith(b"\n"):
            yield b"\n"


def digest(source: str) -> str:
    """A hash of the corpus, and of nothing else."""
    return _measure(source)[0]


def _measure(source: str) -> tuple[str, int]:
    return _measured(source, stamp(source) if source else ())


@lru_cache(maxsize=16)
def _measured(source: str, state: object) -> tuple[str, int]:
    """Hash and bytes of a corpus in that state."""
    hashed, total = hashlib.sha256(), 0
    for piece in stream(source):
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


def open_corpus(source: str, tokenizer: Tokenizer = "bytes", vocab: int = BYTES) -> Corpus:
    """The corpus as tokens; read and tokenised the first time, opened from the cache after that."""
    content, total = _measure(source)
    return _opened(source, content, total, tokenizer, vocab, str(cache_folder()))


@lru_cache(maxsize=8)
def _opened(source: str, content: str, total: int, tokenizer: Tokenizer, vocab: int, cache: str) -> Corpus:
    raw = Corpus(
        _cached(Path(cache) / f"text-{content}-bytes", lambda place: _write_bytes(source, content, place))[0],
        cut(total),
        np.ones(BYTES, dtype=np.int64),
    )
    if tokenizer == "bytes":
        return raw
    tokens, facts = _cached(Path(cache) / f"text-{content}-bpe-{vocab}", lambda place: _write_pairs(raw, vocab, place))
    segments = {part: np.array(facts["segments"][part]) for part in PARTS}
    return Corpus(tokens, segments, np.array(facts["sizes"]))


def _write_bytes(source: str, expected: str, place: Path) -> dict[str, Any]:
    hashed = hashlib.sha256()
    with (place / "tokens").open("wb") as file:
        for piece in stream(source):
            hashed.update(piece)
            file.write(piece)
    if hashed.hexdigest()[:16] != expected:
        raise SpecError(f"{source} changed while it was read; try again when nothing writes to it")
    return {"type": "uint8"}


def _write_pairs(raw: Corpus, vocab: int, place: Path) -> dict[str, Any]:
    pairs = learn_pairs(_training_sample(raw), vocab)
    segments: dict[Part, list[tuple[int, int]]] = {part: [] for part in PARTS}
    order = sorted((first, last, part) for part in PARTS for first, last in raw.segments[part].tolist())
    written = 0
    with (place / "tokens").open("wb") as file:
        for first, last, part in order:
            start = written
            for at in range(first, last, PIECE):
                piece = raw.tokens[at : min(at + PIECE, last)].tobytes()
                for numbers in encode(pairs, _blocks(piece)):
                    numbers.tofile(file)
                    written += len(numbers)
            segments[part].append((start, written))
    return {"type": "uint16", "segments": segments, "sizes": token_sizes(pairs, vocab)}


# ---- byte pairs ----------------------------------------------------------------------------------------------------


def learn_pairs(texts: Iterable[bytes], vocab: int) -> Any:
    """A byte-pair vocabulary. Each byte is a character of Latin-1, so any bytes will do."""
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
