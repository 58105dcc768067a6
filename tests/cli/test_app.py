"""The command line: what a stranger types, and what comes back."""

import pytest

from headwise.cli.app import PANELS, known_shapes
from headwise.cli.terminal import bar
from headwise.known import KNOWN
from helpers.commands import as_json, headwise


@pytest.mark.parametrize("words", [[], ["demo"], ["cost"], ["shapes"], ["study", "run"], ["claims"], ["train"]])
def test_help_fits_and_shows_an_example(words):
    done = headwise(*words, "--help")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert ("Example: headwise" if words else "Start with: headwise demo") in done.stdout


def test_cost():
    found = as_json("cost", "gpt2")
    assert found["shape"] == "w768-h12-L12"
    assert found["parameters"]["total"] == 124_439_808
    assert set(found["flops"]) >= {"train_per_token", "prefill", "decode"}
    assert found["kv_bytes_per_token"] == 12 * 2 * 768 * 2
    assert "124,439,808" in headwise("cost", "gpt2").stdout


def test_cost_of_a_shape_made_a_model():
    found = as_json("cost", "w512-h8-L6", "--family", "llama", "--vocab", "1000", "--context", "64")
    assert found["parameters"]["embeddings"] == found["parameters"]["head"] == 1000 * 512
    assert found["context"] == 64
    image = as_json("cost", "w768-h12-L12", "--family", "vit")
    assert image["parameters"]["total"] == KNOWN["vit-b16"].published


def test_several_models_are_columns():
    rows = as_json("cost", "gpt2", "w1792-h1-L28", "--context", "32k", "--batch", "8", "--dtype", "fp8")
    assert [row["context"] for row in rows] == [32_768, 32_768]
    assert rows[0]["kv_bytes"] == 8 * 32_768 * 12 * 2 * 768
    assert (rows[0]["kernels"]["warning"], rows[1]["kernels"]["kernels"]) == ("", [])
    table = headwise("cost", "gpt2", "w1792-h1-L28").stdout
    assert "heads of 1792 are beyond every flash kernel" in " ".join(table.split())
    assert all(len(line) <= 80 for line in table.splitlines())


def test_experts_count_in_all_and_by_token():
    """As DeepSeek's papers say: 671 B and 37 B."""
    found = as_json("cost", "deepseek-v3")
    assert (round(found["parameters"]["total"] / 1e9), int(found["parameters_active"] / 1e9)) == (671, 37)
    assert "experts" in headwise("cost", "deepseek-v2-lite").stdout


def test_shapes():
    rows = as_json("shapes", "nanochat-d28", "--hold", "params")
    found = {row["heads"]: row for row in rows}
    assert {1: 1792, 4: 448, 7: 256, 14: 128}.items() <= {h: r["qk_rank"] for h, r in found.items()}.items()
    assert all(row["difference"] == 0 for row in rows)
    expected = {"shape", "heads", "qk_rank", "v_rank", "kv_heads", "depth", "parameters", "difference"}
    assert expected <= set(rows[0])


@pytest.mark.parametrize("hold", ["params", "flops", "kv"])
def test_shapes_fit_the_terminal(hold):
    done = headwise("shapes", "qwen3-0.6b", "--hold", hold, "--vary", "heads,kv_heads", "--tolerance", "5%")
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "more: --limit" in headwise("shapes", "gpt2", "--vary", "heads,qk_rank", "--limit", "5").stdout


def test_shapes_of_equal_time_are_measured():
    rows = as_json("shapes", "w32-h4-L2", "--hold", "time", "--context", "16")
    assert [row["heads"] for row in rows] == [1, 2, 4, 8, 16, 32]
    assert next(row for row in rows if row["heads"] == 4)["time"] == 1.0
    assert all(row["time"] * row["steps"] == pytest.approx(1) for row in rows)
    assert "fits the time" in headwise("shapes", "w32-h4-L2", "--hold", "time", "--context", "16").stdout


def test_known_models():
    rows = as_json("shapes", "--known")
    assert {row["name"] for row in rows} == set(KNOWN)
    table = headwise("shapes", "--known").stdout
    assert all(name in table for name in KNOWN)
    assert all(len(line) <= 80 for line in table.splitlines())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cost", "w512-h7"], "nearest that works: w512-h8"),
        (["cost", "gtp2"], "gpt2"),
        (["cost", "w512-h8", "--family", "rwkv"], "no family 'rwkv'"),
        (["cost", "w512-h8", "--family", "llama"], "needs vocab"),
        (["cost", "w512-h8", "--vocab", "10"], "--vocab needs a --family"),
        (["cost", "gpt2", "--family", "llama"], "gpt2 has a family of its own"),
        (["cost", "gpt2", "--dtype", "int3"], "no dtype 'int3'"),
        (["cost", "gpt2", "--context", "-5"], "context"),
        (["shapes"], "give a shape or a known model"),
        (["shapes", "gpt2", "--hold", "money"], "cannot hold 'money'"),
        (["shapes", "gpt2", "--vary", "colour"], "cannot vary 'colour'"),
        (["shapes", "gpt2", "--vary", ""], "vary"),
        (["shapes", "gpt2", "--tolerance", "lots"], "cannot read the tolerance"),
        (["shapes", "w8-h4x1,2x1", "--hold", "time"], "differ"),
        (["demo", "--seeds", "0"], "at least one seed"),
        (["dmeo"], "No such command"),
    ],
)
def test_a_wrong_command_is_one_sentence_and_exit_code_2(words, message):
    done = headwise(*words, check=False)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert done.stdout == ""


def test_demo_says_what_it_would_do():
    plan = as_json("demo", "--dry-run")
    assert plan["shapes"] == ["w16-h1", "w16-h2", "w16-h4", "w16-h8", "w16-h16"]
    assert plan["runs"] == 10
    assert plan["seconds"] > 0


def test_a_short_demo_goes_the_whole_way(tmp_path):
    """Two processes, a table, a verdict and a chart; too short to learn anything, and it says so."""
    done = headwise("demo", "--steps", "3", "--seeds", "1", "--out", str(tmp_path / "out"))
    assert "No cliff after 3 steps" in " ".join(done.stdout.split())
    assert (tmp_path / "out" / "rank-cliff.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "out" / "rank-cliff.html").read_text()
    assert '<script src="http' not in page


def test_version_and_short_help():
    import headwise as package

    assert headwise("--version").stdout == f"headwise {package.__version__}\n"
    assert headwise("-h").stdout == headwise("--help").stdout
    assert "Example: headwise cost" in headwise("cost", "-h").stdout


def test_every_command_has_its_panel():
    """In the help the panels come in the order of what people want, and nothing is left over."""
    text = headwise("--help").stdout
    titles = [title for title in PANELS if f"─ {title} ─" in text]
    assert titles == list(PANELS)
    assert [text.index(title) for title in titles] == sorted(text.index(title) for title in titles)
    assert "─ Other ─" not in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["shpaes"], "Did you mean 'shapes'"),
        (["study", "show", "rank-clif"], "did you mean rank-cliff?"),
        (["tasks", "txet"], "did you mean text?"),
        (["cost", "gtp2"], "nearest that works: gpt2"),
        (["explore", "gtp2"], "nearest that works: gpt2"),
    ],
)
def test_what_was_meant_is_guessed(words, message):
    done = headwise(*words, check=False)
    assert done.returncode == 2
    assert message in done.stderr


def test_known_models_complete_in_a_shell():
    assert known_shapes("llama") == ["llama-3.2-1b", "llama-3-8b"]


def test_explore_writes_a_page(tmp_path):
    page = tmp_path / "deep" / "x.html"
    found = as_json("explore", "gpt2", "w768-h6-L12", "--no-ledger", "--out", str(page))
    assert found == {"page": str(page), "shapes": ["gpt2", "w768-h6-L12"], "claims": 0, "opened": False}
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert f"wrote {tmp_path}" in headwise("explore", "--no-ledger", "--no-browser", "--out", str(tmp_path)).stdout
    assert (tmp_path / "index.html").exists()


def test_progress_is_plain_lines_where_it_is_piped(capsys):
    assert list(bar("studies")(range(25))) == list(range(25))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "studies: 3 of 25"
    assert lines[-1] == "studies: 25 of 25"
    assert len(lines) == 10


def test_shapes_to_compare_are_arguments():
    settings = ("--task", "recall", "--budget", "1h", "--steps", "20", "--seeds", "3", "--dry-run", "--json")
    named = as_json("compare", "--base", "w16-h2-L1", "--arms", "w16-h1-L1", *settings)
    given = as_json("compare", "w16-h2-L1", "w16-h1-L1", *settings)
    assert [arm["shape"] for arm in given["arms"]] == [arm["shape"] for arm in named["arms"]]


def test_an_old_name_of_an_option_says_the_new_one():
    done = headwise("train", "--task", "chess", "--batch", "8", check=False)
    assert "--batch is now --batch-size" in done.stderr
    assert "is now" not in headwise("train", "--task", "chess", "--batch-size", "8", check=False).stderr


def test_several_bases_at_once():
    rows = as_json("shapes", "gpt2", "w512-h8-L6", "--vary", "heads")
    assert rows == [as_json("shapes", name, "--vary", "heads") for name in ("gpt2", "w512-h8-L6")]
    table = headwise("shapes", "gpt2", "w512-h8-L6", "--limit", "3").stdout
    assert [base in table for base in ("base w768-h12-L12", "base w512-h8-L6")] == [True, True]
    done = headwise("shapes", "gpt2", "w512-h8-L6", "--hold", "time", check=False)
    assert (done.returncode, "one base at a time" in done.stderr) == (2, True)


def test_a_path_that_is_not_there_is_called_a_path():
    for command in ("cost", "shapes", "suggest"):
        done = headwise(command, "no/such/folder", check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("headwise: there is no configuration 'no/such/folder'")
