"""What an interrupted conversion had done, kept in its folder: the same call goes on from there.

    work = Unfinished.at(folder, request)        # new, or begun by the same request
    work.keep("g2-0", state)                     # a layer that was fitted
    work.finish()                                # nothing of it is left

Nothing is written before there is something to keep, so a call that fails at once leaves no folder.
"""

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from headwise.checkpoints.files import check_new

REQUEST, PARTS = "request.json", "unfinished"


@dataclass(frozen=True)
class Unfinished:
    """A folder that is being written, and the call that asked for it."""

    folder: Path
    request: dict[str, Any]
    going_on: bool = False

    @classmethod
    def at(cls, folder: Path, request: dict[str, Any]) -> "Unfinished":
        """New, or what the same request had begun; anything else in the folder is refused."""
        going_on = _facts(folder).get("request") == request
        if not going_on:
            check_new(folder)
        return cls(folder, request, going_on)

    def done(self) -> dict[str, Any] | None:
        """What the conversion was, where only healing was interrupted."""
        return _facts(self.folder).get("done")

    def converted(self, done: dict[str, Any]) -> None:
        """The folder holds the converted model now."""
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)
        self._write(done)

    def begin(self) -> None:
        """Something will be written now."""
        if not (self.folder / REQUEST).exists():
            self._write(None)

    def keep(self, name: str, part: dict[str, Any]) -> None:
        self.begin()
        file = self.folder / PARTS / f"{name}.pt"
        file.parent.mkdir(exist_ok=True)
        new = file.with_suffix(".new")
        torch.save(part, new)
        new.replace(file)

    def kept(self, name: str) -> dict[str, Any] | None:
        file = self.folder / PARTS / f"{name}.pt"
        return torch.load(file, weights_only=True) if file.exists() else None

    def finish(self) -> None:
        shutil.rmtree(self.folder / PARTS, ignore_errors=True)
        (self.folder / REQUEST).unlink(missing_ok=True)

    def discard(self) -> None:
        """Of a call that turned out to be impossible; what an earlier one had done stays."""
        if not self.going_on and (self.folder / REQUEST).exists() and self.done() is None:
            self.finish()
            if not any(self.folder.iterdir()):
                self.folder.rmdir()

    def _write(self, done: dict[str, Any] | None) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.folder / f"{REQUEST}.new"
        new.write_text(json.dumps({"request": self.request, "done": done}))
        new.replace(self.folder / REQUEST)


def _facts(folder: Path) -> dict[str, Any]:
    """Of the request in a folder; nothing where somebody else's file has its name."""
    try:
        facts = json.loads((folder / REQUEST).read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}
