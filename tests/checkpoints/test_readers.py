"""Opening checkpoints: lazily, by family, one sentence for everything that is wrong; and the ways back.

Families that `transformers` writes are in tests/peers/test_readers.py. Here are those whose files come from elsewhere:
timm and DINOv2, nanochat, torch's own layers, headwise. Each is compared with a few lines that say what its owner does.
"""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

import headwise as hw
from headwise.checkpoints import all_readers, open_checkpoint
from headwise.checkpoints.files import SHARD_BYTES, open_weights, write_weights
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.readers.table import TableReader
from headwise.checkpoints.rotary import rope_frequencies, settings
from headwise.checkpoints.truncation import truncate
from headwise.layers.functional import angles, plain_attention, turn
from headwise.layers.multihead import MultiheadAttention
from headwise.models import build
from headwise.options import preset
from headwise.spec import SpecError
from headwise.training import resume as checkpoint
from helpers.commands import as_json

WIDTH, HEADS, RANK, TOKENS = 32, 4, 8, 9


def attend(heads: AttentionHeads, x: Tensor) -> Tensor:
    """Without rotation and norms, as the heads say it."""
    queries, keys, values = (
        x @ weight.mT + (0 if bias is None else bias[:, None])
        for weight, bias in (
            (heads.query, heads.query_bias),
            (heads.key, heads.key_bias),
            (heads.value, heads.value_bias),
        )
    )
    seen, _ = plain_attention(queries[None], keys[None], values[None], heads.shape.qk_rank**-0.5)
    output = (seen[0] @ heads.output.mT).sum(0)
    return output if heads.output_bias is None else output + heads.output_bias


def low_rank(rows: Tensor, heads: int, rank: int) -> Tensor:
    """The rows of each head within a random space of this rank."""
    split = rows.unflatten(0, (heads, -1))
    basis = torch.linalg.qr(torch.randn(heads, split.shape[1], rank, dtype=rows.dtype)).Q
    return (basis @ basis.mT @ split).flatten(0, 1)


# ---- families ------------------------------------------------------------------------------------------------------


def fused_vit(prefix: str = "blocks.") -> dict[str, Tensor]:
    """As timm and DINOv2 name it."""
    layer = {
        "attn.qkv.weight": torch.randn(3 * WIDTH, WIDTH),
        "attn.qkv.bias": torch.randn(3 * WIDTH),
        "attn.proj.weight": torch.randn(WIDTH, WIDTH),
        "attn.proj.bias": torch.randn(WIDTH),
        "mlp.fc1.weight": torch.randn(80, WIDTH),
    }
    return {f"{prefix}{i}.{name}": tensor.double() for i in range(11) for name, tensor in layer.items()}


@pytest.mark.parametrize("prefix", ["blocks.", "backbone.blocks.0."])
def test_fused_vision_transformers(prefix, tmp_path):
    tensors = fused_vit(prefix)
    save_file(tensors, tmp_path / "model.safetensors")
    reader = open_checkpoint(tmp_path, heads=HEADS)
    assert reader.family == "vit"
    assert [int(layer.split(".")[-2]) for layer in reader.layers] == list(range(11))
    assert str(reader.shape_of([reader.heads(i).shape for i in range(11)])) == "w32-h4-L11-m80"
    x = torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    fused = x @ tensors[f"{prefix}0.attn.qkv.weight"].mT + tensors[f"{prefix}0.attn.qkv.bias"]
    queries, keys, values = fused.reshape(TOKENS, 3, HEADS, RANK).permute(1, 2, 0, 3)
    heads = F.scaled_dot_product_attention(queries, keys, values).transpose(0, 1).flatten(1)
    expected = heads @ tensors[f"{prefix}0.attn.proj.weight"].mT + tensors[f"{prefix}0.attn.proj.bias"]
    torch.testing.assert_close(attend(reader.heads(0), x), expected)


def test_a_file_that_does_not_say_its_heads(tmp_path):
    tensors = {name: torch.randn(*(2 * size for size in t.shape)) for name, t in fused_vit().items()}
    save_file(tensors, tmp_path / "vit.safetensors")
    with pytest.raises(SpecError, match=r"does not say how many heads .* --heads N \(a width of 64 often has 1\)"):
        open_checkpoint(tmp_path / "vit.safetensors").heads(0)
    with pytest.raises(SpecError, match=r"for 7 heads|by 7 heads"):
        open_checkpoint(tmp_path / "vit.safetensors", heads=7).heads(0)
    with pytest.raises(SpecError, match="--heads is 0"):
        open_checkpoint(tmp_path / "vit.safetensors", heads=0)


def test_nanochat_as_it_saves_itself(tmp_path):
    """Its queries and keys are turned by x1·cos + x2·sin, x2·cos - x1·sin, and then normalised."""
    rows = {"c_q": HEADS * RANK, "c_k": 2 * RANK, "c_v": 2 * RANK, "c_proj": WIDTH}
    tensors = {
        f"transformer.h.{i}.attn.{name}.weight": torch.randn(size, WIDTH, dtype=torch.float64)
        for i in range(2)
        for name, size in rows.items()
    }
    tensors |= {f"transformer.h.{i}.mlp.c_fc.weight": torch.randn(4 * WIDTH, WIDTH) for i in range(2)}
    torch.save(tensors, tmp_path / "model_000650.pt")
    config = {"n_head": HEADS, "n_kv_head": 2, "n_embd": WIDTH, "n_layer": 2}
    (tmp_path / "meta_000650.json").write_text(json.dumps({"step": 650, "model_config": config}))
    reader = open_checkpoint(tmp_path)
    heads = reader.heads(1)
    assert (reader.family, heads.normed) == ("nanochat", True)
    assert str(reader.shape_of([heads.shape] * 2)) == "w32-h4-g2-L2"

    x = torch.randn(TOKENS, WIDTH, dtype=torch.float64)
    angle = torch.arange(TOKENS)[:, None] * 10_000.0 ** (-torch.arange(0, RANK, 2, dtype=torch.float64) / RANK)
    cos, sin = angle.cos(), angle.sin()

    def theirs(name: str) -> Tensor:
        y = (x @ tensors[f"transformer.h.1.attn.{name}.weight"].mT).unflatten(-1, (-1, RANK)).transpose(0, 1)
        first, second = y.chunk(2, dim=-1)
        return F.rms_norm(torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1), (RANK,))

    def ours(weight: Tensor) -> Tensor:
        y = turn((x @ weight.mT)[None], *angles(torch.arange(TOKENS), RANK, 10_000.0, x.dtype))[0]
        return F.rms_norm(y, (RANK,))

    expected = theirs("c_q") @ theirs("c_k").repeat_interleave(2, 0).mT
    torch.testing.assert_close(ours(heads.query) @ ours(heads.each_head(heads.key)).mT, expected)


@pytest.mark.parametrize("memory", [WIDTH, 20])
@pytest.mark.parametrize("bias", [True, False])
def test_torch_attention_and_its_truncation_in_the_drop_in(bias, memory, tmp_path):
    """With a memory of its own width torch keeps three matrices. What is cut loads into headwise's layer."""
    layer = nn.MultiheadAttention(WIDTH, HEADS, bias=bias, kdim=memory, vdim=memory, batch_first=True).double().eval()
    fused = memory == WIDTH
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        if fused:
            query, key, value = layer.in_proj_weight.chunk(3)
            layer.in_proj_weight.copy_(torch.cat([query, low_rank(key, HEADS, 3), low_rank(value, HEADS, 5)]))
        else:
            layer.k_proj_weight.copy_(low_rank(layer.k_proj_weight, HEADS, 3))
            layer.v_proj_weight.copy_(low_rank(layer.v_proj_weight, HEADS, 5))
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    x, y = torch.randn(1, TOKENS, WIDTH).double(), torch.randn(1, TOKENS, memory).double()
    expected, _ = layer(x, y, y)
    reader = open_checkpoint(tmp_path / "layer.pt", heads=HEADS)
    if fused:
        torch.testing.assert_close(attend(reader.heads(0), x[0]), layer(x, x, x)[0][0])
    found = truncate(reader, tmp_path / "small", 1 - 1e-10)
    assert str(found.after) == "w32-h4-r3-v5-m0"
    small = MultiheadAttention(
        WIDTH, HEADS, bias=bias, kdim=memory, vdim=memory, batch_first=True, qk_rank=3, v_rank=5, dtype=torch.float64
    )
    tensors = open_weights(tmp_path / "small")
    small.load_state_dict({name: tensors[name] for name in tensors})
    if bias:  # what the cut values' biases would have added is in the output's bias now
        assert not torch.equal(small.state_dict()["out_proj.bias"], layer.state_dict()["out_proj.bias"])
    torch.testing.assert_close(small(x, y, y)[0], expected)


def test_torch_encoder_and_decoder(tmp_path):
    model = nn.Transformer(WIDTH, HEADS, 2, 1, 48, batch_first=True)
    torch.save({"state_dict": model.state_dict(), "epoch": 3}, tmp_path / "model.pt")
    reader = open_checkpoint(tmp_path / "model.pt", heads=HEADS)
    assert [layer.rstrip(".") for layer in reader.layers] == [
        "decoder.layers.0.multihead_attn",
        "decoder.layers.0.self_attn",
        "encoder.layers.0.self_attn",
        "encoder.layers.1.self_attn",
    ]
    assert [reader.mlp(layer) for layer in reader.layers] == [0, 48, 48, 48]


@pytest.mark.parametrize("shape", ["w32-h4-L2", "w32-h2-r24-v8-L2-m48", "w32-h4-r12-v6-g2-L1"])
def test_a_kept_run_and_its_truncation_as_a_model(shape, tmp_path):
    """headwise's own weights: cut where nothing turns, and built again."""
    options = preset("gpt2", vocab=61, context=16)
    model = build(shape, options, dtype=torch.float64).eval()
    for block in model.body.blocks:
        attention = block.attention
        query, key, value = (weight for weight, _ in attention.input_parts())
        parts = [query, low_rank(key, attention.shape.kv_heads, 3), low_rank(value, attention.shape.kv_heads, 5)]
        attention.input.weight.data.copy_(torch.cat(parts))
        attention.input.bias.data.normal_()
        attention.output.bias.data.normal_()
    run = {"shape": shape, "options": options.model_dump()}
    checkpoint.write(tmp_path / "run.safetensors", model.state_dict(), {"run": run})
    reader = open_checkpoint(tmp_path / "run.safetensors")
    assert reader.family == "headwise"
    found = truncate(reader, tmp_path / "small", 1 - 1e-10)
    assert found.form == "native"
    assert {(layer.qk_rank, layer.v_rank) for layer in found.after.layers} <= {(3, 5), (4, 5)}
    facts = json.loads((tmp_path / "small" / "config.json").read_text())
    small = build(facts["shape"], options, dtype=torch.float64).eval()
    tensors = open_weights(tmp_path / "small")
    small.load_state_dict({name: tensors[name] for name in tensors})
    tokens = torch.randint(61, (2, 12))
    torch.testing.assert_close(small(tokens), model(tokens))
    assert str(open_checkpoint(tmp_path / "small").shape) == str(found.after)


@pytest.mark.parametrize("shape", ["w32-h4-r12-v6-c16-p4-L2", "w32-h4-r12-v6-c16-q20-p4-L2", "w32-h4-g2-L2"])
def test_heads_of_ones_own_models_are_the_layers_own(shape, tmp_path):
    options = preset("llama", vocab=61)
    model = build(shape, options, dtype=torch.float64)
    checkpoint.write(
        tmp_path / "run.safetensors", model.state_dict(), {"run": {"shape": shape, "options": options.model_dump()}}
    )
    reader = open_checkpoint(tmp_path / "run.safetensors")
    assert str(reader.shape_of([reader.heads(i).shape for i in range(2)])) == shape
    heads = reader.heads(1)
    query, key = heads.unshared().qk_factors()
    torch.testing.assert_close(query.mT @ key, model.body.blocks[1].attention.qk_matrices())
    output, value = heads.unshared().vo_factors()
    torch.testing.assert_close(output.mT @ value, model.body.blocks[1].attention.vo_matrices())


# ---- files ---------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak is read from /proc")
def test_a_file_larger_than_memory_is_read_a_layer_at_a_time(tmp_path):
    """A file of 64 GB, nearly all of it a hole: only what attention needs is ever touched."""
    layer = {
        "encoder.layer.0.attention.self.query.weight": [WIDTH, WIDTH],
        "encoder.layer.0.attention.self.key.weight": [WIDTH, WIDTH],
        "encoder.layer.0.attention.self.value.weight": [WIDTH, WIDTH],
        "encoder.layer.0.attention.output.dense.weight": [WIDTH, WIDTH],
    }
    header, end = {}, 0
    for name, shape in {**layer, "embeddings.weight": [2**19, 2**15]}.items():
        size = 4 * shape[0] * shape[1]
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.write(torch.randn(4 * WIDTH * WIDTH).numpy().tobytes())
        file.truncate(8 + len(text) + end)
    code = (
        "import re, pathlib; from headwise.checkpoints import open_checkpoint; "
        "from headwise.checkpoints.inspection import inspect; "
        f"reader = open_checkpoint({str(tmp_path)!r}, heads=4); found = inspect(reader); "
        "status = pathlib.Path('/proc/self/status').read_text(); "  # getrusage remembers the parent's peak
        "print(reader.weights.nbytes, found.shape, re.search(r'VmHWM:\\s+(\\d+)', status)[1])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    total, shape, peak = done.stdout.split()
    assert (int(total), shape) == (end, "w32-h4-m0")
    assert end > 64 * 2**30
    assert int(peak) < 2**20  # kilobytes: a gigabyte, nearly all of it torch


def test_shards_with_an_index_and_one_that_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("headwise.checkpoints.files.SHARD_BYTES", 4 * WIDTH * WIDTH)
    assert SHARD_BYTES > 2**20
    tensors = {name: tensor.float() for name, tensor in fused_vit().items()}
    total = write_weights(tmp_path, iter(tensors.items()))
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == total == sum(tensor.nbytes for tensor in tensors.values())
    files = sorted(set(index["weight_map"].values()))
    assert len(files) > 5
    weights = open_weights(tmp_path)
    assert weights.nbytes == total
    assert set(weights) == set(tensors)
    assert all(torch.equal(weights[name], tensor) for name, tensor in tensors.items())
    (tmp_path / files[2]).unlink()
    with pytest.raises(SpecError, match=f"names {len(files)} files, but '{files[2]}' is not there"):
        open_weights(tmp_path)


def test_both_kinds_of_torch_file(tmp_path):
    tensors = fused_vit()
    torch.save(tensors, tmp_path / "new.pt")
    torch.save(tensors, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    torch.save({"model": tensors, "optimizer": {"step": 3}}, tmp_path / "wrapped.pth")
    for name in ("new.pt", "old.bin", "wrapped.pth"):
        weights = open_weights(tmp_path / name)
        assert set(weights) == set(tensors)
        assert torch.equal(weights["blocks.3.attn.qkv.weight"], tensors["blocks.3.attn.qkv.weight"])


class Harmful:
    """What a pickle may do: here it leaves a file behind."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("old", [True, False])
def test_a_file_that_needs_unpickling_is_refused_and_does_nothing(old, tmp_path):
    torch.save({"w": Harmful(tmp_path / "done")}, tmp_path / "model.pt", _use_new_zipfile_serialization=not old)
    with pytest.raises(SpecError, match="needs unpickling of more than tensors"):
        open_weights(tmp_path / "model.pt")
    with open(tmp_path / "plain.bin", "wb") as file:
        pickle.dump(Harmful(tmp_path / "done"), file, protocol=2)
    with pytest.raises(SpecError, match=r"plain\.bin"):
        open_weights(tmp_path / "plain.bin")
    assert not (tmp_path / "done").exists()


def test_files_cut_short(tmp_path):
    save_file({name: tensor.contiguous() for name, tensor in fused_vit().items()}, tmp_path / "a.safetensors")
    torch.save(fused_vit(), tmp_path / "b.pt")
    torch.save(fused_vit(), tmp_path / "c.bin", _use_new_zipfile_serialization=False)
    for file in sorted(tmp_path.iterdir()):
        whole = file.read_bytes()
        for length in (0, 5, 100, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:length])
            with pytest.raises(
                SpecError, match=f"cannot read '.*{file.name}': it is cut short|needs unpickling"
            ) as told:
                open_weights(file)
            assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: folder / "nowhere", "there is no file or folder"),
        (lambda folder: folder, "holds no weights"),
        (lambda folder: _write(folder / "model.gguf", "x"), "is a GGUF file, which needs|transformers cannot read"),
        (lambda folder: _write(folder / "model.bin", "GGUFxx"), "give it a name that ends in .gguf"),
        (lambda folder: _write(folder / "model.bin", "ggmlxx"), "an old GGML file: convert_llama_ggml_to_gguf"),
        (lambda folder: _write(folder / "model.bin", "24ka" + "x" * 40), "llama2.c's later formats: give its first"),
        (lambda folder: _write(folder / "model.onnx", "x").parent, "holds an ONNX graph"),
        (lambda folder: _write(folder / "model.gguf", "x").parent, "holds GGUF: give the file itself"),
        (lambda folder: _write(folder / "model.onnx", "x"), "is an ONNX graph"),
        (lambda folder: _write(folder / "model.tar", "x"), "is no file of weights"),
        (lambda folder: _write(folder / "config.json", "{") and _weights(folder, {"a": (1,)}), "cannot read"),
        (lambda folder: _write(folder / "config.json", "[1]") and _weights(folder, {"a": (1,)}), "no JSON object"),
        (lambda folder: _torch(folder / "model.pt", [1, 2]), "holds no tensors by name"),
    ],
)
def test_what_is_no_checkpoint_is_one_sentence(make, message, tmp_path):
    with pytest.raises(SpecError, match=message) as told:
        open_checkpoint(make(tmp_path))
    assert "\n" not in str(told.value)


def test_a_name_that_cannot_be_fetched():
    with pytest.raises(SpecError, match=r"no model of that name can be fetched .* give the path of a local folder"):
        open_checkpoint("nobody-at-all/no-such-model")


def test_an_unknown_family_is_named_with_what_was_found(tmp_path):
    _weights(tmp_path, {"backbone.layers.0.mixer.in_proj.weight": (4, 4)})
    with pytest.raises(
        SpecError, match=r"names no model_type and has tensors such as 'backbone.layers.0.mixer"
    ) as told:
        open_checkpoint(tmp_path)
    assert all(family in str(told.value) for family in all_readers())
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}')
    with pytest.raises(SpecError, match=r"is of model_type 'mamba' .* docs/guides/adding-a-reader\.md"):
        open_checkpoint(tmp_path)


def test_a_model_type_nobody_knows_is_not_taken_for_a_llama(tmp_path):
    """Names alone could be anyone's; what the layer does between them could not be read."""
    _weights(tmp_path, {"model.layers.0.self_attn.k_proj.weight": (8, 8)})
    (tmp_path / "config.json").write_text('{"model_type": "llama-like", "num_attention_heads": 2}')
    with pytest.raises(SpecError, match="'llama-like'"):
        open_checkpoint(tmp_path)


LAYER = "model.layers.0.self_attn."


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"o_proj": None}, "has no tensor 'model.layers.0.self_attn.o_proj.weight'"),
        ({"q_proj": (30, 32)}, "30 rows cannot be shared by 4 heads"),
        ({"v_proj": (24, 32)}, "do not fit together for 4 heads"),
        ({"k_proj": (24, 32), "v_proj": (24, 32)}, "do not fit together for 4 heads"),
    ],
)
def test_wrong_shapes(changes, message, tmp_path):
    sizes = {f"{name}_proj": (32, 32) for name in "qkvo"} | changes
    _weights(tmp_path, {f"{LAYER}{name}.weight": size for name, size in sizes.items() if size})
    with pytest.raises(SpecError, match=message):
        open_checkpoint(tmp_path, heads=4).heads(0)


def test_quantised_weights_are_refused(tmp_path):
    tensors = {f"{LAYER}{name}_proj.weight": torch.zeros(32, 32, dtype=torch.int8) for name in "qkvo"}
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(SpecError, match=r"is quantised \(int8\)"):
        open_checkpoint(tmp_path, heads=4).heads(0)


OPT = "model.decoder.layers.0.self_attn.q_proj.weight"


def test_every_reader_finds_its_own_family_alone():
    """Two readers that both match would make the first by name win."""
    names = {
        "llama": "model.layers.0.self_attn.k_proj.weight",
        "gpt2": "h.0.attn.c_attn.weight",
        "gpt_neox": "gpt_neox.layers.0.attention.query_key_value.weight",
        "bert": "encoder.layer.0.attention.self.query.weight",
        "vit": "encoder.layer.0.attention.attention.query.weight",
        "deepseek": "model.layers.0.self_attn.kv_a_proj_with_mqa.weight",
        "nanochat": "transformer.h.0.attn.c_q.weight",
        "torch": "layers.0.self_attn.in_proj_weight",
        "headwise": "body.blocks.0.attention.input.weight",
    }
    by_type = {TableReader.family}  # its names could be another's
    assert set(names) | by_type == set(all_readers())
    rows = [other for other, one in all_readers().items() if one.matches({"model_type": "opt"}, [names["llama"], OPT])]
    assert set(rows) == by_type
    for family, name in names.items():
        assert [other for other, reader in all_readers().items() if reader.matches({}, [name])] == [family]


# ---- readers from elsewhere ----------------------------------------------------------------------------------------

OWN = """
from headwise.checkpoints.reader import SeparateReader


class Own(SeparateReader):
    family = "own"
    signature = r"(?P<layer>mine[.][0-9]+[.])q[.]weight"
    names = ("q", "k", "v", "o")


READER = Own
"""


def own_model(folder: Path) -> Path:
    (folder / "model").mkdir()
    return _weights(folder / "model", {f"mine.0.{name}.weight": (WIDTH, WIDTH) for name in "qkvo"})


def test_a_reader_from_a_file(tmp_path):
    """By its path, or as a class; without it nobody knows the names."""
    model, file = own_model(tmp_path), _write(tmp_path / "my_reader.py", OWN)
    with pytest.raises(SpecError, match="no reader knows them"):
        open_checkpoint(model)
    for reader in (file, str(file), type(open_checkpoint(model, HEADS, file))):
        assert hw.inspect(model, heads=HEADS, reader=reader).family == "own"
    words = (str(model), "--heads", str(HEADS), "--reader", str(file))
    assert as_json("inspect", *words)["family"] == "own"
    out = str(tmp_path / "small")
    assert as_json("truncate", *words, "--keep", "0.5", "--out", out)["family"] == "own"
    assert hw.inspect(out, heads=HEADS, reader=file).shape.layers[0].v_rank < RANK


def test_a_reader_from_an_installed_package(tmp_path, monkeypatch):
    """A distribution on the path, as pip would leave it."""
    _write(tmp_path / "somebodys_reader.py", OWN)
    facts = tmp_path / "somebody-1.0.dist-info"
    facts.mkdir()
    _write(facts / "METADATA", "Metadata-Version: 2.1\nName: somebody\nVersion: 1.0\n")
    points = _write(facts / "entry_points.txt", "[headwise.readers]\nown = somebodys_reader:READER\n")
    monkeypatch.syspath_prepend(tmp_path)
    model = own_model(tmp_path)
    assert hw.inspect(model, heads=HEADS).family == "own"
    assert "own" in all_readers()
    for value, message in {
        "nowhere:READER": r"entry point 'own' of headwise.readers \(nowhere:READER\) cannot be loaded: ModuleNotFound",
        "somebodys_reader:__name__": "is no reader: it must name a subclass",
    }.items():
        points.write_text(f"[headwise.readers]\nown = {value}\n")
        with pytest.raises(SpecError, match=message):
            open_checkpoint(model, HEADS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read the reader file"),
        ("x = 1", "does not say which is its reader: end it with READER = YourReader"),
        ("READER = 3", "does not say which is its reader"),
        ("def (", "cannot be loaded: SyntaxError"),
        ("import nothing_of_this_name", "cannot be loaded: ModuleNotFoundError"),
        (
            "from headwise.checkpoints.reader import Reader\nclass A(Reader): pass\nREADER = A",
            "the reader A has no cut and no heads and no width, which every reader needs",
        ),
        (OWN.replace("mine", "other"), "has no attention layer with the names of own"),
    ],
)
def test_a_wrong_reader_file_is_one_sentence(text, message, tmp_path):
    file = tmp_path / "my_reader.py"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SpecError, match=message) as said:
        open_checkpoint(own_model(tmp_path), HEADS, file)
    assert "\n" not in str(said.value)


def test_old_and_new_ways_to_write_rotary_settings():
    new = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}}
    old = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}}
    for config in (new, old):
        found = rope_frequencies(settings(config), 8)
        assert found.tolist() == pytest.approx([500.0 ** (-i / 4) / 2 for i in range(4)])
    assert rope_frequencies(settings({}), 4).tolist() == pytest.approx([1.0, 0.01])
    gemma = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert settings(gemma, "sliding_attention")["rope_theta"] == 1e4
    assert settings(gemma, "sliding_attention")["rope_type"] == "default"
    assert settings(gemma, "full_attention")["rope_theta"] == 1e6
    assert settings(gemma, "full_attention")["factor"] == 8.0


def test_a_known_model_type_without_its_layers(tmp_path):
    _weights(tmp_path, {"model.norm.weight": (8,)})
    (tmp_path / "config.json").write_text('{"model_type": "nanochat"}')
    with pytest.raises(SpecError, match="no attention layer with the names of nanochat"):
        open_checkpoint(tmp_path)


def _write(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


def _torch(file: Path, content: object) -> Path:
    torch.save(content, file)
    return file


def _weights(folder: Path, sizes: dict[str, tuple[int, ...]]) -> Path:
    save_file({name: torch.randn(*size) for name, size in sizes.items()}, folder / "model.safetensors")
    return folder
