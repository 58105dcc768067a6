"""Pre-training as a run's beginning: what is carried over, that it is one run with one result, and what is refused."""

import pytest
import torch

from headwise.data.tables import SPECIAL
from headwise.options import preset
from headwise.spec import SpecError
from headwise.tasks import load_task
from headwise.training import pretrained
from headwise.training import resume as checkpoint
from headwise.training.loop import Interrupted, build_model, train_run
from headwise.training.run import Recipe, Run

MASKED = {"name": "text", "objective": "masked", "context": 16}
OPINIONS = {"name": "glue", "tokenizer": "bytes", "length": 16}


@pytest.fixture(scope="module", autouse=True)
def corpus(tmp_path_factory):
    """A short text of its own: the standard library's takes longer to read than all of this to train."""
    file = tmp_path_factory.mktemp("text") / "text.txt"
    file.write_text("".join(f"line {number} of a text about {number % 7} things\n" for number in range(4000)))
    MASKED["source"] = str(file)


def tuned_run(**changes):
    """Fine-tuning after a pre-training; dropout, so that what is drawn between the two would be seen."""
    options = preset(
        "bert", norm_place="pre", final_norm=True, vocab=259, context=16, head="classes", classes=2, dropout=0.1
    )
    begin = {"name": "pretrained", "run": {"task": MASKED, "steps": 6}}
    given = {"task": OPINIONS, "shape": "w8-h2-L2", "options": options, "begin": begin, "steps": 6, "seed": 3}
    return Run(**{**given, "recipe": Recipe(batch=32), "evaluations": 1, **changes})


@pytest.fixture(scope="module")
def alone(corpus):
    """The result that every other way of doing the run must give."""
    return train_run(tuned_run())


def same(result, other):
    assert other.status == "done", other.message
    assert (result.metrics, result.curve) == (other.metrics, other.curve)


# ---- what is carried over ------------------------------------------------------------------------------------------


def test_a_byte_reads_the_same_before_and_after():
    """Carried over and read as the new task writes it, a text gives the hidden states of the pre-trained model."""
    run = tuned_run()
    before = pretrained.earlier(run)
    old = build_model(before, load_task(before.task)).eval()
    new = build_model(run, load_task(run.task)).eval()
    load_task(run.task).carry_over(old.state_dict(), new)
    new.bert.segments.weight.data.zero_()  # the pre-training knows no segments
    text = torch.tensor([list(b"sixteen bytes ok")])
    for model in (old, new.bert):
        model.masked_head = model.head = None
    assert torch.equal(old(text), new.bert(text + SPECIAL))


def test_what_is_no_text_begins_anew():
    run = tuned_run()
    before = pretrained.earlier(run)
    fresh, new = (build_model(run, load_task(run.task)).bert for _ in range(2))
    old = build_model(before.replace(seed=9), load_task(before.task))
    load_task(run.task).carry_over(old.state_dict(), new)
    assert torch.equal(new.embedding.weight[:SPECIAL], fresh.embedding.weight[:SPECIAL])
    assert torch.equal(new.embedding.weight[SPECIAL:], old.embedding.weight[:256])
    for name in ("pooler.weight", "head.weight", "segments.weight"):
        assert torch.equal(new.state_dict()[name], fresh.state_dict()[name])


# ---- one run -------------------------------------------------------------------------------------------------------


def test_the_pre_training_is_a_run_of_its_own():
    run = tuned_run()
    before = pretrained.earlier(run)
    assert (before.shape, before.seed, before.recipe, before.steps) == (run.shape, 3, run.recipe, 6)
    assert (before.options.head, before.options.vocab, before.options.dropout) == ("mlm", 257, 0.1)
    assert before.task["content"], "the weights that are kept are of this very text"
    other = {"task": MASKED, "steps": 6, "seed": 5, "recipe": {"batch": 8}}
    changed = pretrained.earlier(tuned_run(begin={"name": "pretrained", "run": other}))
    assert (changed.seed, changed.recipe, changed.shape) == (5, Recipe(batch=8), before.shape)


def test_it_changes_what_is_learned_and_the_key(alone):
    assert tuned_run(begin={}).key != tuned_run().key
    assert train_run(tuned_run(begin={})).metrics != alone.metrics


def test_kept_weights_change_nothing(alone, tmp_path):
    same(alone, train_run(tuned_run(), keep_weights=tmp_path))
    kept = tmp_path / f"{pretrained.earlier(tuned_run()).key}.safetensors"
    assert kept.exists()
    written = kept.stat().st_mtime_ns
    same(alone, train_run(tuned_run(), keep_weights=tmp_path))
    assert kept.stat().st_mtime_ns == written, "it was trained again"


def test_weights_kept_by_the_pre_training_itself_are_found(alone, tmp_path):
    before = pretrained.earlier(tuned_run())
    assert train_run(before, keep_weights=tmp_path).status == "done"
    same(alone, train_run(tuned_run(), keep_weights=tmp_path))


def test_damaged_weights_are_made_again(alone, tmp_path):
    kept = tmp_path / f"{pretrained.earlier(tuned_run()).key}.safetensors"
    train_run(tuned_run(), keep_weights=tmp_path)
    kept.write_bytes(kept.read_bytes()[:-7] + b"damaged")
    same(alone, train_run(tuned_run(), keep_weights=tmp_path))
    assert checkpoint.read(kept) is not None


@pytest.mark.parametrize("steps_done", [3, 9])
def test_killed_in_either_training_it_goes_on(alone, tmp_path, steps_done):
    asked = []

    def stop():
        asked.append(1)
        return len(asked) == steps_done

    with pytest.raises(Interrupted):
        train_run(tuned_run(), checkpoints=tmp_path, should_stop=stop)
    assert list(tmp_path.glob("*.safetensors"))
    seen = []
    same(alone, train_run(tuned_run(), checkpoints=tmp_path, should_stop=lambda: bool(seen.append(1))))
    assert len(seen) == 12 - steps_done, "what was done is done again"
    assert not list(tmp_path.iterdir())


def test_a_pre_training_that_diverges_is_a_run_that_diverges():
    wild = {"task": MASKED, "steps": 6, "recipe": {"batch": 32, "learning_rate": 1e30, "warm_up": 0.0}}
    assert train_run(tuned_run(begin={"name": "pretrained", "run": wild})).status == "diverged"


# ---- what is refused -----------------------------------------------------------------------------------------------


def begin(run):
    before = pretrained.earlier(run)
    weights = build_model(before, load_task(before.task)).state_dict()
    load_task(run.task).carry_over(weights, build_model(run, load_task(run.task)))


@pytest.mark.parametrize(
    ("text", "rest", "told"),
    [
        ({"objective": "next"}, {}, "objective 'masked'"),
        ({"tokenizer": "bpe"}, {}, "tokenizer 'bytes'"),
        ({"context": 8}, {}, "places.weight is \\(8, 8\\), and this run needs \\(16, 8\\)"),
        ({}, {"shape": "w8-h2-L1"}, "body.blocks.1"),
        ({}, {"shape": "w16-h2-L2"}, "must be the same in both"),
        ({}, {"begin": {"name": "random-heads"}}, "from nothing"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(text, rest, told):
    run = tuned_run(begin={"name": "pretrained", "run": {"task": MASKED | text, "steps": 2, **rest}})
    with pytest.raises(SpecError, match=told):
        begin(run)


def test_an_unfinished_description_is_refused():
    with pytest.raises(SpecError, match="a pre-training is"):
        begin(tuned_run(begin={"name": "pretrained"}))
    with pytest.raises(SpecError, match="tokenizer 'bytes'"):
        begin(tuned_run(task=OPINIONS | {"tokenizer": "bpe"}))


def test_a_task_that_knows_no_pre_training_says_so():
    digits = {"name": "images", "patch": 4}
    with pytest.raises(SpecError, match="'images' cannot begin with a pre-training"):
        pretrained.earlier(tuned_run(task=digits))
