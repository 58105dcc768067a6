"""The documents of a source of text, as bytes in pieces, whatever they are kept in.

    stream("stories.txt")                 # a file, or every file of a folder in order of their names
    stream("stories.txt.xz")              # what xz or gzip packed is read as what it was
    stream("stories.jsonl", "body")       # a document per line or row: .jsonl, .parquet, or a data set by name
    stream("")                            # the source code of Python's standard library

Files are read as they are, in pieces, so their size needs no memory; what is not text is refused, with what to do.
"""

import gzip
import json
import lzma
import sysconfig
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from headwise.data import files, hub, text_column
from headwise.extras import extra
from headwise.spec import SpecError

PIECE = 1 << 20  # bytes read at a time
ROWS = 4096  # rows of a table read at a time
_NOT_LIBRARY = {"site-packages", "test", "tests", "idle_test"}
_JSON_LINES, _PARQUET = (".jsonl", ".ndjson"), ".parquet"
_SIGNS = {  # first bytes of what people try, and what to do with it
    b"\x28\xb5\x2f\xfd": "is compressed; unpack it first: unzstd",
    b"BZh9": "is compressed; unpack it first: bunzip2 -k",
    b"PK\x03\x04": "is a zip archive; unpack it first: unzip",
    b"PAR1": "is a Parquet file; end its name with .parquet:",
    b"\xff\xfe": "is UTF-16; write it as UTF-8 first: iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "is UTF-16; write it as UTF-8 first: iconv -f UTF-16 -t UTF-8",
}
_PACKED: dict[bytes, Callable[[Path], Any]] = {b"\xfd7zXZ\x00": lzma.open, b"\x1f\x8b": gzip.open}
_CONTROL = bytes(set(range(32)) - set(b"\a\b\t\n\v\f\r\x1b"))  # in text of no 8-bit encoding
_CONTROL_SHARE = 0.01  # of such bytes that stray ones may make; in compressed data it is 0.09


def stream(source: str, field: str = "") -> Iterator[bytes]:
    """The whole corpus in pieces; each document ends with a line feed."""
    for document in _documents(source, field):
        piece = b""
        for piece in document:
            yield piece
        if piece and not piece.endswith(b"\n"):
            yield b"\n"


def _documents(source: str, field: str) -> Iterator[Iterable[bytes]]:
    if not source:
        yield from map(_pieces, _library_files())
    elif hub.is_dataset(source):
        yield from _encoded(hub.texts(source, "train", field))
    elif not Path(source).exists():
        raise hub.no_source(source)
    else:
        inside = files(Path(source))
        if field and not any(_has_fields(file, field) for file in inside):
            raise SpecError(
                f"field={field} names a column of .jsonl or .parquet files, and {source} is none; leave it out"
            )
        for file in inside:
            yield from _encoded(_texts(file, field)) if _has_fields(file, field) else [_plain(file)]


def _encoded(texts: Iterable[str]) -> Iterator[list[bytes]]:
    return ([text.encode("utf-8", "surrogatepass")] for text in texts if text)


def _library_files() -> list[Path]:
    library = Path(sysconfig.get_path("stdlib"))
    inside = [file for file in library.rglob("*.py") if not _NOT_LIBRARY & set(file.relative_to(library).parts)]
    return sorted(inside, key=lambda file: file.relative_to(library).as_posix())


# ---- plain text ----------------------------------------------------------------------------------------------------


def _pieces(file: Path) -> Iterator[bytes]:
    try:
        with _unpacked(file) as opened:
            while piece := opened.read(PIECE):
                yield piece
    except (lzma.LZMAError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SpecError(f"{file} is damaged, and cannot be unpacked: {error}") from None
    except OSError as error:
        raise SpecError(f"cannot read {file}: {error.strerror}") from None


def _unpacked(file: Path) -> IO[bytes]:
    """A file as it is, or as it was before xz or gzip packed it: by its first bytes, whatever its name."""
    with file.open("rb") as opened:
        start = opened.read(max(map(len, _PACKED)))
    for sign, unpack in _PACKED.items():
        if start.startswith(sign):
            return unpack(file)
    return file.open("rb")


def _plain(file: Path) -> Iterator[bytes]:
    """The pieces of a file that is text, as far as its first piece tells."""
    for number, piece in enumerate(_pieces(file)):
        if number == 0:
            _check_text(file, piece)
        yield piece


def _check_text(file: Path, piece: bytes) -> None:
    control = len(piece) - len(piece.translate(None, _CONTROL))
    if b"\0" not in piece and control <= _CONTROL_SHARE * len(piece):
        return
    for sign, what in _SIGNS.items():
        if piece.startswith(sign):
            raise SpecError(f"{file} {what} {file.name}")
    raise SpecError(f"{file} is binary, not text; give text, .jsonl or .parquet files, or take it out of the folder")


# ---- documents in fields -------------------------------------------------------------------------------------------


def _has_fields(file: Path, field: str) -> bool:
    """A .json file may be anything, such as settings beside source code: it has fields where one is asked for."""
    return file.suffix.lower() in (*_JSON_LINES, _PARQUET, *([".json"] if field else []))


def _texts(file: Path, field: str) -> Iterator[str]:
    return _parquet(file, field) if file.suffix.lower() == _PARQUET else _json_lines(file, field)


def _json_lines(file: Path, field: str) -> Iterator[str]:
    """The text of each line's object. An empty one or a null is no document; a missing one is a mistake."""
    column = ""
    for number, line in enumerate(_lines(file), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SpecError(
                f"{file}, line {number} is not JSON ({error}); a .jsonl file has an object per line"
            ) from None
        if not isinstance(row, dict):
            raise SpecError(f'{file}, line {number} is no object, as in {{"text": "..."}}')
        column = column or text_column({name: isinstance(value, str) for name, value in row.items()}, str(file), field)
        if column not in row or not isinstance(row[column] or "", str):
            raise SpecError(f"{file}, line {number} has no text in '{column}'; it has {', '.join(row) or 'nothing'}")
        yield row[column] or ""


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with file.open("rb") as opened:
            yield from opened
    except OSError as error:
        raise SpecError(f"cannot read {file}: {error.strerror}") from None


def _parquet(file: Path, field: str) -> Iterator[str]:
    with extra("data", "Parquet files"):
        import polars as pl

    try:
        table = pl.scan_parquet(file, glob=False)
        column = text_column(
            {name: kind == pl.String for name, kind in table.collect_schema().items()}, str(file), field
        )
        texts = table.select(column)
        for first in range(0, int(texts.select(pl.len()).collect().item()), ROWS):
            yield from (text or "" for text in texts.slice(first, ROWS).collect()[column])
    except (OSError, pl.exceptions.PolarsError) as error:
        what = str(error).strip().partition("\n")[0]
        raise SpecError(f"cannot read {file} as Parquet: {what}") from None
