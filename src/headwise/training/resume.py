"""Checkpoints: tensors and a little JSON in one safetensors file, written so that a crash cannot spoil them.

A file appears whole (written under another name, flushed to disk, renamed) or not at all; the one before it stays until
the next. Loading verifies a digest of the contents; a damaged file is set aside and the previous one used. Nothing is
ever unpickled. A place is a `Path`, or a `Url` that fsspec knows how to reach, such as one of an object store:

    write(place("s3://bucket/run-7") / "3fa9.safetensors", tensors, facts)
"""

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from headwise.spec import SpecError
from headwise.training.machine import is_gone, process_name

OLD_SECONDS = 24 * 3600.0  # of a half-written file
Contents = tuple[dict[str, Tensor], dict[str, Any]]


class DiskError(SpecError):
    """A file cannot be read or written; what was there before is intact."""


class Url:
    """A place that fsspec knows, with as much of `Path` as checkpoints need. Whatever goes wrong is an `OSError`."""

    def __init__(self, text: str) -> None:
        from fsspec.core import url_to_fs

        self.text = text.rstrip("/")
        try:
            self.files, self.path = url_to_fs(self.text)
        except (ImportError, ValueError) as error:
            raise SpecError(f"cannot reach {text}: {error}") from None

    def __str__(self) -> str:
        return self.text

    def __truediv__(self, name: str) -> "Url":
        return Url(f"{self.text}/{name}")

    @property
    def name(self) -> str:
        return self.text.rpartition("/")[2]

    @property
    def parent(self) -> "Url":
        return Url(self.text.rpartition("/")[0])

    def with_name(self, name: str) -> "Url":
        return self.parent / name

    def glob(self, pattern: str) -> "list[Url]":
        with self._asked():
            return [self / name.rpartition("/")[2] for name in self.files.glob(f"{self.path}/{pattern}")]

    def read_bytes(self) -> bytes:
        with self._asked():
            return bytes(self.files.cat_file(self.path))

    def write_bytes(self, data: bytes) -> None:
        with self._asked():
            try:
                self.files.pipe_file(self.path, data)
            except FileNotFoundError:  # a system that has folders, as object stores do not
                self.files.makedirs(self.parent.path, exist_ok=True)
                self.files.pipe_file(self.path, data)

    def replace(self, target: "Url") -> None:
        """Not one operation as on a disk: what `target` held goes once this object is known to be there."""
        with self._asked():
            self.files.info(self.path)
            target.unlink(missing_ok=True)
            self.files.mv(self.path, target.path)

    def unlink(self, missing_ok: bool = False) -> None:
        with self._asked():
            try:
                self.files.rm_file(self.path)
            except FileNotFoundError:
                if not missing_ok:
                    raise

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Ask the store itself, not fsspec's cache of it; each kind of store has errors of its own."""
        try:
            self.files.invalidate_cache()
            yield
        except OSError:
            raise
        except Exception as error:
            raise OSError(errno.EIO, f"{type(error).__name__}: {error}") from error


Location = Path | Url


def place(text: str | Path) -> Location:
    """A folder to keep checkpoints in: a path, or a URL such as s3://bucket/folder."""
    scheme, separator, _ = str(text).partition("://")
    if not separator:
        return Path(text)
    return Path(Url(str(text)).path) if scheme in ("file", "local") else Url(str(text))


def write(path: Location, tensors: dict[str, Tensor], facts: dict[str, Any]) -> str:
    """Replace `path`, keep its predecessor beside it, and give the digest of the contents."""
    kept = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    digest = _digest(kept, facts)
    data = save(kept, {"digest": digest, "facts": json.dumps(facts)})
    # Another process may be at the same run: where its driver was taken for dead, or where a run is given by hand.
    fresh = path.with_name(f"{path.name}.{process_name(os.getpid())}.{uuid4().hex[:8]}.new")
    try:
        _write_through(fresh, data)
        with suppress(FileNotFoundError):
            _move(path, previous(path))
        _move(fresh, path)
        _flush_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        fix = "free some space" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "fix that"
        raise DiskError(f"cannot write {path}: {_reason(error)}; {fix} and run the same command again") from None
    return digest


def read(path: Location) -> Contents | None:
    """The newest checkpoint that is whole, or None. Damaged ones are renamed, never deleted."""
    for candidate in (path, previous(path)):
        try:
            data = candidate.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if isinstance(candidate, Url):  # a store that does not answer now says nothing about what it holds
                raise DiskError(f"cannot read {candidate}: {_reason(error)}") from None
            data = b""
        contents = _verified(data)
        if contents is not None:
            return contents
        try:
            _move(candidate, candidate.with_name(candidate.name + ".damaged"))
        except FileNotFoundError:  # another process was quicker
            continue
        except OSError as error:
            raise DiskError(f"cannot set the damaged {candidate} aside: {_reason(error)}") from None
    return None


def remove(path: Location) -> None:
    """Remove a finished run's checkpoints; one that cannot be removed does not lose the run's result."""
    with suppress(OSError):
        for candidate in (path, previous(path)):
            candidate.unlink(missing_ok=True)
    remove_abandoned(path)


def remove_abandoned(path: Location) -> None:
    """Remove what killed processes have left half written beside `path`; what living ones write stays."""
    with suppress(OSError):
        for file in path.parent.glob(f"{path.name}.*.new"):
            writer = file.name.removeprefix(f"{path.name}.").split(".")[0]
            unnamed = "-" not in writer  # by an older version
            if unnamed or writer == process_name(os.getpid()) or is_gone(writer) or _is_old(file):
                file.unlink(missing_ok=True)


def _is_old(file: Location) -> bool:
    """Nobody writes for so long; the clock that counts is that of the file system."""
    return isinstance(file, Path) and time.time() - file.stat().st_mtime > OLD_SECONDS


def previous(path: Location) -> Location:
    return path.with_name(path.name + ".previous")


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _verified(data: bytes) -> Contents | None:
    """What a file holds, or None where it is not exactly what was written."""
    try:
        tensors = load(data)
        length = int.from_bytes(data[:8], "little")  # a safetensors file starts with the length of its JSON header
        described = json.loads(data[8 : 8 + length])["__metadata__"]
        facts = json.loads(described["facts"])
    except (SafetensorError, KeyError, ValueError):
        return None
    return (tensors, facts) if described.get("digest") == _digest(tensors, facts) else None


def _digest(tensors: dict[str, Tensor], facts: dict[str, Any]) -> str:
    hashed = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        hashed.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        hashed.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def _write_through(path: Location, data: bytes) -> None:
    """Write a whole file, down to the disk."""
    if isinstance(path, Url):
        return path.write_bytes(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _move(source: Location, target: Location) -> None:
    if isinstance(source, Url) and isinstance(target, Url):
        return source.replace(target)
    os.replace(str(source), str(target))


def _flush_folder(folder: Location) -> None:
    """The rename itself must reach the disk; not every system lets a folder be opened, or flushed."""
    if isinstance(folder, Url):
        return
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
