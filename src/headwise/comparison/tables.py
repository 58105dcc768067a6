"""Finished runs from a table that somebody keeps: CSV, TSV, JSON lines, Parquet, or a polars or pandas frame.

One line is one run: which variant, perhaps a seed, the metric, and whatever else was written down. Names of columns
are compared without regard to case, spaces and signs between words. Numbers may be written as people write them
(71.3 %, 1,234,567, a decimal comma) where that can be read in one way only. What is wrong with a line is said with the
line's number, and so is what was done about it. No torch here.
"""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwise.cost import parameter_counts
from headwise.extras import extra
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError, check_file
from headwise.store.rows import Row

ARMS = ("arm", "variant", "shape", "model", "name", "modelname", "config", "configuration")  # the first that is there
SEEDS = ("seed", "randomseed", "run", "trial", "repeat")
METRICS = {
    "metric",
    "loss",
    "bpb",
    "bpc",
    "bitsperbyte",
    "nll",
    "ce",
    "perplexity",
    "ppl",
    "error",
    "err",
    "mse",
    "rmse",
}
METRICS |= {"mae", "wer", "accuracy", "acc", "top1", "exactmatch", "em", "bleu", "rouge", "mmlu", "f1", "auc", "score"}
LONG_METRICS = tuple(name for name in METRICS if len(name) > 3)  # which no other word ends with
SIZES = ("heads", "kvheads", "qkrank", "headdim", "vrank", "kvlatent", "width", "depth", "layers", "mlp")
BLANK = frozenset(("", "-", "–", "—", "?", "n/a", "na", "none", "null"))
DIVERGED = frozenset(("nan", "inf", "+inf", "-inf", "infinity", "-infinity", "diverged"))
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?")
RESERVED = frozenset(("shape", "seed", "seeds", "error", "metric", "low", "high", "note"))  # of an answer's own rows

Line = tuple[str, dict[str, Any]]  # where it is, as in 'line 7', and its values by column


@dataclass(frozen=True)
class RunTable:
    """Runs as a comparison judges them, and how the table was read."""

    rows: list[Row]
    arms: list[str]  # the columns that name a variant
    metric: str  # the column that is judged
    paired: bool  # whether runs with the same seed belong together
    extra: list[str]  # columns with other numbers
    notices: list[str] = field(default_factory=list)

    @property
    def variants(self) -> list[str]:
        return list(dict.fromkeys(row.cell["arm"] for row in self.rows))

    def variant(self, base: str) -> str:
        """The variant that somebody means, written as it is, as in 'heads=8,kv_heads=2', or as '8,2'."""
        names = {_words(re.sub(r"\S+=", "", name)): name for name in self.variants}
        names |= {_words(name): name for name in self.variants}
        if base and _words(base) not in names:
            raise SpecError(f"no runs of the base '{base}'; the variants are {'; '.join(self.variants)}")
        return names[_words(base)] if base else self.variants[0]


def read_table(source: Any, metric: str = "", arm_columns: Sequence[str] = ()) -> RunTable:
    """Runs from a file or a frame; without `metric` and `arm_columns`, from columns with the usual names."""
    lines, where = _lines(source)
    columns = [name for name in lines[0][1] if name] if lines else []
    if not lines:
        raise SpecError(f"{where} has no runs: it needs a line of column names, and a line for each run")
    arms, seed = _arm_columns(columns, arm_columns, where), _find(columns, SEEDS)
    seed = "" if seed in arms else seed
    left = [name for name in columns if name not in (*arms, seed)]
    chosen = _metric_column(left, lines, metric, where)
    reader = _Reader(lines, arms, chosen)
    return reader.table(seed, [name for name in left if name != chosen])


# ---- columns -------------------------------------------------------------------------------------------------------


def _plain(name: str) -> str:
    return re.sub(r"[\s_\-./]+", "", name.casefold())


def _words(variant: str) -> tuple[str, ...]:
    return tuple(re.split(r"[\s,]+", variant.strip()))


def _find(columns: Iterable[str], names: Sequence[str]) -> str:
    """The column with the first of these names that is there; empty where none is."""
    by_name = {_plain(column): column for column in reversed([*columns])}
    return next((by_name[name] for name in names if name in by_name), "")


def _arm_columns(columns: list[str], asked: Sequence[str], where: str) -> list[str]:
    found = [_find(columns, [_plain(name)]) for name in asked]
    if "" in found:
        raise SpecError(f"{where} has no column '{asked[found.index('')]}'; it has {', '.join(columns)}")
    usual = _find(columns, ARMS)
    if not found and not usual:
        sizes = [column for column in columns if _plain(column) in SIZES] or columns[:1]
        raise SpecError(
            f"cannot tell which column of {where} names the variant; it has {', '.join(columns)}: "
            f"name one or more with --arm-columns, as in --arm-columns {','.join(sizes)}"
        )
    return found or [usual]


def _metric_column(columns: list[str], lines: list[Line], asked: str, where: str) -> str:
    """The one that is named, or the only one that can be meant."""
    if asked:
        if column := _find(columns, [_plain(asked)]):
            return column
        raise SpecError(
            f"{where} has no column '{asked}'; it has {', '.join(columns)} (--metric names the one to judge)"
        )
    known = [column for column in columns if _is_metric(column)]
    held_out = [column for column in known if "train" not in column.casefold()]
    exact = [column for column in known if _plain(column) == "metric"]
    numeric = [column for column in columns if any(isinstance(_number(line[column]), float) for _, line in lines)]
    for some in (exact, held_out, known, numeric):
        if len(some) == 1:
            return some[0]
        if some:
            break
    raise SpecError(f"cannot tell which column of {where} is to be judged; name it with --metric: {', '.join(columns)}")


def _is_metric(column: str) -> bool:
    """By a word of its name: val_loss, 'Test accuracy', valLoss."""
    words = {*re.split(r"[^a-z0-9]+", column.casefold()), _plain(column)}
    return bool(words & METRICS) or _plain(column).endswith(LONG_METRICS)


# ---- values --------------------------------------------------------------------------------------------------------


def _text(value: Any) -> str:
    """A value as it names a variant or a seed: 8 and 8.0 are the same."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return "" if value is None else str(value).strip()


def _number(value: Any, decimal_comma: bool = False) -> float | str:
    """A number, or what there is instead: 'blank', 'diverged' or 'text'."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if math.isfinite(value) else "diverged"
    text = _text(value).casefold()
    if text in BLANK or text in DIVERGED:
        return "blank" if text in BLANK else "diverged"
    text = re.sub(r"(?<=\d)[\s_'](?=\d{3})", "", text.removesuffix("%").strip())
    if decimal_comma:
        text = text.replace(",", ".")
    elif THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    return float(text) if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text) else "text"


@dataclass(frozen=True)
class _Column:
    """How the numbers of one column are written."""

    decimal_comma: bool = False
    doubt: str = ""  # why it can be read in two ways


def _way_of_writing(values: list[tuple[str, Any]]) -> _Column:
    texts = [(place, value.strip()) for place, value in values if isinstance(value, str)]
    texts = [(place, text) for place, text in texts if text.casefold() not in BLANK | DIVERGED]
    signs = {text.endswith("%"): (place, text) for place, text in texts}
    if len(signs) == 2:
        (here, percent), (there, plain) = signs[True], signs[False]
        return _Column(doubt=f"{here} has '{percent}' and {there} '{plain}': write all of them in the same way")
    commas = [(place, text.removesuffix("%").strip()) for place, text in texts if "," in text]
    if any(not THOUSANDS.fullmatch(text) for _, text in commas):
        return _Column(decimal_comma=all(text.count(",") == 1 and "." not in text for _, text in commas))
    if commas and not any("." in text or text.count(",") > 1 for _, text in [*commas, *texts]):
        place, text = commas[0]
        return _Column(doubt=f"{place}: '{text}' may be {text.replace(',', '.')} or {text.replace(',', '')}")
    return _Column()


class _Reader:
    """Turns lines into rows, and notes what it did with those that are not as they should be."""

    def __init__(self, lines: list[Line], arms: list[str], metric: str) -> None:
        self.lines, self.arms, self.metric = lines, arms, metric
        self.notices: list[str] = []

    def table(self, seed: str, others: list[str]) -> RunTable:
        numbers = self._column(self.metric)
        if isinstance(numbers, str):
            raise SpecError(f"cannot read {self.metric}: {numbers}")
        if not any(isinstance(number, float) or number == "diverged" for number in numbers):
            raise SpecError(f"no line has a number as {self.metric}")
        extra = self._extra(others)
        seeds = self._seeds(seed)
        rows: list[Row] = []
        seen: dict[tuple[str, int], str] = {}
        for index, (place, line) in enumerate(self.lines):
            error = self._error(place, line, numbers[index])
            variant, its_seed = self._variant(line), seeds[index]
            if error is None or not variant or its_seed is None:
                continue
            if its_seed < 0:  # not told: in order
                its_seed = sum(name == variant for name, _ in seen)
            if (variant, its_seed) in seen:
                raise SpecError(self._twice(seen[variant, its_seed], place, variant, line[seed], others))
            seen[variant, its_seed] = place
            known = {name: values[index] for name, values in extra.items()}
            metrics = {name: value for name, value in known.items() if isinstance(value, float)}
            rows.append(Row({"arm": variant}, its_seed, {**metrics, "error": error}, f"{variant}/{its_seed}"))
        if not rows:
            raise SpecError(f"no run is left to compare: {'; '.join(self.notices)}")
        return RunTable(rows, self.arms, self.metric, -1 not in seeds, list(extra), self.notices)

    def _column(self, name: str) -> list[float | str] | str:
        """Its numbers, with what stands in the place of those that are none; or why they cannot be read."""
        values = [(place, line[name]) for place, line in self.lines]
        way = _way_of_writing(values)
        return way.doubt or [_number(value, way.decimal_comma) for _, value in values]

    def _extra(self, names: list[str]) -> dict[str, list[float | str]]:
        """Columns of nothing but numbers, by the name they have in an answer."""
        found = {}
        for name in names:
            numbers = self._column(name)
            if isinstance(numbers, str):
                self.notices.append(f"{name} is not shown: {numbers}")
            elif "text" not in numbers and any(isinstance(number, float) for number in numbers):
                found[f"{name} column" if name in RESERVED else name] = numbers
        return found

    def _seeds(self, column: str) -> list[int | None]:
        """One for each line: None where it has none, −1 everywhere where runs are not told apart by one."""
        told = [_text(line[column]) if column else "" for _, line in self.lines]
        if not any(told):
            return [-1] * len(told)
        pairs = {(self._variant(line), text) for (_, line), text in zip(self.lines, told, strict=True)}
        unshared = len(pairs) == len(set(told)) == len(told)
        if unshared and len({variant for variant, _ in pairs}) > 1:
            self.notices.append(f"no two variants have the same {column}, so runs are compared without pairing them")
            return [-1] * len(told)
        for (place, _), text in zip(self.lines, told, strict=True):
            if not text:
                self.notices.append(f"{place}: {column} is empty: left out")
        numbered = {text: index for index, text in enumerate(dict.fromkeys(text for text in told if text))}
        if all(text.isdecimal() and len(text) < 19 for text in numbered):
            numbered = {text: int(text) for text in numbered}
        return [numbered.get(text) for text in told]

    def _variant(self, line: dict[str, Any]) -> str:
        values = [_text(line[name]) for name in self.arms]
        if len(values) == 1:
            return values[0]
        return " ".join(f"{'_'.join(name.split())}={value}" for name, value in zip(self.arms, values, strict=True))

    def _error(self, place: str, line: dict[str, Any], number: float | str) -> float | None:
        """The metric: infinite where the run diverged, none where the line is left out."""
        written, name = _text(line[self.metric]), self.metric
        if not any(_text(line[column]) for column in self.arms):
            self.notices.append(f"{place}: {', '.join(self.arms)} is empty: left out")
            return None
        if isinstance(number, float):
            return number
        if number == "diverged":
            self.notices.append(f"{place}: {name} is '{written}': counted as diverged")
            return math.inf
        why = f"is '{written}', not a number" if number == "text" else "is empty"
        self.notices.append(f"{place}: {name} {why}: left out")
        return None

    def _twice(self, first: str, second: str, variant: str, seed: Any, others: list[str]) -> str:
        more = f"; or name what tells them apart: --arm-columns {','.join([*self.arms, others[0]])}" if others else ""
        return (
            f"{first} and {second} are the same run twice, {variant} with seed {_text(seed)}: remove one of them, or "
            f"give it another seed{more}"
        )


# ---- files and frames ----------------------------------------------------------------------------------------------


def _lines(source: Any) -> tuple[list[Line], str]:
    """The lines of a table with their places, every line with every column, and what to call the table."""
    if hasattr(source, "to_dicts"):
        return _records("row", source.to_dicts()), "the frame"
    if hasattr(source, "to_dict"):
        return _records("row", source.to_dict("records")), "the frame"
    file = Path(source)
    try:
        check_file(file, "runs")
        content = file.read_bytes()
        if content[:4] == b"PAR1":
            with extra("data", "Parquet files"):
                import polars as pl

            return _records("row", pl.read_parquet(io.BytesIO(content)).to_dicts()), str(file)
        text = content.decode("utf-8-sig")
        if text.lstrip()[:1] in ("{", "["):
            return _json_lines(text), str(file)
        return _separated(text, file), str(file)
    except UnicodeDecodeError:
        raise SpecError(f"{file} is not text in UTF-8, JSON lines or Parquet: export it as one of these") from None
    except SpecError:
        raise
    except Exception as error:  # readers of formats have errors of their own
        raise SpecError(f"cannot read runs from {file}: {str(error).splitlines()[0]}") from None


def _records(unit: str, records: list[dict[str, Any]], places: Sequence[int] = ()) -> list[Line]:
    names = dict.fromkeys(str(name) for record in records for name in record)
    return [
        (f"{unit} {place}", dict.fromkeys(names) | {str(name): value for name, value in record.items()})
        for place, record in zip(places or range(1, len(records) + 1), records, strict=True)
    ]


def _json_lines(text: str) -> list[Line]:
    """An object in each line, or one list of objects."""
    if text.lstrip().startswith("["):
        numbered = [(number, one) for number, one in enumerate(json.loads(text), 1)]
        unit = "entry"
    else:
        written = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        numbered, unit = [], "line"
        for number, line in written:
            try:
                numbered.append((number, json.loads(line)))
            except json.JSONDecodeError as error:
                raise SpecError(f"line {number} is not JSON: {error.msg}") from None
    if wrong := next((number for number, one in numbered if not isinstance(one, dict)), 0):
        raise SpecError(f"{unit} {wrong} is not an object with a name for each value")
    return _records(unit, [one for _, one in numbered], [number for number, _ in numbered])


def _separated(text: str, file: Path) -> list[Line]:
    """CSV with commas, semicolons or tabs: what separates most names in the first line."""
    header = next((line for line in text.splitlines() if line.strip()), "")
    separator = "\t" if file.suffix.lower() == ".tsv" else max(",;\t", key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True)
    filled = [(reader.line_num, [value.strip() for value in line]) for line in reader if any(map(str.strip, line))]
    if not filled:
        return []
    names = filled[0][1]
    if twice := next((name for name in names if name and names.count(name) > 1), ""):
        raise SpecError(f"{file} has two columns with the name '{twice}'")
    for number, line in filled[1:]:
        if any(line[len(names) :]):
            raise SpecError(
                f"line {number} of {file} has {len(line)} values and the first line {len(names)} names; "
                f"put quotes around a value that contains '{separator}'"
            )
    return _records(
        "line", [dict(zip(names, line, strict=False)) for _, line in filled[1:]], [number for number, _ in filled[1:]]
    )


def sizes_of(name: str) -> dict[str, Any]:
    """Of a variant that is named by its shape; nothing where it has another name."""
    try:
        shape = ModelShape.parse(name)
    except SpecError:
        return {}
    return {**shape.model_dump(), **parameter_counts(shape, ModelOptions())}
