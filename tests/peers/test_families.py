"""docs/reference/families.md says what happens: each cell is tried with a small model that transformers writes."""

import copy
import re
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers as hf

import headwise
from headwise.checkpoints import all_readers, open_checkpoint
from headwise.checkpoints.export_targets import TARGETS
from headwise.checkpoints.inspection import inspect
from headwise.checkpoints.swap.saved import PREFIX, auto_classes
from headwise.options import preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from helpers.copying import SINGLE, same
from helpers.small_models import FAMILIES, example, saved, with_tokenizer

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "families.md"
COLUMNS = ("family", "types", "read", "inspect", "swap", "convert", "export")
CONFIGURATIONS = {name: getattr(hf, config) for name, (_, config, *_) in FAMILIES.items()}


def table() -> list[dict[str, str]]:
    lines = PAGE.read_text().split("## Other files")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return [dict(zip(COLUMNS, row, strict=True)) for row in cells[1:]]


def types(row: dict[str, str]) -> list[str]:
    return re.findall(r"`([^`]+)`", row["types"])


BY_TYPE = {kind: row for row in table() for kind in types(row)}


def test_every_type_that_a_reader_knows_is_in_the_table_and_the_first_of_each_row_is_tried():
    known = {kind for reader in all_readers().values() for kind in reader.model_types}
    assert known - {"headwise"} == BY_TYPE.keys()
    assert {types(row)[0] for row in table()} <= {kind.model_type for kind in CONFIGURATIONS.values()}


@pytest.mark.parametrize("name", FAMILIES)
def test_what_the_table_says_is_what_happens(name, tmp_path):
    model = saved(name, tmp_path / "model")
    if "input_ids" in example(model.config):
        with_tokenizer(tmp_path / "model")
    row = BY_TYPE[model.config.model_type]
    reader = open_checkpoint(tmp_path / "model")
    shape = reader.heads(0).shape
    assert row["read"] == row["inspect"] == "yes"
    assert len(inspect(reader).layers) == len(reader.layers)
    given = example(model.config)
    expected = output(model, given)
    assert row["swap"] == swapped(model, shape, given, expected)
    assert row["convert"] == converted(tmp_path, f"g{shape.kv_heads}", given, expected)
    assert row["export"] == ("yes" if model.config.model_type in exported() else "")


@torch.no_grad()
def output(model, given):
    torch.manual_seed(3)
    made = model(**given)
    return made.logits if "logits" in made else made.last_hidden_state


def swapped(model, shape, given, expected) -> str:
    new = copy.deepcopy(model)
    try:
        headwise.swap(new, lambda number, old: old)
    except SpecError as error:
        return "" if "does not know the attention in" in str(error) else str(error)
    same(output(new, given), expected, SINGLE)
    return "yes"


def converted(folder, to, given, expected) -> str:
    """To the same shape: the same model, loaded back."""
    try:
        done = headwise.convert(folder / "model", to, out=folder / "out")
    except SpecError as error:
        return "" if "conversion knows" in str(error) else str(error)
    code = done.architecture.startswith(PREFIX)
    kind = getattr(hf, auto_classes(done.architecture)[0] if code else done.architecture)
    back = kind.from_pretrained(folder / "out", trust_remote_code=True, attn_implementation="eager").eval()
    same(output(back, given), expected, SINGLE)
    model = kind.from_pretrained(folder / "model", attn_implementation="eager").eval()
    for more in with_padding(given):
        real = more.get("decoder_attention_mask", more["attention_mask"]).bool()
        same(output(back, more)[real], output(model, more)[real], SINGLE)
    if model.can_generate():
        prompt = {name: tensor for name, tensor in given.items() if not name.startswith("decoder")}
        options = {"max_new_tokens": 6, "do_sample": False, "no_repeat_ngram_size": 1, "use_cache": True}
        options |= {"decoder_start_token_id": 1} if model.config.is_encoder_decoder else {}
        assert torch.equal(back.generate(**prompt, **options), model.generate(**prompt, **options))
    return "code" if code else "own"


def with_padding(given):
    """The same text twice, once with its first and once with its last tokens left out; nothing for images."""
    if "input_ids" not in given:
        return
    for hidden in (slice(0, 3), slice(-3, None)):
        more = {name: torch.cat([tensor, tensor.flip(1)]) for name, tensor in given.items()}
        more["attention_mask"] = torch.ones_like(more["input_ids"])
        more["attention_mask"][1, hidden] = 0
        yield more


def exported() -> set[str]:
    shape = ModelShape.parse("w32-h4-L2-m48")
    kinds = [(one, preset("bert" if one.name == "BERT" else "llama", vocab=9, context=9)) for one in TARGETS]
    return {one.config(shape, options)["model_type"] for one, options in kinds}


# ---- smaller, where a folder has code --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "to"),
    [
        *product(["gpt2", "gpt_neox", "opt", "bert", "whisper", "vit", "albert"], ["g2", "r4", "h2", "g1-r4"]),
        *product(["t5"], ["g2", "r4", "g1-r4"]),
    ],
)
def test_a_smaller_model_loads_and_says_what_it_lost(name, to, tmp_path):
    model = saved(name, tmp_path / "model")
    text = None
    if name in ("gpt2", "opt", "bert"):
        text = with_tokenizer(tmp_path / "model")
        text.write_text(" ".join(text.read_text() for _ in range(4)))
    done = headwise.convert(tmp_path / "model", to, out=tmp_path / "out", data=text)
    kind = getattr(hf, auto_classes(done.architecture)[0])
    back = kind.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    assert done.parameters_after == sum(p.numel() for p in back.parameters()) < done.parameters_before
    assert all(0 < layer.fitted < 2 for layer in done.layers)
    assert output(back, example(model.config)).isfinite().all()
    if text is not None and name != "bert":
        assert done.converted is not None
        assert done.kv_bytes_after < done.kv_bytes_before


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_a_broken_checkpoint_is_not_converted(name, tmp_path):
    model = saved(name, tmp_path / "model")
    with_tokenizer(tmp_path / "model")
    next(p for n, p in model.named_parameters() if "norm" in n or "ln_f" in n).data[3] = float("nan")
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(SpecError, match="holds NaN or infinite numbers"):
        headwise.convert(tmp_path / "model", "g1", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_folder_with_code_cannot_be(tmp_path):
    saved("t5", tmp_path / "t5")
    with pytest.raises(SpecError, match="has a bias of distance for each head: 4 heads stay"):
        headwise.convert(tmp_path / "t5", "h2", out=tmp_path / "out")
    saved("gpt2", tmp_path / "model")
    with_tokenizer(tmp_path / "model")
    for words, message in (
        ({"kv": 0.5}, "counts no key/value heads: give --to"),
        ({"to": "c16-p4"}, "only decoders that count key/value heads"),
        ({"to": "L1"}, "only decoders that count key/value heads"),
        ({"to": "g3"}, "cannot be joined in 3 equal groups"),
    ):
        with pytest.raises(SpecError, match=message):
            headwise.convert(tmp_path / "model", out=tmp_path / "out", **words)
    assert not (tmp_path / "out").exists()
