"""Charts as specifications: axes, titles, colours, panels; and the files that one is saved as."""

import pytest

from headwise.charts.curves import by_parameters, curves, frontier, in_order, measured, short_names
from headwise.charts.grammar import COLORS, MORE_COLORS, save
from headwise.charts.ranks import rank_curves
from headwise.store.rows import Row


def rows():
    """Two variants of different size, three seeds each."""
    sizes = {"base": 200.0, "thin": 100.0}
    return [
        Row({"arm": arm, "heads": heads, "task": "text"}, seed, {"error": 0.1 * heads + seed, "parameters": size}, "")
        for heads, (arm, size) in enumerate(sizes.items(), 1)
        for seed in range(3)
    ]


def encodings(chart):
    """Every encoding of every layer of every panel."""
    return [layer["encoding"] for panel in chart["concat"] for layer in panel["layer"]]


def test_a_point_is_the_mean_of_its_seeds_with_their_range():
    first, second = measured(rows(), "heads", "arm", label="the {}")
    assert (first["x"], first["series"], first["kind"]) == (1, "the base", "measured")
    assert (first["y"], first["low"], first["high"]) == pytest.approx((1.1, 0.1, 2.1))
    assert second["series"] == "the thin"
    assert measured(rows(), "heads", "arm", metric="none") == []
    assert [point["x"] for point in by_parameters(rows())] == [100.0, 200.0]


def test_curves_have_titles_axes_and_colours():
    points = [point | {"panel": panel} for panel in ("one", "two") for point in measured(rows(), "heads", "arm")]
    points.append({"x": 1, "y": 1.0, "series": "theory", "panel": "one", "kind": "theory"})
    chart = curves(points, "A title", ["a note"], "number of heads", "test error").to_dict()
    assert chart["title"]["text"] == "A title"
    notes = chart["title"]["subtitle"]
    assert notes[0] == "a note"
    assert "measured" in notes[1]
    assert "theory" in notes[1]
    assert "published" not in notes[1]
    assert [panel["title"]["text"] for panel in chart["concat"]] == ["one", "two"]
    assert {one["x"]["title"] for one in encodings(chart)} == {"number of heads"}
    assert {one["y"]["title"] for one in encodings(chart) if "title" in one["y"]} == {"test error"}
    assert all(one["x"]["scale"]["type"] == "log" for one in encodings(chart))
    for one in encodings(chart):
        assert one["color"]["scale"]["range"] == [*COLORS, *MORE_COLORS]
        assert one["color"]["sort"] == ["base", "thin", "theory"]


def test_a_frontier_has_a_panel_per_cost_that_differs():
    equal = [Row(row.cell, row.seed, row.metrics | {"flops": 7.0}, "") for row in rows()]
    chart = frontier(equal, "arm", "Costs", ["note"], "bits per byte").to_dict()
    assert {one["x"]["title"] for one in encodings(chart)} == {"parameters"}
    assert {one["text"]["field"] for one in encodings(chart) if "text" in one} == {"label"}  # each point is named
    assert "equal for all: training FLOPs 7" in chart["title"]["subtitle"]
    assert {one["y"]["title"] for one in encodings(chart) if "title" in one["y"]} == {"bits per byte"}


def test_rank_curves_have_a_panel_per_depth_and_the_no_skill_baseline():
    metrics = {"error": 0.5, "heads": 2.0, "parameters": 64.0, "trivial_error": 1.0}
    known = [
        Row({"depth": depth, "multiplier": 1, "rank": rank}, 0, metrics, "") for depth in (1, 2) for rank in (4, 8)
    ]
    chart = rank_curves(known, "The cliff", "a setting").to_dict()
    assert [panel["title"]["text"] for panel in chart["hconcat"]] == ["1 layer", "2 layers"]
    assert chart["title"]["subtitle"][0] == "a setting"
    assert "no-skill baseline" in chart["title"]["subtitle"][1]
    assert chart["hconcat"][0]["layer"][1]["encoding"]["x"]["title"] == "rank of each head"


def test_a_chart_is_saved_as_pictures_and_as_a_page(tmp_path):
    chart = curves(measured(rows(), "heads", "arm"), "Saved", [], "heads", "error")
    files = save(chart, tmp_path / "new", "chart")
    assert [file.name for file in files] == ["chart.png", "chart.svg", "chart.pdf", "chart.html"]
    png, svg, pdf, html = (file.read_bytes() for file in files)
    assert png.startswith(b"\x89PNG")
    assert pdf.startswith(b"%PDF")
    assert b"<svg" in svg
    assert b"Saved" in svg
    assert b"Saved" in html
    assert b'src="http' not in html


def test_legends_are_in_numeric_order():
    assert in_order(["× 16", "× 2", "× 8"]) == ["× 2", "× 8", "× 16"]
    assert in_order(["thin", "base 2"]) == ["thin", "base 2"]  # no order that all have


def test_labels_tell_variants_apart():
    names = ["base (6 layers, 2 heads)", "equal (1 layer, 9 heads)", "equal (2 layers, 4 heads)", "control"]
    assert list(short_names(names).values()) == ["base", "1 layer", "2 layers", "control"]


def test_a_dozen_variants_have_a_colour_each():
    assert len({*COLORS, *MORE_COLORS}) == 12
