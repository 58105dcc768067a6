"""The commands about tasks, as a user types them."""

import json
import shlex

from headwise.tasks import parse
from helpers.commands import headwise

OWN = """
from headwise.tasks.nearest_neighbor import NearestNeighbor

class Mine(NearestNeighbor):
    name = "mine"

TASK = Mine
"""


def test_every_task_is_listed_with_its_trivial_error():
    found = json.loads(headwise("tasks", "--json").stdout)
    assert {"text", "images", "recall", "listops", "pathfinder", "in-context", "glue", "lra"} < {
        t["name"] for t in found
    }
    assert all(task["trivial_error"] > 0 for task in found)


def test_one_task_shows_its_options_and_baselines():
    said = headwise("tasks", "nearest-neighbor,points=4").stdout
    assert "points" in said
    assert "4" in said
    assert "headwise train --task nearest-neighbor" in said
    assert headwise("tasks", "--baselines", check=False).returncode == 2


def test_the_command_that_is_printed_trains_on_the_same_task(tmp_path):
    """Whatever the source is called; from a terminal that is narrower than the command."""
    folder = tmp_path / "a folder with spaces, and a name that is longer than the terminal is wide" / "it's here"
    folder.mkdir(parents=True)
    file, own = folder / "my notes.jsonl", folder / "mine.py"
    file.write_text('{"title": "no", "12": "the quick brown fox"}\n' * 2000)
    own.write_text(OWN)
    cache = {"HEADWISE_CACHE": str(tmp_path / "cache")}
    for task in (
        f"{own},points=4,bias=0.5,queries=separate",
        f'text:{file},field="12",context=16,tokenizer=characters',
    ):
        *_, before, command = headwise("tasks", task, **cache).stdout.splitlines()
        program, *words = shlex.split(command)
        assert (before, program, words[:2]) == ("Train on it:", "headwise", ["train", "--task"])
        assert parse(words[2]).spec() == parse(task).spec()
    small = ["--steps", "1", "--batch", "16", "--store", str(tmp_path / "runs.db"), "--json"]
    assert json.loads(headwise(*words, *small, **cache).stdout)["status"] == "done"


def test_a_task_of_ones_own_trains_and_is_found_again(tmp_path):
    file, store = tmp_path / "mine.py", tmp_path / "runs.db"
    file.write_text(OWN)
    command = ["train", "--task", f"{file},dim=8,points=4", "--shape", "w8-h2-m16", "--steps", "20", "--batch", "16"]
    first = json.loads(headwise(*command, "--json", "--store", str(store)).stdout)
    assert first["status"] == "done"
    again = json.loads(headwise(*command, "--json", "--store", str(store)).stdout)
    assert again == first
    elsewhere = tmp_path / "other" / "mine.py"
    elsewhere.parent.mkdir()
    elsewhere.write_text(OWN)
    command[2] = f"{elsewhere},dim=8,points=4"
    assert json.loads(headwise(*command, "--json", "--store", str(store)).stdout)["key"] == first["key"]
    file.write_text(OWN + "\n# changed\n")
    command[2] = f"{file},dim=8,points=4"
    assert json.loads(headwise(*command, "--json", "--store", str(store)).stdout)["key"] != first["key"]


def test_a_text_file_of_ones_own(tmp_path):
    file = tmp_path / "my.txt"
    file.write_text("the quick brown fox jumps over the lazy dog\n" * 2000)
    command = ["train", "--task", f"text:{file},context=32", "--shape", "w16-h2-m32", "--steps", "5", "--batch", "4"]
    said = headwise(*command, "--store", str(tmp_path / "runs.db"), HEADWISE_CACHE=str(tmp_path / "cache")).stdout
    assert "error" in said
    assert "trivial_error" in said


def test_mistakes_are_sentences(tmp_path):
    broken = tmp_path / "broken.py"
    broken.write_text("import nothing_of_this_name")
    for arguments, said in (
        (["train"], "give either a run"),
        (["train", "--task", "chess"], "no task 'chess'"),
        (["train", "--task", str(broken)], "cannot be loaded"),
        (["train", "--task", "text:/no/such/file.txt"], "/no/such/file.txt"),
        (["train", "--task", "recall", "--shape", "w8-h3"], "w8-h3"),
        (["tasks", "recall,pairs=-1"], "pairs"),
    ):
        done = headwise(*arguments, check=False)
        assert done.returncode == 2, arguments
        assert said in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
