"""Small files beside a store that several drivers read and write: whole or not there, and the first one stays."""

import os
from contextlib import suppress
from pathlib import Path

from headwise.training.machine import is_gone, process_name


def keep(file: Path, text: str, *, replace: bool = False) -> str:
    """Write a file, unless another process has by now, and give what it holds; with `replace`, in any case."""
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f"{file.name}.{process_name(os.getpid())}.partial")
    partial.write_text(text)
    try:
        if not replace:
            with suppress(FileExistsError):
                _name(partial, file)
            return file.read_text()
        partial.replace(file)
        return text
    finally:
        partial.unlink(missing_ok=True)
        for left in file.parent.glob("*.partial"):
            if is_gone(left.name.split(".")[-2]):
                left.unlink(missing_ok=True)


def _name(partial: Path, file: Path) -> None:
    """Give a whole file its name, if nothing has it; where a system has no links, a rename has to do."""
    try:
        os.link(partial, file)
    except FileExistsError:
        raise
    except OSError:
        if not file.exists():
            partial.replace(file)
