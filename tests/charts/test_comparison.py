"""The chart of a comparison: which size is its axis, which costs get a panel, and what is drawn of each variant."""

import math

import pytest

from headwise.charts.comparison import chart_name, comparison_chart, pareto, varied
from headwise.charts.grammar import save
from headwise.cost import kv_bytes_per_token, parameter_counts
from headwise.options import preset
from headwise.shape import ModelShape


def variants(*names, bad=(), **columns):
    """Rows as an answer lists them, the first the base; `columns` give further numbers, in the variants' order."""
    rows = []
    for number, name in enumerate(names):
        loss = math.nan if name in bad else 2 - 0.1 * number
        ends = {"low": loss - 0.2, "high": loss + 0.2, "delta": -0.1 * number}
        ends |= {"delta_low": -0.1 * number - 0.03 * bool(number), "delta_high": -0.1 * number + 0.03 * bool(number)}
        row = {"shape": name, "metric": loss, **ends, "note": "diverged with seed 2" if name in bad else ""}
        rows.append(row | {column: values[number] for column, values in columns.items()})
    return rows


def shapes(*names, **settings):
    rows, options = variants(*names, **settings), preset("gpt2", vocab=100, context=32)
    for row in rows:
        shape = ModelShape.parse(row["shape"])
        row |= {**parameter_counts(shape, options), "kv_bytes_per_token": kv_bytes_per_token(shape, options)}
    return rows


def drawn(rows, **settings):
    axis = varied(rows, settings.pop("asked", ()), settings.pop("columns", ()))
    return comparison_chart(rows, rows[0]["shape"], "bits per byte", axis, **settings).to_dict()


def titles(chart):
    return [panel["layer"][-1]["encoding"]["x"]["title"] for panel in chart["concat"]]


def values(chart, panel, field):
    """A field of every point that a panel draws."""
    layer = next(layer for layer in chart["concat"][panel]["layer"] if layer["mark"]["type"] == "point")
    return [point[field] for point in layer["data"]["values"]]


@pytest.mark.parametrize(
    ("names", "asked", "axis", "also"),
    [
        (["w64-h4-L2", "w64-h1-L2", "w64-h16-L2"], ["heads"], "heads", []),  # head dim and KV heads follow
        (["w64-h8-L2", "w64-h8-g4-L2-m272", "w64-h8-g1-L2-m288"], ["kv_heads"], "KV heads", ["MLP hidden width"]),
        (["w64-h4-L2", "w64-h4-r32-L2", "w64-h4-r8-L2"], [], "head dim", []),
        (["w64-h4-L2", "w64-h4-v32-L2"], [], "value head dim", []),
        (["w64-h4-c32-L2", "w64-h4-c16-L2"], [], "KV latent dim", []),
        (["w64-h4-L2", "w64-h4-L3", "w64-h8-L4"], [], "layers", ["heads"]),  # most values
        (["w64-h4-L2", "w64-h4-L3", "w64-h8-L4"], ["heads"], "heads", ["layers"]),
        (["w64-h4-L2", "w64-h4-L2-m512"], ["heads"], "MLP hidden width", []),
        (["w64-h8x2,4x2", "w64-h4x2,8x2"], [], "variant", []),  # layers differ: no one number
        (["big", "small"], [], "variant", []),
    ],
)
def test_the_axis_is_the_size_that_varies(names, asked, axis, also):
    found = varied(variants(*names), asked)
    assert (found.title, list(found.also)) == (axis, also)
    assert list(found.places) == names


def test_the_axis_of_a_table_is_a_column_of_numbers():
    assert varied(variants("4", "8"), columns=["n_heads"]).places == {"4": 4, "8": 8}
    several = varied(variants("heads=4 kv=none", "heads=8 kv=1"), columns=["heads", "kv"])
    assert (several.title, several.places["heads=8 kv=1"], several.also) == ("heads", 8, {})
    named = varied(variants("big", "small", layers=[4.0, 2.0], seconds=[3.0, 2.0]), columns=["model"])
    assert named.places == {"big": 4.0, "small": 2.0}
    assert varied(variants("big", "small"), columns=["model"]).title == "model"


def test_a_comparison_has_its_metric_axis_intervals_and_base():
    chart = drawn(shapes("w64-h4-L2", "w64-h1-L2", "w64-h16-L2", bad=["w64-h16-L2"]), asked=["heads"], notes=["Words."])
    assert chart["title"]["text"] == "bits per byte by heads, base w64-h4-L2"
    said = " ".join(chart["title"]["subtitle"])
    assert said.startswith("Words. Thin bars: 95 % interval of the mean; thick bars: of the difference to the base.")
    assert "Not judged (×): w64-h16-L2 (diverged with seed 2)." in said
    assert "Equal for all: parameters " in said  # one panel, as every cost is the same
    counts = parameter_counts(ModelShape.parse("w64-h4-L2"), preset("gpt2", vocab=100, context=32))
    assert f"parameters {counts['parameters']:,} (body {counts['parameters_body']:,})" in said
    assert titles(chart) == ["heads"]
    (panel,) = chart["concat"]
    points = next(layer for layer in panel["layer"] if "shape" in layer["encoding"])
    assert points["encoding"]["y"]["title"] == "bits per byte (lower is better)"
    assert points["encoding"]["x"]["scale"] == {"type": "log", "base": 2, "nice": False, "padding": 22}
    assert points["encoding"]["x"]["axis"]["values"] == [1, 4, 16]
    assert points["encoding"]["shape"]["scale"]["range"][0] == "diamond"
    assert points["encoding"]["color"]["scale"]["domain"] == ["w64-h4-L2 (base)", "w64-h1-L2"]
    assert values(chart, 0, "x") == [4, 1]
    bars = [layer["encoding"] for layer in panel["layer"] if "y2" in layer["encoding"]]
    assert [bar["y"]["field"] for bar in bars] == ["low", "paired_low"]
    assert all(math.isfinite(number) for number in values(chart, 0, "low"))


def test_costs_that_differ_are_panels_with_their_frontier():
    speeds = {"tokens_per_second": [100.0, 300.0, 200.0]}
    rows = shapes("w64-h8-L2", "w64-h8-g4-L2", "w64-h8-g1-L2", **speeds)
    chart = drawn(rows, asked=["kv_heads"])
    costs = ["parameters (total)", "KV cache bytes/token", "tokens/s, measured (higher is better)"]
    assert titles(chart) == ["KV heads", *costs]
    assert "Grey line over costs" in " ".join(chart["title"]["subtitle"])
    assert values(chart, 1, "x") == [row["parameters"] for row in rows]
    bare = [row | {"parameters": row["parameters_body"]} for row in rows]
    assert titles(drawn(bare))[1] == "parameters of the body"


def test_columns_of_a_table_are_costs():
    columns = {"cache_mb": [8.0, 2.0], "lr": [0.1, 0.2], "throughput": [3.0, 4.0], "parameters": [7.0, 9.0]}
    chart = drawn(variants("big", "small", **columns), columns=["arm"], extra=[*columns], higher_is_better=True)
    assert titles(chart) == ["arm", "parameters", "cache_mb", "throughput (higher is better)"]
    assert chart["concat"][0]["layer"][-1]["encoding"]["y"]["title"] == "bits per byte (higher is better)"


def test_the_frontier_is_what_no_other_beats_in_both():
    points = [(1.0, 5.0), (2.0, 3.0), (3.0, 4.0), (2.0, 6.0), (4.0, 1.0)]
    assert pareto(points, more_is_better=False, higher_is_better=False) == [(1.0, 5.0), (2.0, 3.0), (4.0, 1.0)]
    assert pareto(points, more_is_better=False, higher_is_better=True) == [(1.0, 5.0), (2.0, 6.0)]
    assert pareto(points, more_is_better=True, higher_is_better=False) == [(4.0, 1.0)]


def test_no_latent_stands_after_the_widest():
    chart = drawn(shapes("w64-h4-L2", "w64-h4-c16-L2", "w64-h4-c32-L2"))
    assert chart["concat"][0]["layer"][-1]["encoding"]["x"]["sort"] == ["16", "32", "none"]


def test_variants_alike_in_all_else_are_joined():
    chart = drawn(shapes("w64-h4-L2", "w64-h8-L2", "w64-h4-L4", "w64-h8-L4"), asked=["depth"])
    assert values(chart, 0, "group") == [0, 1, 0, 1]
    first, beside, *_ = values(chart, 0, "x")
    assert first < 2 < beside  # so that their bars do not hide each other


def test_one_run_each_has_no_intervals_and_none_finite_no_chart():
    rows = [row | {"low": -math.inf, "high": math.inf, "delta_low": -math.inf} for row in variants("4", "8")]
    assert "One run of each: no intervals." in drawn(rows)["title"]["subtitle"][0]
    rows = variants("4", "8", bad=["4", "8"])
    assert comparison_chart(rows, "4", "loss", varied(rows)) is None


def test_files_have_readable_names_and_another_questions_chart_stays(tmp_path):
    rows = shapes("w64-h4-L2", "w64-h8-L2")
    axis = varied(rows, ["heads"])
    name = chart_name("text-my notes", "w64-h4-L2", axis)
    assert name == "text-my-notes-w64-h4-L2-heads"
    chart = comparison_chart(rows, "w64-h4-L2", "loss", axis)
    first = save(chart, tmp_path, name, "0123456789abcdef")
    assert first[0].name == f"{name}.png"
    assert first[0].read_bytes().startswith(b"\x89PNG")
    assert save(chart, tmp_path, name, "0123456789abcdef") == first
    assert save(chart, tmp_path, name, "fedcba9876543210")[0].name == f"{name}-fedcba.png"
