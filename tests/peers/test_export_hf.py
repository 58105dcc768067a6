"""headwise export-hf: transformers loads what was written, natively where it can, and gives the same logits."""

import json
from pathlib import Path

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from typer.testing import CliRunner

from headwise.checkpoints import open_checkpoint
from headwise.checkpoints.export import Exported, export_hf
from headwise.checkpoints.inspection import inspect
from headwise.cli.app import app
from headwise.models import build
from headwise.options import ModelOptions, preset
from headwise.store.store import Store
from headwise.training import resume as checkpoint
from headwise.training.loop import train_run
from headwise.training.run import Run
from helpers.copying import SINGLE, same

VOCAB, TOKENS, BASE = 61, 10, 500.0
LLAMA = preset("llama", vocab=VOCAB, rope_base=BASE)
BERT = preset("bert", vocab=VOCAB, context=16)


def exported(folder: Path, shape: str, options: ModelOptions) -> tuple[nn.Module, Exported]:
    """A model of ours with weights far from their start, written twice: as a run keeps them, and for transformers."""
    model = build(shape, options).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(
                0.3 * torch.randn_like(parameter) * (1 if parameter.dim() < 2 else parameter.shape[-1] ** -0.5)
            )
    facts = {"run": {"shape": shape, "options": options.model_dump()}}
    checkpoint.write(folder / "kept.safetensors", model.state_dict(), facts)
    return model, export_hf(folder / "kept.safetensors", folder / "out")


def loaded(kind, folder: Path, **options) -> nn.Module:
    """No weight is missing, none is left over."""
    model, info = kind.from_pretrained(folder / "out", output_loading_info=True, **options)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


def tokens() -> Tensor:
    return torch.randint(1, VOCAB, (2, TOKENS))


# ---- natively ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "options", "kind"),
    [
        ("w48-h4-r16-g2-L2-m80", LLAMA, hf.LlamaForCausalLM),
        ("w48-h4-L2-m80", LLAMA.replace(tied=True, bias="all", context=32), hf.LlamaForCausalLM),
        ("w48-h4-L2-m80", LLAMA.replace(rope_scaling="llama3:factor=4,context=32"), hf.LlamaForCausalLM),
        ("w48-h4-L2-m80", LLAMA.replace(rope_scaling="yarn:factor=4,context=32,whole=false"), hf.LlamaForCausalLM),
        ("w48-h4-L2-m80", LLAMA.replace(rope_scaling="linear:factor=3", qk_norm="rms"), hf.Qwen3ForCausalLM),
        ("w48-h4-r16-g2-L2-m80", LLAMA.replace(qk_norm="rms", norm_eps=0.01), hf.Qwen3ForCausalLM),
        ("w48-h4-r24-g2-L2", preset("nanochat", vocab=VOCAB, softcap=2.0, rope_base=BASE), hf.NanoChatForCausalLM),
        ("w48-h4-r20-v10-c16-p8-L2-m80", LLAMA.replace(norm_eps=1e-6), hf.DeepseekV3ForCausalLM),
        ("w48-h4-r20-v10-c16-q24-p8-L2-m80", LLAMA.replace(norm_eps=1e-6, tied=True), hf.DeepseekV3ForCausalLM),
    ],
)
@torch.no_grad()
def test_decoders(tmp_path, shape, options, kind):
    model, found = exported(tmp_path, shape, options)
    assert (found.form, found.architecture) == ("native", kind.__name__)
    peer = loaded(hf.AutoModelForCausalLM, tmp_path)
    assert type(peer) is kind
    given = tokens()
    same(peer(given).logits, model(given), SINGLE)
    assert torch.equal(peer.generate(given, max_new_tokens=6, do_sample=False), model.generate(given, 6))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (BERT, hf.BertModel),
        (BERT.replace(head="mlm"), hf.BertForMaskedLM),
        (BERT.replace(head="mlm", pooler=False, activation="gelu-tanh", norm_eps=0.01), hf.BertForMaskedLM),
        (BERT.replace(head="classes", classes=5), hf.BertForSequenceClassification),
    ],
)
@torch.no_grad()
def test_bert(tmp_path, options, kind):
    model, found = exported(tmp_path, "w32-h4-L2-m48", options)
    assert (found.form, found.architecture) == ("native", kind.__name__)
    given, segments = tokens(), torch.randint(2, (2, TOKENS))
    real = torch.arange(TOKENS) < torch.tensor([[TOKENS], [6]])
    output = loaded(kind, tmp_path)(given, attention_mask=real.long(), token_type_ids=segments)
    expected = model(given, segments, real)
    same(output.last_hidden_state if kind is hf.BertModel else output.logits, expected, SINGLE)


# ---- with code of its own ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "options", "why"),
    [
        ("w48-h4-r16-v8-g2-L2-m80", LLAMA, "Llama: v_rank is not qk_rank"),
        ("w48-h4x1,2x1-m80", LLAMA, "Llama: layers differ"),
        ("w48-h4-r16-c16-p8-L2", LLAMA, "DeepSeek-V3: norm_eps is 1e-05"),
        ("w48-h4-r16-p8-L2", LLAMA, "Llama: not all of a head turns"),
        ("w48-h4-r24-v12-L2", preset("nanochat", vocab=VOCAB), "NanoChat: v_rank is not qk_rank"),
        ("w48-h4-r24-L2", preset("gpt2", vocab=VOCAB, context=32), "Llama: positions is 'learned'"),
    ],
)
@torch.no_grad()
def test_decoders_of_other_shapes(tmp_path, shape, options, why):
    model, found = exported(tmp_path, shape, options)
    assert found.form == "custom"
    assert why in found.why
    peer = loaded(hf.AutoModelForCausalLM, tmp_path, trust_remote_code=True)
    given = tokens()
    same(peer(given).logits, model(given), 1e-6)
    for cached in (True, False):
        written = peer.generate(given, max_new_tokens=6, do_sample=False, use_cache=cached)
        assert torch.equal(written, model.generate(given, 6))
    assert peer(given, labels=given).loss > 0
    padded, real = torch.cat([torch.zeros(2, 3, dtype=torch.long), given], dim=1), torch.ones(2, 3 + TOKENS).long()
    padded[1, 3:6], real[0, :3], real[1, :6] = 0, 0, 0  # on the left, of unequal length
    output = peer(padded, attention_mask=real).logits
    same(output[0, 3:], model(given[:1])[0], 1e-6)
    same(output[1, 6:], model(given[1:, 3:])[0], 1e-6)
    for cached in (True, False):
        written = peer.generate(padded, attention_mask=real, max_new_tokens=6, do_sample=False, use_cache=cached)
        assert torch.equal(written[0, 3:], model.generate(given[:1], 6)[0])
        assert torch.equal(written[1, 6:], model.generate(given[1:, 3:], 6)[0])
    assert inspect(open_checkpoint(tmp_path / "out")).family == "headwise"


@torch.no_grad()
def test_other_models(tmp_path):
    for name, shape, options, kind, given in (
        ("a", "w32-h4-r16-L2", BERT.replace(head="mlm"), hf.AutoModelForMaskedLM, {"input_ids": tokens()}),
        (
            "b",
            "w32-h4-r16-L2",
            preset("vit", image=12, patch=4, classes=5),
            hf.AutoModelForImageClassification,
            {"pixel_values": torch.randn(2, 3, 12, 12)},
        ),
        ("c", "w32-h4-L2", preset("encoder"), hf.AutoModel, {"inputs_embeds": torch.randn(2, 7, 32)}),
    ):
        folder = tmp_path / name
        folder.mkdir()
        model, found = exported(folder, shape, options)
        assert (found.form, found.architecture) == ("custom", "HeadwiseModel")
        output = loaded(kind, folder, trust_remote_code=True)(**given)
        same(output[0], model(*given.values()), 1e-6)


VERSION_0_1 = '''"""This model is headwise's: pip install headwise."""

from headwise.hf_model import HeadwiseConfig, HeadwiseForCausalLM

__all__ = ["HeadwiseConfig", "HeadwiseForCausalLM"]
'''


@torch.no_grad()
def test_folders_of_version_0_1_still_load(tmp_path):
    """The code of an exported folder as version 0.1 wrote it, letter by letter."""
    model, _ = exported(tmp_path, "w48-h4-r16-v8-g2-L2-m80", LLAMA)
    file = tmp_path / "out" / "modeling_headwise.py"
    assert file.read_text() == VERSION_0_1
    file.write_text(VERSION_0_1)
    given = tokens()
    same(loaded(hf.AutoModelForCausalLM, tmp_path, trust_remote_code=True)(given).logits, model(given), 1e-6)


# ---- the command ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, str, str]:
    """A store with two runs of text, the first of which kept its weights."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 400)
    from headwise.tasks import parse

    task = parse(f"text:{folder / 'text.txt'}")
    runs = [Run(task=task.spec(), shape="w16-h2-L1", options=task.default_options(), steps=1, seed=s) for s in (0, 1)]
    with Store(folder / "store.db") as held:
        for run in runs:
            kept = folder / "store.files" / "weights" if run.seed == 0 else None
            result = train_run(run, keep_weights=kept)
            assert result.status == "done", result.message
            held.add(run, result)
    return folder / "store.db", runs[0].key, runs[1].key


def command(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["export-hf", *map(str, words)])
    return done.exit_code, done.output if done.exception is None else str(done.exception)


@torch.no_grad()
def test_a_run_by_its_key(trained, tmp_path):
    store, key, _ = trained
    code, printed = command(key[:8], "--out", tmp_path / "out", "--store", store, "--json")
    assert code == 0, printed
    told = json.loads(printed)
    assert (told["shape"], told["form"]) == ("w16-h2", "native")
    assert told["why"] == "it is a NanoChat"
    peer = loaded(hf.AutoModelForCausalLM, tmp_path)
    reader = open_checkpoint(store.parent / "store.files" / "weights" / f"{key}.safetensors")
    model = build("w16-h2-L1", reader.options)
    model.load_state_dict({name: reader.weights.stored(name) for name in reader.weights})
    given = torch.randint(1, 50, (2, TOKENS))
    same(peer(given).logits, model(given), SINGLE)


def test_it_says_which_it_was(tmp_path):
    (tmp_path / "a").mkdir()
    exported(tmp_path / "a", "w48-h4-r16-g2-L2-m80", LLAMA)
    code, printed = command(tmp_path / "a" / "kept.safetensors", "--out", tmp_path / "llama")
    assert code == 0
    assert "it is a Llama, so LlamaForCausalLM.from_pretrained" in " ".join(printed.split())
    (tmp_path / "b").mkdir()
    exported(tmp_path / "b", "w48-h4-r16-v8-L2-m80", LLAMA)
    code, printed = command(tmp_path / "b" / "kept.safetensors", "--out", tmp_path / "other")
    assert "trust_remote_code=True" in " ".join(printed.split())


def test_what_cannot_be_exported_is_a_sentence(trained, tmp_path):
    store, key, other = trained
    out = ("--out", tmp_path / "out", "--store", store)
    assert "kept no weights" in command(other, *out)[1]
    assert "no file 'nothing' here, and no run nothing" in command("nothing", *out)[1]
    assert "not an empty folder" in command(key, "--out", store.parent, "--store", store)[1]
    model = hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=1, n_head=4))
    model.save_pretrained(tmp_path / "gpt2")
    assert "is of family gpt2" in command(tmp_path / "gpt2", *out)[1]
    state = build("w48-h4-L1", LLAMA).state_dict() | {"readout.weight": torch.zeros(2)}
    facts = {"run": {"shape": "w48-h4-L1", "options": LLAMA.model_dump()}}
    checkpoint.write(tmp_path / "task.safetensors", state, facts)
    assert "'readout.weight' is missing, added or of another size" in command(tmp_path / "task.safetensors", *out)[1]
    assert not (tmp_path / "out").exists()
