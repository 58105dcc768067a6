"""IMDB's reviews as published (aclImdb: train/pos/0_9.txt, ...), from their folder or from the archive as it is.

An archive is read, never unpacked: only members named like a review are looked at, and none may be huge.
"""

import hashlib
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from headwise.data import files, hub, read_bytes
from headwise.data.tables import Examples
from headwise.spec import SpecError

_REVIEW = re.compile(r"(?:^|/)(train|val|test)/(pos|neg)/[^/]+\.txt$")
_LARGEST = 1 << 20  # bytes of a review


def read_reviews(source: str) -> dict[str, Examples]:
    """The splits that are there, in an order that has nothing to do with the labels."""
    splits: dict[str, list[tuple[bytes, tuple[str, ...], float]]] = {}
    for name, content in _members(Path(source)):
        match = _REVIEW.search(name)
        if match:
            split, opinion = match.groups()
            order = hashlib.sha256(match.group().encode()).digest()
            splits.setdefault(split, []).append((order, (_decoded(content, name, source),), float(opinion == "pos")))
    if "test" not in splits or len(splits) < 2:
        raise SpecError(f"{source} has no reviews as IMDB publishes them: train/pos/*.txt, train/neg/*.txt, test/...")
    return {
        split: Examples.of((texts, int(label)) for _, texts, label in sorted(some)) for split, some in splits.items()
    }


def _decoded(content: bytes, name: str, source: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise SpecError(f"{name} in {source} is not UTF-8 text") from None


def _members(place: Path) -> Iterator[tuple[str, bytes]]:
    if place.is_dir():
        names = [file for file in files(place) if _REVIEW.search(file.as_posix())]
        yield from ((file.as_posix(), read_bytes(file)) for file in names)
    elif place.is_file():
        yield from _archived(place)
    else:
        raise hub.no_source(str(place))


def _archived(place: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(place) as archive:
            for member in archive:
                if member.isfile() and _REVIEW.search(member.name):
                    if member.size > _LARGEST:
                        raise SpecError(f"{member.name} in {place} has {member.size} bytes, too many for a review")
                    content = archive.extractfile(member)
                    yield member.name, content.read() if content else b""
    except SpecError:
        raise
    except Exception as error:  # tarfile, gzip, bz2 and lzma have an error class each, and more for truncated files
        raise SpecError(f"{place} is no readable tar archive: {error}") from None
