"""Benchmarks as far as they can be tested without measuring: what they say without a GPU, fill and write."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from headwise.store.store import Store

FOLDER = Path(__file__).parents[1] / "benchmarks"
sys.path.insert(0, str(FOLDER))


def test_without_a_gpu_the_gpu_benchmark_says_so_in_a_sentence():
    if torch.cuda.is_available():
        return
    command = [sys.executable, str(FOLDER / "gpu.py")]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "no GPU" in told
    assert told.count("\n") == 1


def test_a_cell_of_figure_1_is_trained_by_torch_alone():
    from figure_1 import price, published, train

    flops, seconds = price(8, "laptop")
    assert flops == 6 * 2000 * 128 * 16 * (4 * 16**2 + 2 * 16 * 64 + 2 * 16 * 16)
    assert seconds > 0
    assert published(32) == 0.6935
    first, later = (train(8, "laptop", 0, steps, None) for steps in (3, 60))
    assert 0.5 < later < first


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "within"), [(8, 0.01), (16, 0.1)])
def test_torch_alone_ends_where_headwise_ends(rank, within):
    """The laptop's cell, three seeds each; the rows are those of `results/`."""
    from statistics import mean

    from figure_1 import train

    from headwise.ledger.study import study_rows
    from headwise.store.rows import cell
    from headwise.studies import load

    rows = cell(
        study_rows(load("rank-cliff"), "laptop", Store.from_files(FOLDER.parent / "results")),
        depth=1,
        multiplier=1,
        rank=rank,
    )
    assert len(rows) >= 3
    measured = mean(row.metrics["error"] for row in rows)
    assert mean(train(rank, "laptop", seed, say=None) for seed in range(3)) == pytest.approx(measured, rel=within)


def test_a_large_store_has_runs_that_can_be_read(tmp_path):
    from large_store import fill

    with Store(fill(tmp_path / "large.db", rows=1700)) as store:
        assert store.count() == 1700
        last = list(store.runs(newest=20))
        assert all(run.key == result.key for run, result in last)


def test_each_section_is_written_as_it_ends(tmp_path, monkeypatch, capsys):
    """One that fails stays as it was and the rest goes on; an interruption keeps what was there."""
    import everything

    page = tmp_path / "page.md"
    old = "### Second\n\nold\n\nMeasured in 120 s.\n\n"
    page.write_text(f"before\n{everything.BEGIN}\n\n{old}{everything.END}\nafter\n")

    def fails():
        raise subprocess.CalledProcessError(1, "benchmark")

    def stops():
        raise KeyboardInterrupt

    sections = {"First": lambda: "one", "Second": fails, "Third": lambda: "three", "Fourth": stops}
    monkeypatch.setattr(everything, "SECTIONS", sections)
    monkeypatch.setattr(everything, "PAGE", page)
    monkeypatch.setattr(everything, "machine", lambda: "Measured here.")
    monkeypatch.setattr(sys, "argv", ["everything.py"])
    with pytest.raises(SystemExit, match="3 of 4 sections"):
        everything.main()
    text = page.read_text()
    assert [part.split("\n")[0] for part in text.split("### ")[1:]] == ["First", "Second", "Third"]
    assert old in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "First (1 of 4; some 14 min left)" in capsys.readouterr().err  # three guesses of 4 minutes, and 2
    monkeypatch.setattr(sys, "argv", ["everything.py", "Third", "Second"])
    with pytest.raises(SystemExit, match="failed: Second"):
        everything.main()
    monkeypatch.setattr(sys, "argv", ["everything.py", "Fifth"])
    with pytest.raises(SystemExit, match="no section 'Fifth'"):
        everything.main()


def test_the_cells_that_are_timed_are_runs():
    from cells import our_run
    from overhead import laptop_run

    assert laptop_run(4).model_shape.layers[0].qk_rank == 4
    assert our_run((8, 1, 1)).model_shape.layers[0].heads == 8


def test_a_table_of_conversions_goes_on_and_says_the_same_again(tmp_path, capsys, monkeypatch):
    """One budget of a small model: each way once, and from its folders again."""
    pytest.importorskip("transformers")
    import conversions

    from headwise.shape import AttentionShape
    from helpers.small_models import saved, with_tokenizer

    old = AttentionShape.parse("w64-h8-r8-g4")
    assert [list(conversions.ways(old, share)) for share in (0.75, 0.5, 0.25)] == [
        ["--per-layer", "c44-p4", "r6", "r4-v8"],
        ["g2", "--per-layer", "c28-p4", "r4"],
        ["g1", "c12-p4", "r2"],
    ]
    saved("llama", tmp_path / "model")
    text = with_tokenizer(tmp_path / "model")
    text.write_text(" ".join(text.read_text() for _ in range(40)))
    words = ["", str(tmp_path / "model"), str(text), "--out", str(tmp_path / "out"), "--heal", "2steps", "--kv", "50%"]
    monkeypatch.setattr(sys, "argv", words)
    conversions.main()
    table = capsys.readouterr().out
    rows = [row.split(" | ") for row in table.splitlines() if row.startswith("| `")]
    assert [row[0] for row in rows] == ["| `g1`", "| `c18-p6`", "| `r6`"]
    assert all(row[1] == "50 %" and all("%" in cell for cell in row[2:]) for row in rows)
    conversions.main()
    assert capsys.readouterr().out == table
