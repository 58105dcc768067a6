"""What inspect says and truncate does: against dense matrices, closed forms, and in a terminal of 80 columns."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from typer import Typer
from typer.testing import CliRunner

from headwise.checkpoints import open_checkpoint
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.inspection import (
    Head,
    Inspection,
    Layer,
    inspect,
    measure_heads,
    overlaps,
    random_rank,
    rank_over_distances,
)
from headwise.checkpoints.truncation import (
    LayerRanks,
    content_energies,
    count_for,
    cut_to,
    kept,
    pair_energies,
    ranks_for,
    truncate,
    value_energies,
)
from headwise.cli import checkpoints as cli_checkpoints
from headwise.layers.functional import angles, turn
from headwise.shape import ModelShape
from headwise.spec import SpecError

WIDTH, HEADS, GROUPS, RANK, V_RANK = 24, 4, 2, 8, 6


def some_heads(rotated: int = 0, biases: bool = False, groups: int = GROUPS, **changes: Tensor) -> AttentionHeads:
    def draw(*size: int) -> Tensor:
        return torch.randn(*size, dtype=torch.float64)

    bias = {"query_bias": draw(HEADS, RANK), "key_bias": draw(groups, RANK)} if biases else {}
    bias |= {"value_bias": draw(groups, V_RANK), "output_bias": draw(WIDTH)} if biases else {}
    turning = 10.0 ** -torch.arange(rotated // 2, dtype=torch.float64) if rotated else None
    return AttentionHeads(
        **{
            "query": draw(HEADS, RANK, WIDTH),
            "key": draw(groups, RANK, WIDTH),
            "value": draw(groups, V_RANK, WIDTH),
            "output": draw(HEADS, WIDTH, V_RANK),
            "frequencies": None if turning is None else turning.expand(groups, -1),
            **bias,
            **changes,
        }
    )


def dense(heads: AttentionHeads) -> tuple[np.ndarray, np.ndarray]:
    """Every head's QᵀK and OV, written out."""
    qk = heads.query.mT @ heads.each_head(heads.key)
    vo = heads.output @ heads.each_head(heads.value)
    return qk.numpy(), vo.numpy()


def bert(folder: Path, layers: int = 2, rank: int = RANK, dtype: torch.dtype = torch.float32) -> Path:
    """A checkpoint of BERT's names whose QK and VO have the given rank."""
    tensors = {}
    for number in range(layers):
        at = f"encoder.layer.{number}."
        for name, low in (("self.query", 0), ("self.key", rank), ("self.value", rank), ("output.dense", 0)):
            weight = torch.randn(HEADS, RANK, HEADS * RANK)
            if low:
                basis = torch.linalg.qr(torch.randn(HEADS, RANK, low)).Q
                weight = basis @ basis.mT @ weight
            tensors[f"{at}attention.{name}.weight"] = weight.flatten(0, 1).to(dtype)
        tensors[f"{at}intermediate.dense.weight"] = torch.randn(48, HEADS * RANK).to(dtype)
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "num_attention_heads": HEADS}))
    return folder


# ---- numbers -------------------------------------------------------------------------------------------------------


def test_numbers_of_the_dense_matrices():
    heads = some_heads()
    found = measure_heads(heads)
    for pair, rank, matrices in zip(("qk", "vo"), (RANK, V_RANK), dense(heads), strict=True):
        values = np.linalg.svd(matrices, compute_uv=False)[:, :rank]
        shares = values / values.sum(-1, keepdims=True)
        energies = np.cumsum(values**2, -1) / np.sum(values**2, -1, keepdims=True)
        flat = matrices.reshape(HEADS, -1) / np.linalg.norm(matrices, axis=(1, 2))[:, None]
        alike = np.abs(flat @ flat.T) - np.eye(HEADS)
        for index, head in enumerate(found):
            effective = math.exp(-(shares[index] * np.log(shares[index])).sum())
            assert getattr(head, f"{pair}_effective_rank") == pytest.approx(effective)
            assert getattr(head, f"{pair}_condition") == pytest.approx(values[index, 0] / values[index, -1])
            assert getattr(head, f"{pair}_overlap") == pytest.approx(alike[index].max())
            assert getattr(head, f"{pair}_energy_half") == pytest.approx(energies[index, rank // 2 - 1])
            assert getattr(head, f"{pair}_rank_99") == 1 + int((energies[index] < 0.99).sum())
        assert found[0].qk_effective_rank_all_distances == found[0].qk_effective_rank


def test_known_heads():
    """Orthonormal rows use all of their rank; equal heads are alike, heads of different tokens not at all."""
    rows = torch.eye(WIDTH, dtype=torch.float64)
    first, second = rows[:RANK], rows[RANK : 2 * RANK]
    query = torch.stack([first, first, second, 3 * second])
    found = measure_heads(some_heads(groups=HEADS, query=query, key=query))
    assert [head.qk_effective_rank for head in found] == pytest.approx([RANK] * HEADS)
    assert [head.qk_condition for head in found] == pytest.approx([1] * HEADS)
    assert [head.qk_overlap for head in found] == pytest.approx([1] * HEADS)
    assert [head.qk_rank_99 for head in found] == [RANK] * HEADS
    assert [head.qk_energy_half for head in found] == pytest.approx([0.5] * HEADS)
    apart = overlaps(torch.stack([first, second]), torch.stack([first, second]))
    assert apart.tolist() == [0, 0]
    assert overlaps(first[None], first[None]).isnan().all()


def test_a_head_of_zeros_uses_nothing():
    heads = some_heads()
    heads.query[1] = 0
    found = measure_heads(heads)[1]
    assert (found.qk_effective_rank, found.qk_rank_99, found.qk_overlap) == (0, 1, 0)
    assert found.qk_condition == math.inf
    assert ranks_for(heads, 0.9).content <= RANK


@pytest.mark.parametrize("rotated", [4, RANK])
def test_rotary_ranks_at_every_distance(rotated):
    """Brute force: keys and queries turned by the layer's own rotation, a distance apart, as dense matrices."""
    base = 500.0
    frequencies = base ** (-torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    heads = some_heads(rotated, groups=HEADS, frequencies=frequencies.expand(HEADS, -1))
    ranks = []
    for distance in (0, *(2**power for power in range(11))):
        query, key = (
            turn(rows.mT[None], *angles(torch.full((WIDTH,), place), rotated, base, rows.dtype))[0].mT
            for rows, place in ((heads.query, distance), (heads.key, 0))
        )
        values = np.linalg.svd((query.mT @ key).numpy(), compute_uv=False)[:, :RANK]
        shares = values / values.sum(-1, keepdims=True)
        ranks.append(np.exp(-(shares * np.log(shares)).sum(-1)))
    np.testing.assert_allclose(rank_over_distances(heads).numpy(), np.mean(ranks, axis=0))


def test_the_energy_of_a_pair_is_the_mean_over_angles():
    heads = some_heads(RANK, biases=True)
    half, turns = RANK // 2, 8
    for biases in (False, True):
        query, key = heads.qk_factors(biases)
        mean = torch.zeros(GROUPS, half, dtype=torch.float64)
        for angle in torch.arange(turns) * 2 * math.pi / turns:
            cos, sin = torch.cos(angle), torch.sin(angle)
            turned = torch.cat(
                [cos * key[:, :half] - sin * key[:, half:], sin * key[:, :half] + cos * key[:, half:]], 1
            )
            for pair in range(half):
                both = [pair, pair + half]
                mean[:, pair] += (query[:, both].mT @ turned[:, both]).square().sum((1, 2)) / turns
        torch.testing.assert_close(pair_energies(heads, biases), mean)


def test_what_random_weights_use():
    rng = np.random.default_rng(0)
    values = np.linalg.svd(rng.normal(size=(64, 64)) @ rng.normal(size=(64, 64)), compute_uv=False)
    shares = values / values.sum()
    assert random_rank(64, 64) == pytest.approx(math.exp(-(shares * np.log(shares)).sum()), rel=0.05)
    assert random_rank(32, 2**14) == pytest.approx(32, rel=0.01)  # long rows are nearly orthogonal


# ---- cutting -------------------------------------------------------------------------------------------------------


def test_shares():
    energies = torch.tensor([[4.0, 1.0, 3.0, 2.0], [1.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(kept(energies), torch.tensor([[0.4, 0.7, 0.9, 1.0], [1.0, 1.0, 1.0, 1.0]]))
    assert [count_for(energies, keep) for keep in (0.1, 0.7, 0.71, 0.85, 0.86, 1.0)] == [1, 1, 2, 2, 3, 4]
    assert count_for(torch.zeros(2, 0), 0.9) == 0


@pytest.mark.parametrize("rank", range(1, RANK + 1))
def test_a_cut_is_the_nearest_matrix_of_its_rank(rank):
    """Eckart and Young: what is lost is the energy beyond the rank, no more; with keys shared, of the group."""
    heads = some_heads()
    values = min(rank, V_RANK)
    small = heads.cut(cut_to(heads, LayerRanks(0, rank, values)))
    assert (small.shape.qk_rank, small.shape.v_rank) == (rank, values)
    for old, new, energies, size in zip(
        dense(heads), dense(small), (content_energies(heads), value_energies(heads)), (rank, values), strict=True
    ):
        lost = ((old - new) ** 2).sum((1, 2)).reshape(GROUPS, -1).sum(1)
        stacked = old.reshape(GROUPS, HEADS // GROUPS * WIDTH, WIDTH)
        expected = np.linalg.svd(stacked, compute_uv=False)[:, size:]
        np.testing.assert_allclose(lost, (expected**2).sum(1), atol=1e-9)
        np.testing.assert_allclose(energies[:, size:].sum(1), lost, atol=1e-9)


def test_a_cut_keeps_what_biases_add():
    """The query's bias is an input like any other; what a cut value's bias added is in the output's bias."""
    heads = some_heads(biases=True)
    small = heads.cut(cut_to(heads, LayerRanks(0, RANK, 2)))
    torch.testing.assert_close(small.query_bias, heads.query_bias)
    constants = [
        one.output_bias + (one.output @ one.each_head(one.value_bias)[..., None]).sum(0).flatten()
        for one in (heads, small)
    ]
    torch.testing.assert_close(constants[0], constants[1])
    shared = torch.randn(WIDTH, dtype=torch.float64)  # a head that is nothing but a preference for some keys
    alone = some_heads(
        groups=HEADS, query=torch.zeros(HEADS, RANK, WIDTH).double(), query_bias=torch.ones(HEADS, RANK).double()
    )
    alone.key[:] = shared
    one = alone.cut(cut_to(alone, LayerRanks(0, 1, 1)))
    for heads in (alone, one):
        torch.testing.assert_close((heads.query_bias[:, None] @ heads.key)[:, 0], (RANK * shared).expand(HEADS, -1))


def test_rotary_cuts_drop_whole_pairs_and_padding_puts_them_back():
    heads = some_heads(4, biases=True)
    cut = cut_to(heads, LayerRanks(1, 3, 4))
    strongest = pair_energies(heads, biases=True).argmax(-1)
    assert cut.pairs.flatten().tolist() == strongest.tolist()
    small, padded = heads.cut(cut), heads.cut(cut.padded(heads))
    assert (small.rotated, small.shape.qk_rank) == (2, 5)
    assert padded.shape == heads.shape
    for group, pair in enumerate(strongest.tolist()):
        torch.testing.assert_close(small.key[group, :2], heads.key[group, [pair, pair + 2]])
        torch.testing.assert_close(padded.key[group, [pair, pair + 2]], heads.key[group, [pair, pair + 2]])
        assert not padded.key[group, [1 - pair, 3 - pair]].any()
        assert small.frequencies[group].tolist() == [heads.frequencies[group, pair].item()]
    for old, new in zip(dense(small), dense(padded), strict=True):
        np.testing.assert_allclose(old, new)


def test_a_norm_keeps_queries_and_keys_whole():
    ones = torch.ones(RANK, dtype=torch.float64)
    heads = some_heads(query_scale=ones, key_scale=ones)
    assert ranks_for(heads, 0.5).content == RANK
    assert ranks_for(heads, 0.5).values < V_RANK


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_planted_rank_is_found_and_bytes_are_counted(dtype, tmp_path):
    reader = open_checkpoint(bert(tmp_path / "full", rank=3, dtype=dtype))
    keep = 1 - 1e-10 if dtype == torch.float32 else 0.999
    found = truncate(reader, tmp_path / "small", keep)
    assert (str(found.before), str(found.after)) == ("w32-h4-L2-m48", "w32-h4-r3-L2-m48")
    size = 4 if dtype == torch.float32 else 2
    assert found.bytes_before - found.bytes_after == 2 * 4 * 32 * HEADS * (RANK - 3) * size
    assert (found.kv_before, found.kv_after) == (2 * 64, 2 * 24)
    assert open_checkpoint(tmp_path / "small").weights["encoder.layer.0.attention.self.key.weight"].dtype == dtype
    again = inspect(open_checkpoint(tmp_path / "small"))
    assert str(again.shape) == "w32-h4-r3-L2-m48"
    assert again.kv_bytes_per_token == 2 * 24 * size


# ---- in words ------------------------------------------------------------------------------------------------------


def test_the_summary_puts_like_layers_together():
    def layer(used: float, paid: int = 64) -> Layer:
        facts = dict.fromkeys(Head.__dataclass_fields__, 0.0) | {
            "qk_effective_rank": used,
            "vo_effective_rank": 60.0,
        }
        return Layer("", "", paid, 64, 0, [Head(**facts), Head(**facts | {"vo_overlap": used / 100})])

    layers = [layer(10), layer(12), layer(40), layer(41), layer(39), layer(60, 128)]
    chance = random_rank(64, 64)
    found = Inspection("bert", ModelShape.parse("w64-h2-L6"), False, False, "float32", layers)
    assert found.summary.splitlines() == [
        "QK: layers 0–1 use 11 of 64, layers 2–4 use 40 of 64, layer 5 uses 60 of 128.",
        "VO: layers 0–5 use 60 of 64.",
        f"Random weights of these sizes would use {chance:.0f} (QK) and {chance:.0f} (VO).",
        "Most alike another head of its layer: head 1 of layer 5 (VO, cosine 0.60).",
    ]


APP = Typer()
cli_checkpoints.add_to(APP)


def command(*words: str):
    return CliRunner().invoke(APP, words, env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"})


@pytest.mark.parametrize("name", ["inspect", "truncate"])
def test_help_fits_and_shows_an_example(name):
    shown = command(name, "--help").stdout
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert f"Example: headwise {name}" in shown


def test_inspect(tmp_path):
    folder = bert(tmp_path / "model", rank=3)
    shown = command("inspect", str(folder), "--report", str(tmp_path / "out" / "heads.html"))
    assert shown.exit_code == 0, shown.exception
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    said = " ".join(shown.stdout.split())
    assert "w32-h4-L2-m48 bert, 512 KV cache bytes/token (float32)" in said
    assert "QK: layers 0–1 use 3 of 8." in said
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["heads.html"]
    page = (tmp_path / "out" / "heads.html").read_text()
    assert '<script src="http' not in page
    assert "Which heads of model use their rank?" in page
    assert f"headwise truncate {folder} --keep 0.99 --data my.txt --out smaller" in page
    found = json.loads(command("inspect", str(folder), "--json").stdout)
    assert {"family", "shape", "layers", "summary"} <= set(found)
    assert (found["family"], found["shape"], len(found["layers"])) == ("bert", "w32-h4-L2-m48", 2)
    head = found["layers"][1]["heads"][3]
    assert 1 < head["qk_effective_rank"] < 3.001
    assert head["qk_condition"] > 1e6  # five of eight dimensions hold nothing but rounding


def test_truncate(tmp_path):
    folder = bert(tmp_path / "model", rank=3)
    shown = command("truncate", str(folder), "--keep", "0.999999", "--out", str(tmp_path / "small"))
    assert shown.exit_code == 0, shown.exception
    assert all(len(line) <= 80 for line in shown.stdout.splitlines())
    said = " ".join(shown.stdout.split())
    assert "w32-h4-r3-L2-m48" in said
    assert "its own code cannot load it" in said
    found = json.loads(command("truncate", str(folder), "--out", str(tmp_path / "pad"), "--pad", "--json").stdout)
    assert (found["after"], found["form"]) == ("w32-h4-r3-L2-m48", "padded")
    assert found["bytes_before"] == found["bytes_after"]
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert config["headwise"]["shape"] == "w32-h4-r3-L2-m48"
    assert json.loads((tmp_path / "pad" / "config.json").read_text()) == json.loads(
        (folder / "config.json").read_text()
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "nowhere.safetensors"], "there is no file or folder 'nowhere.safetensors'"),
        (["truncate", "model", "--keep", "1.5", "--out", "new"], "--keep is 1.5"),
        (["truncate", "model", "--keep", "0", "--out", "new"], "--keep is 0"),
        (["truncate", "model", "--keep", "1", "--out", "new"], "try a smaller --keep"),
        (["truncate", "model", "--keep", "0.5", "--out", "model"], "not an empty folder"),
        (["truncate", "model", "--keep", "0.5", "--out", "model/config.json"], "not an empty folder"),
    ],
)
def test_bad_input_is_one_sentence(words, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bert(tmp_path / "model")
    done = command(*words)
    assert isinstance(done.exception, SpecError), done.exception
    assert message in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not (tmp_path / "new").exists()
