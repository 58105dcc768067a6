"""A folder that a conversion is at: the same call goes on where it was stopped, however that was.

    work = Unfinished.at(folder, request)        # new, or begun by the same request
    work.keep("layer-0", tensors, facts)         # a part of the work; `kept` gives it back
    work.converted(facts)                        # the folder holds the converted model now; healing may follow
    work.finish()                                # nothing of it is left

Files come into the folder whole or not at all. Until the last is there, `request.json` says what was asked and which
process is at it, so that two are never at one folder.
"""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from headwise.checkpoints.files import check_new
from headwise.spec import SpecError, one_line
from headwise.training.machine import is_gone, process_name
from headwise.training.resume import Contents, DiskError, read, remove, remove_abandoned, write

REQUEST, STATE, FRESH, PARTS = "request.json", "healing.state", "fresh", "parts"
Facts = dict[str, Any]


@dataclass(frozen=True)
class Unfinished:
    """A folder that is being written, and the call that asked for it."""

    folder: Path
    request: Facts
    going_on: bool = False

    @classmethod
    def at(cls, folder: Path, request: Facts) -> "Unfinished":
        """New, or what the same request had begun; anything else in the folder is refused."""
        facts = cls(folder, request)._facts()
        work = cls(folder, request, facts.get("request") == request)
        if folder.is_dir():
            remove_abandoned(folder / REQUEST)
        if not work.going_on and not (facts and work._empty()):
            check_new(folder)
        by = str(facts.get("by", ""))
        if by and by != process_name(os.getpid()) and not is_gone(by):
            raise SpecError(f"another process is converting to '{folder}'; wait for it, or give --out a new folder")
        work._write(facts.get("done") if work.going_on else None)
        return work

    @property
    def state(self) -> Path:
        """Where healing keeps how far it is."""
        return self.folder / STATE

    def done(self) -> Facts | None:
        """What the conversion was, where only healing was interrupted."""
        done: Facts | None = self._facts().get("done")
        return done

    def converted(self, done: Facts) -> None:
        self._write(done)
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)

    def keep(self, name: str, tensors: dict[str, Tensor], facts: Facts) -> None:
        (self.folder / PARTS).mkdir(exist_ok=True)
        write(self.folder / PARTS / name, {key: one.contiguous() for key, one in tensors.items()}, facts)

    def kept(self, name: str) -> Contents | None:
        return read(self.folder / PARTS / name)

    def finish(self) -> None:
        remove(self.state)
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)
        shutil.rmtree(self.folder / FRESH, ignore_errors=True)
        (self.folder / REQUEST).unlink(missing_ok=True)

    def discard(self) -> None:
        """Of a call that turned out to be impossible: the folder as it was before, where nothing is in it yet."""
        with suppress(OSError):
            if not self.going_on:
                shutil.rmtree(self.folder / PARTS, ignore_errors=True)
            if self._empty():
                self.finish()
                self.folder.rmdir()

    def write(self, save: Callable[[Path], Any], in_parts: bool = False) -> None:
        """What `save` writes into a folder, moved here file by file; each is on the disk before it is.

        With `in_parts`, what an interrupted call had written into that folder is there again.
        """
        fresh = self.folder / FRESH
        if not in_parts:
            shutil.rmtree(fresh, ignore_errors=True)
        try:
            fresh.mkdir(parents=True, exist_ok=in_parts)
            save(fresh)
            for file in sorted(fresh.iterdir()):
                with open(file, "rb+") as opened:
                    os.fsync(opened.fileno())
                file.replace(self.folder / file.name)
            fresh.rmdir()
        except (OSError, RuntimeError, SafetensorError) as error:  # what torch and safetensors say of a full disk
            reason = one_line(error).partition(": ")[2] or one_line(error)
            raise DiskError(f"cannot write '{self.folder}': {reason}; the same command goes on from here") from None
        finally:
            if not in_parts:
                shutil.rmtree(fresh, ignore_errors=True)

    def _empty(self) -> bool:
        return {file.name for file in self.folder.iterdir()} <= {REQUEST, FRESH}

    def _facts(self) -> Facts:
        try:
            facts = json.loads((self.folder / REQUEST).read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def _write(self, done: Facts | None) -> None:
        facts = {"request": self.request, "by": process_name(os.getpid()), "done": done}
        new = self.folder / f"{REQUEST}.{process_name(os.getpid())}.new"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with open(new, "w") as file:
                file.write(json.dumps(facts))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self.folder / REQUEST)
        except OSError as error:
            with suppress(OSError):
                new.unlink(missing_ok=True)
            raise DiskError(f"cannot write '{self.folder}': {error.strerror or error}") from None
