"""What every specification in headwise shares: it is frozen, it refuses unknown fields, and it explains itself.

A wrong value raises `SpecError` with one sentence that says what is wrong. The command line prints that sentence
and exits with 2; nobody has to read a traceback to find a typing mistake. So it is with what users bring as Python:
tasks, studies and checkpoint readers in files of their own are all loaded by `OwnFile`.
"""

import hashlib
import json
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator


class SpecError(ValueError):
    """One sentence: what was asked for and why it is not possible."""


def unknown(kind: str, name: str, known: Iterable[str], otherwise: str = "") -> SpecError:
    """No such name: those that look like it, else all there are, and what else could be given."""
    names = list(known)
    close = get_close_matches(name.lower(), names, n=3)
    hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"
    more = f" Or {otherwise}" if close and otherwise else f", or {otherwise}" if otherwise else ""
    return SpecError(f"no {kind} '{name}'; {hint}{more}")


class Spec(BaseModel):
    """A frozen, strict description. Subclasses are compared, hashed and printed by value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explain(type(self), error) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


class JsonSpec(Spec):
    """A spec that is kept as JSON: an array becomes the tuple, and an object the spec, that the field says it is."""

    @model_validator(mode="before")
    @classmethod
    def _from_json(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        read = {
            name: _read(fields[name].annotation, value)
            for name, value in values.items()
            if isinstance(value, list | dict) and name in fields
        }
        return values | read


def _read(kind: Any, value: Any) -> Any:
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Spec):
        return kind(**value)
    if isinstance(value, list) and get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], one) for one in value)
    return value


def _explain(spec: type[Spec], error: ValidationError) -> SpecError:
    first = error.errors()[0]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, SpecError):
        return inner
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return SpecError(f"{spec.__name__} has no field '{field}'; it has {', '.join(spec.model_fields)}")
    return SpecError(f"{spec.__name__}: {field or 'value'} is {first['input']!r}; {first['msg'].lower()}")


def check_file(path: Path, what: str) -> None:
    """Refuse what is there and no file: a pipe without a writer is waited for for ever, a device may have no end."""
    if path.exists() and not path.is_file():
        raise SpecError(f"cannot read {what} from '{path}': it is no file")


def read_text(file: str | Path, what: str) -> str:
    """A text file's content."""
    path = Path(file).expanduser()
    try:
        check_file(path, what)
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"cannot read {what} from '{path}': it is not text in UTF-8") from None
    except OSError as error:
        raise SpecError(f"cannot read {what} from '{shortened(str(path))}': {error.strerror or error}") from None


def read_json_text(text: str, where: str) -> Any:
    """A JSON document; one that is nested too deeply, or has numbers too long, is as unreadable as one that is none."""
    try:
        return json.loads(text)
    except RecursionError:
        raise SpecError(f"cannot read {where}: it is nested too deeply") from None
    except ValueError as error:
        raise SpecError(f"cannot read {where}: it is no JSON that can be read ({error})") from None


def check_writable(folder: str | Path) -> None:
    """Refuse a folder for results that nothing could be written to, before the work for them is done."""
    path = Path(folder).expanduser()
    try:
        there = next(place for place in (path, *path.absolute().parents) if place.exists())
        if not there.is_dir():
            raise SpecError(f"cannot write to '{path}': '{there}' is no folder")
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise SpecError(f"cannot write to '{shortened(str(path))}': {error.strerror or error}") from None


def shortened(text: str) -> str:
    """What somebody gave, as a sentence can show it."""
    return text if len(text) < 200 else f"{text[:100]}…{text[-50:]}"


def read_count(text: str | int, what: str) -> int:
    """A number of tokens or sequences: 2048, or 32k for 32 × 1024."""
    match = re.fullmatch(r"([0-9]{1,15})\s*([km]?)", str(text).strip().lower())
    if not match:
        raise SpecError(f"cannot read '{shortened(str(text))}' as the {what}; write 2048, or 32k for 32 × 1024")
    return int(match[1]) * {"": 1, "k": 2**10, "m": 2**20}[match[2]]


class OwnFile:
    """A user's Python file with a task, a study or a reader in it: read at once, executed by `load`."""

    def __init__(self, file: str | Path, kind: str) -> None:
        self.path, self.kind = Path(file).expanduser(), kind
        try:
            check_file(self.path, f"a {kind}")
            self.source = self.path.read_bytes()
        except OSError as error:
            raise SpecError(f"cannot read the {kind} file {self.path}: {error.strerror}") from None
        self.hash = hashlib.sha256(self.source).hexdigest()[:16]

    def load(self, ending: str, accepts: Callable[[Any], bool]) -> Any:
        """What the file's last line should name: `ending` is that line, such as TASK = YourTask."""
        module = ModuleType(f"headwise_{self.kind}_{self.hash}")
        sys.modules[module.__name__] = module  # pydantic looks a class's module up by name
        try:
            exec(compile(self.source, str(self.path), "exec"), module.__dict__)
        except (Exception, SystemExit) as error:  # whatever somebody else's file raises
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
            place = f" (line {lines[-1]})" if lines else ""  # a syntax error says its own
            raise SpecError(f"the {self.kind} file {self.path} cannot be loaded: {one_line(error)}{place}") from error
        value = getattr(module, ending.partition(" ")[0], None)
        if not accepts(value):
            raise SpecError(f"{self.path} does not say which is its {self.kind}: end it with {ending}")
        return value


def one_line(error: BaseException) -> str:
    """An error's type and message on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
