"""Sources of text: files as they are, documents in fields, and what is refused."""

import bz2
import gzip
import io
import json
import lzma
import random
import zipfile

import numpy as np
import polars as pl
import pytest
from PIL import Image

from headwise.data import documents
from headwise.data.documents import stream
from headwise.spec import SpecError

TEXTS = ["a first text", "a second\none", "", None, "größer als 3 € und 中文", "x" * 5000]
EXPECTED = b"".join(f"{text}\n".encode() for text in TEXTS if text)


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def whole(source, field=""):
    return b"".join(stream(str(source), field))


def in_fields(folder, kind, columns):
    """The same table as a file of that kind."""
    file = folder / f"mine.{kind}"
    if kind == "parquet":
        pl.DataFrame(columns, strict=False).write_parquet(file, row_group_size=2)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        file.write_bytes(lines(rows))
    return file


KINDS = pytest.mark.parametrize("kind", ["jsonl", "ndjson", "parquet"])


@KINDS
def test_each_row_is_a_document(tmp_path, kind, monkeypatch):
    """Whatever they are kept in, the stream is the same; read in several parts."""
    monkeypatch.setattr(documents, "ROWS", 4)
    numbers = list(range(len(TEXTS)))
    assert whole(in_fields(tmp_path, kind, {"id": numbers, "text": TEXTS})) == EXPECTED
    assert whole(in_fields(tmp_path, kind, {"id": numbers, "body": TEXTS})) == EXPECTED, "the only text there is"
    both = {"text": ["no"] * len(TEXTS), "body": TEXTS}
    assert whole(in_fields(tmp_path, kind, both), "body") == EXPECTED
    assert whole(in_fields(tmp_path, kind, both)) == b"no\n" * len(TEXTS)


@KINDS
def test_a_column_that_is_not_there_is_answered_with_those_that_are(tmp_path, kind):
    file = in_fields(tmp_path, kind, {"id": [1, 2], "title": ["a", "b"], "body": ["c", "d"]})
    with pytest.raises(SpecError, match=r"'text' is not there; columns of text: title, body; .* field=NAME"):
        whole(file)
    with pytest.raises(SpecError, match="'story' is not there; columns of text: title, body"):
        whole(file, "story")
    with pytest.raises(SpecError, match="'id' is not of text; columns of text: title, body"):
        whole(file, "id")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{cut short", "line 2 is not JSON"),
        (b"[1, 2]", "line 2 is no object"),
        (b'{"body": "other"}', "line 2 has no text in 'text'; it has body"),
        (b'{"text": 3}', "line 2 has no text in 'text'"),
        (b'{"text": "\xff\xfe"}', "line 2 is not JSON"),
    ],
)
def test_a_broken_line_is_named(tmp_path, line, message):
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines([{"text": "good"}]) + line + b"\n")
    with pytest.raises(SpecError, match=message):
        whole(file)


def test_a_parquet_file_that_is_none_is_said(tmp_path):
    file = tmp_path / "mine.parquet"
    file.write_bytes(b"no such thing")
    with pytest.raises(SpecError, match=r"cannot read .*mine.parquet as Parquet"):
        whole(file)


def test_a_folder_may_hold_both(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(lines([{"text": "one"}, {"text": "two"}]))
    (tmp_path / "b.txt").write_bytes(b"as it is\r\n")
    (tmp_path / "c.json").write_bytes(b'{"text": "a settings file is text"}\n')
    assert whole(tmp_path / "c.json", "text") == b"a settings file is text\n"
    assert whole(tmp_path) == b'one\ntwo\nas it is\r\n{"text": "a settings file is text"}\n'


def test_a_field_of_plain_text_is_refused(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text("plain")
    with pytest.raises(SpecError, match=r"field=body names a column of \.jsonl or \.parquet files"):
        whole(file, "body")


# ---- what is text --------------------------------------------------------------------------------------------------

PROSE = "The quick brown fox jumps over the lazy dog.\n" * 40


def zipped():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("my.txt", PROSE)
    return file.getvalue()


def picture():
    file = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "png")
    return file.getvalue()


def table():
    file = io.BytesIO()
    pl.DataFrame({"text": [PROSE]}).write_parquet(file)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (bz2.compress(PROSE.encode()), "bunzip2 -k mine.dat"),
        (zipped(), "is a zip archive; unpack it first: unzip mine.dat"),
        (table(), r"is a Parquet file; end its name with \.parquet"),
        (PROSE.encode("utf-16"), "is UTF-16; write it as UTF-8 first"),
        (picture(), "is binary, not text"),
        (np.arange(1000, dtype=np.float32).tobytes(), "is binary, not text"),
        (bytes(byte for byte in random.Random(0).randbytes(3000) if byte), "is binary, not text"),
    ],
)
def test_what_is_not_text_is_refused(tmp_path, content, message):
    file = tmp_path / "mine.dat"
    file.write_bytes(content)
    with pytest.raises(SpecError, match=message):
        whole(file)


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_packed_text_is_read_as_what_it_was(tmp_path, pack):
    """Whatever its name; a file that was cut short is a sentence."""
    plain, packed = tmp_path / "mine.txt", tmp_path / "mine.dat"
    plain.write_text(PROSE * 50)
    packed.write_bytes(pack((PROSE * 50).encode()))
    assert whole(packed) == whole(plain)
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(SpecError, match="is damaged, and cannot be unpacked"):
        whole(packed)


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (PROSE, "utf-8-sig"),
        ("Größe, Maß, façade, señor\r\n" * 40, "latin-1"),
        ("“Smart quotes” – and € …\n" * 40, "cp1252"),
        ("Съешь же ещё этих мягких булок\n" * 40, "koi8-r"),
        ("いろはにほへと ちりぬるを\n" * 40, "shift_jis"),
        ("天地玄黄 宇宙洪荒\n" * 40, "gb18030"),
        ("\x1b[31mred\x1b[0m page\f and a bell\a\n" * 40, "ascii"),
        ("BZh9 PK PAR1", "ascii"),
    ],
)
def test_text_in_any_encoding_of_bytes_passes(tmp_path, text, encoding):
    file = tmp_path / "mine.txt"
    file.write_bytes(text.encode(encoding))
    assert whole(file).rstrip(b"\n") == file.read_bytes().rstrip(b"\n")
