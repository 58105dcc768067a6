"""Readers of data: text, tables, images, data sets by name. They know nothing of tasks, and need no torch.

What is read is named by a `source`: a file, a folder, or the name of a Hugging Face data set. Whatever cannot be read
is a `SpecError` that names the file and the line. What takes long to prepare is kept in `cache_folder()`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from headwise.spec import SpecError, check_file


def cache_folder() -> Path:
    """Where prepared data is kept: the user's cache directory, or what HEADWISE_CACHE names."""
    if os.environ.get("HEADWISE_CACHE"):
        return Path(os.environ["HEADWISE_CACHE"])
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("headwise"))


def stamp(source: str) -> tuple[tuple[str, int, int], ...]:
    """Names, sizes and times of the files of a source: while it stays the same, what was read need not be read again.

    A data set name has no files here, and so the same stamp always.
    """
    return tuple((str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files(Path(source).resolve()))


def files(place: Path) -> list[Path]:
    """The file, or every file in the folder in order of its name; hidden ones are left out."""
    if place.is_file():
        return [place]
    inside = (file for file in place.rglob("*") if file.is_file())
    seen = (file for file in inside if not any(part.startswith(".") for part in file.relative_to(place).parts))
    return sorted(seen, key=lambda file: file.relative_to(place).as_posix())


def read_bytes(file: Path) -> bytes:
    """A whole file; for small ones."""
    try:
        check_file(file, "data")
        return file.read_bytes()
    except OSError as error:
        raise SpecError(f"cannot read {file}: {error.strerror}") from None


def text_column(columns: Mapping[str, bool], what: str, field: str | None = None) -> str:
    """The column that holds the text: `field` where one is asked for, else 'text', else the only one of strings.

    `columns` says of each whether it is of strings; `what` has them. None: who asks cannot choose.
    """
    strings = [name for name, is_text in columns.items() if is_text]
    column = field or ("text" if "text" in strings or len(strings) != 1 else strings[0])
    if column in strings:
        return column
    remedy = "; say which is the text with field=NAME" if field is not None else ""
    kind = "is not of text" if column in columns else "is not there"
    raise SpecError(f"{what}: column '{column}' {kind}; columns of text: {', '.join(strings) or 'none'}{remedy}")
