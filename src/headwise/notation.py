"""The words of a shape, how its text is read, and what is said where it cannot be. No torch here."""

import re
from collections.abc import Callable, Iterable
from functools import cached_property, partial
from itertools import groupby
from typing import Any

from headwise.spec import SpecError

LETTERS = {
    "w": "width",
    "h": "heads",
    "r": "qk_rank",
    "v": "v_rank",
    "g": "kv_heads",
    "c": "kv_latent",
    "q": "q_latent",
    "p": "rope_rank",
    "L": "depth",
    "m": "mlp",
}
EXAMPLES = ("w512-h8-L6", "w1792-h14-r128-L28", "w512-h8x4,4x8")
LARGEST, DEEPEST = 10_000_000, 10_000
SCALARS = ("width", "depth")
Sizes = int | tuple[int, ...]


class ShapeError(SpecError):
    """An invalid shape: `problem` says why, `nearest` lists valid shapes near it.

    `find_nearest` runs on demand: it tries other shapes, and those that fail in turn need no neighbours.
    """

    def __init__(self, problem: str, find_nearest: Callable[[], Iterable[str]] = tuple) -> None:
        super().__init__(problem)
        self.problem = problem
        self._find_nearest = find_nearest

    @cached_property
    def nearest(self) -> tuple[str, ...]:
        return tuple(self._find_nearest()) or EXAMPLES

    def __str__(self) -> str:
        return f"{self.problem}; nearest that works: {', '.join(self.nearest)}"

    def __reduce__(self) -> tuple[Any, ...]:
        return SpecError, (str(self),)


class Misfit(Exception):
    """A check that failed, with the changes of fields that would fix it (None leaves a field out)."""

    def __init__(self, problem: str, *fixes: dict[str, Any]) -> None:
        self.problem = problem
        self.fixes = fixes


_BY_LETTER = {letter.lower(): name for letter, name in LETTERS.items()}
_TOKEN = re.compile(r"([a-z])((?:\d{1,20}(?:x\d{1,20})?)(?:,\d{1,20}(?:x\d{1,20})?)*)", re.IGNORECASE)


def read(text: str, valid: Callable[[str], list[str]]) -> dict[str, Any]:
    """The fields written in a shape's text; `valid` is what of a text is a shape, for those that are near."""
    tokens = [token for token in re.split(r"[-_\s]+", text.replace("×", "x").strip()) if token]
    if not tokens:
        raise ShapeError("the shape is empty")
    values: dict[str, Any] = {}
    for token in tokens:
        match = _TOKEN.fullmatch(token)
        if match is None:
            raise ShapeError(f"cannot read '{token[:40]}' in '{text[:80]}': a letter and a number are expected")
        letter, number = match.group(1).lower(), match.group(2).lower()
        if letter not in _BY_LETTER:
            meanings = ", ".join(f"{short} {name}" for short, name in LETTERS.items())
            problem = f"'{token}': no letter '{letter}' in a shape ({meanings})"
            raise ShapeError(problem, partial(_without, tokens, token, valid))
        name = _BY_LETTER[letter]
        if name in values:
            raise ShapeError(f"'{text}' gives {name} twice", partial(_without, tokens, token, valid))
        values[name] = _read_sizes(name, number)
    return values


def _read_sizes(name: str, number: str) -> Sizes:
    if "x" not in number and "," not in number:
        return int(number)
    if name == "width":
        raise ShapeError(f"{name} is one number for the whole model, not '{number}'")
    sizes: list[int] = []
    for part in number.split(","):
        size, _, times = part.partition("x")
        if times and not 1 <= int(times) <= DEEPEST:
            raise ShapeError(f"'{part}' repeats a layer {times} times, but 1 to {DEEPEST} is possible")
        sizes += [int(size)] * int(times or 1)
    return tuple(sizes)


def _without(tokens: list[str], wrong: str, valid: Callable[[str], list[str]]) -> list[str]:
    """What remains when the wrong token is left out, where that is a shape."""
    rest = [token for i, token in enumerate(tokens) if token != wrong or i < tokens.index(wrong)]
    return valid("-".join(rest)) if rest else []


def write_sizes(column: list[Any]) -> str:
    """One number, or a list with repetitions: `8x4,4x8`."""
    if len(set(column)) == 1:
        return str(column[0])
    runs = [(size, len(list(run))) for size, run in groupby(column)]
    return ",".join(str(size) if times == 1 else f"{size}x{times}" for size, times in runs)
