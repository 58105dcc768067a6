"""A model and its recipe as people ask for them: what is said is done, and said back in words."""

import math

import pytest

import headwise as hw
from headwise.options import PRESETS, preset
from headwise.spec import SpecError
from headwise.tasks import parse
from headwise.training.asked import asked_options, asked_recipe, model_in_words, read_options, recipe_in_words
from headwise.training.run import Recipe
from helpers.commands import as_json, headwise

RECALL = "recall,vocab=64,pairs=2,length=16"
DECODERS = [name for name, own in PRESETS.items() if own.get("family") == "decoder"]


def asked(family="", **options):
    task = parse(RECALL)
    return asked_options(task.default_options(), task.tokens, family, options)


@pytest.mark.parametrize("family", [name for name in PRESETS if name != "encoder"])
def test_a_family_begins_as_its_original(family):
    assert PRESETS[family]["init"] == family


@pytest.mark.parametrize("family", DECODERS)
def test_a_family_is_the_preset_with_what_the_data_decides(family):
    model = asked(family)
    assert model == preset(family, vocab=64, context=16)


def test_the_usual_family_by_name_is_the_usual_model():
    assert asked("nanochat") == asked() == parse(RECALL).default_options()
    task = parse("listops")
    assert asked_options(task.default_options(), task.tokens, "bert", {}).head == "classes"


def test_options_go_over_the_family():
    assert asked("llama", tied=True, norm="layer") == preset("llama", vocab=64, context=16, tied=True, norm="layer")


@pytest.mark.parametrize(
    ("pairs", "message"),
    [(["norm"], "key=value"), (["colour=red"], "key=value"), (["vocab=12"], "follows from the data")],
)
def test_options_that_make_no_sense_are_refused(pairs, message):
    with pytest.raises(SpecError, match=message):
        asked("llama", **read_options(pairs))


def test_options_are_read_as_what_they_are():
    assert read_options(["tied=true", "norm=rms", "dropout=0.1"]) == {"tied": True, "norm": "rms", "dropout": 0.1}


def test_a_recipe_says_what_is_usual_where_nothing_is_said():
    assert asked_recipe({"clip": None}, batch=8) == Recipe(warm_up=0.1, clip=1.0, batch=8)
    assert asked_recipe({"clip": 0.0, "betas": (0.8, 0.9)}).clip == 0.0


def test_words_name_the_family_and_each_difference():
    words = model_in_words(asked("gpt2", tied=False, dropout=0.1))
    assert words.startswith("gpt2-style with dropout=0.1, tied=false: LayerNorm (pre-norm), learned positions")
    assert words.endswith("initialised as gpt2")
    assert model_in_words(asked("qwen3")).startswith("qwen3-style: ")


def test_words_name_the_whole_recipe():
    words = recipe_in_words(Recipe(learning_rate=0.003, final_learning_rate=0.1, clip=1.0, batch=8), tokens=64)
    assert "AdamW (betas 0.9, 0.95)" in words
    assert "cosine to 10% of it" in words
    assert "batch of 8 × 64 tokens" in words


SAID = ["--family", "gpt2", "--option", "tied=false", "--optimizer", "muon", "--weight-decay", "0.1"]
SAID += ["--warm-up", "0.2", "--clip", "0.5", "--betas", "0.8,0.9", "--schedule", "linear", "--final-lr", "0.1"]


def test_everything_that_defines_a_run_can_be_said(tmp_path):
    common = ["--task", RECALL, "--context", "0", "--store", tmp_path / "runs.db"]
    said = as_json("train", *common, "--shape", "w8-h2", "--steps", "2", "--batch-size", "4", *SAID)
    run = hw.find_run(said["key"], store=tmp_path / "runs.db").run
    assert run.options == preset("gpt2", vocab=64, context=16, tied=False)
    wanted = {"weight_decay": 0.1, "warm_up": 0.2, "clip": 0.5, "betas": (0.8, 0.9), "final_learning_rate": 0.1}
    assert run.recipe == Recipe(optimizer="muon", learning_rate=0.002, schedule="linear", batch=4, **wanted)
    assert "Muon" in said["recipe"]
    assert said["model"].startswith("gpt2-style with tied=false")


def test_context_and_tokenizer_are_the_tasks(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 100)
    words = ["--task", f"text:{text}", "--context", "8", "--tokenizer", "bpe", "--shape", "w8-h2", "--steps", "1"]
    said = as_json("train", *words, "--batch-size", "4", "--store", tmp_path / "runs.db")
    run = hw.find_run(said["key"], store=tmp_path / "runs.db").run
    assert (run.task["context"], run.task["tokenizer"]) == (8, "bpe")
    done = headwise("train", "--task", RECALL, "--tokenizer", "bpe", check=False)
    assert done.returncode
    assert "tokenizer" in done.stderr


def test_a_comparison_is_asked_again_with_all_that_was_said(tmp_path):
    words = ["compare", "--task", RECALL, "--base", "w8-h2", "--arms", "w8-h1", "--steps", "2", "--seeds", "2"]
    words += ["--batch-size", "4", "--lr", "0.01", *SAID, "--store", tmp_path / "runs.db", "--out", tmp_path]
    said = as_json(*words)
    assert said["plan"]["model"].startswith("gpt2-style with tied=false")
    again = said["rerun"].split()
    assert as_json(*again[1:], "--out", tmp_path)["runs"]["trained"] == 0


def test_python_takes_options_and_recipe(tmp_path):
    settings = {"steps": 2, "seeds": 2, "batch_size": 4, "learning_rates": [0.01], "store": tmp_path / "runs.db"}
    answer = hw.compare(RECALL, "w8-h2", ["w8-h1"], family="llama", options={"tied": True}, clip=0.0, **settings)
    run = hw.find_run(answer.rows[0].key, store=tmp_path / "runs.db").run
    assert run.options == preset("llama", vocab=64, context=16, tied=True)
    assert run.recipe.clip == 0
    assert math.isfinite(answer.rows[0].metrics["error"])
