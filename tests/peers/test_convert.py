"""headwise.convert on models that transformers itself writes: the same shape is the same model, smaller ones load.

Losses are worked out again here from the folder that transformers loads; sizes are read from its tensors.
"""

import copy
import itertools
import json
import weakref
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import headwise
from headwise.checkpoints import conversion, files
from headwise.checkpoints.conversion import fitting, healing, importance, read_share, streaming, unfinished
from headwise.checkpoints.conversion.allocation import Sensitivity, allocate
from headwise.checkpoints.conversion.healing import Amount
from headwise.checkpoints.conversion.merging import choose_groups, even_pairs_of, merge, to_latent
from headwise.checkpoints.conversion.text import block_losses, read_blocks
from headwise.checkpoints.files import Weights
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.seen import weighted
from headwise.report.conversion import conversion_lines
from headwise.spec import SpecError
from headwise.training import resume
from helpers.commands import headwise as headwise_command
from helpers.copying import same, scrambled

WORDS = [f"w{i}" for i in range(59)]
TEXT = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 8}
TEXT |= {"intermediate_size": 48, "num_key_value_heads": 4, "max_position_embeddings": 32}
TEXT |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 8}
FAMILIES = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, {}),
    "llama with biases": (hf.LlamaForCausalLM, hf.LlamaConfig, {"attention_bias": True, "tie_word_embeddings": True}),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig, {"sliding_window": 6}),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config, {}),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, {}),
    "granite": (hf.GraniteForCausalLM, hf.GraniteConfig, {"attention_multiplier": 0.2}),
    "smollm3": (hf.SmolLM3ForCausalLM, hf.SmolLM3Config, {}),
    "starcoder2": (hf.Starcoder2ForCausalLM, hf.Starcoder2Config, {}),
    "mixtral": (hf.MixtralForCausalLM, hf.MixtralConfig, EXPERTS),
    "qwen2 with experts": (
        hf.Qwen2MoeForCausalLM,
        hf.Qwen2MoeConfig,
        {**EXPERTS, "shared_expert_intermediate_size": 16},
    ),
    "qwen3 with experts": (hf.Qwen3MoeForCausalLM, hf.Qwen3MoeConfig, EXPERTS),
    "phi": (hf.PhiForCausalLM, hf.PhiConfig, {}),
    "phi3": (hf.Phi3ForCausalLM, hf.Phi3Config, {}),
    "olmo2": (hf.Olmo2ForCausalLM, hf.Olmo2Config, {}),
    "olmo3": (hf.Olmo3ForCausalLM, hf.Olmo3Config, {"sliding_window": 6}),
    "gpt-oss": (hf.GptOssForCausalLM, hf.GptOssConfig, {"num_local_experts": 4, "sliding_window": 6}),
    "glm4": (hf.Glm4ForCausalLM, hf.Glm4Config, {}),
    "cohere": (hf.CohereForCausalLM, hf.CohereConfig, {}),
    "cohere2": (hf.Cohere2ForCausalLM, hf.Cohere2Config, {"layer_types": MIXED, "sliding_window": 6}),
    "yarn": (hf.LlamaForCausalLM, hf.LlamaConfig, {"rope_parameters": YARN}),
    "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig, {}),
    "gemma2": (hf.Gemma2ForCausalLM, hf.Gemma2Config, {"sliding_window": 6, "query_pre_attn_scalar": 8}),
    "gemma3": (hf.Gemma3ForCausalLM, hf.Gemma3TextConfig, {"sliding_window": 6, "query_pre_attn_scalar": 8}),
}


def saved(name, folder):
    kind, config, more = FAMILIES[name]
    torch.manual_seed(0)
    model = scrambled(kind(config(**TEXT, **copy.deepcopy(more))), torch.float32)
    model.save_pretrained(folder)
    words = Tokenizer(WordLevel({"[UNK]": 0, **{word: i + 1 for i, word in enumerate(WORDS)}}, "[UNK]"))
    words.pre_tokenizer = Whitespace()
    hf.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]").save_pretrained(folder)
    return model.eval()


@pytest.fixture
def text(tmp_path):
    """Words that repeat: there is something to learn."""
    file = tmp_path / "text.txt"
    rows = torch.randint(len(WORDS), (60, 8)).repeat(1, 2).flatten()
    file.write_text(" ".join(WORDS[int(i)] for i in rows))
    return file


def loaded(folder):
    model, info = hf.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    return model.eval()


TOKENS = torch.arange(2, 20)[None]


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_same_shape_is_the_same_model(name, tmp_path):
    saved(name, tmp_path / "model")
    headwise.convert(tmp_path / "model", "g4", out=tmp_path / "out")
    model, new = loaded(tmp_path / "model"), loaded(tmp_path / "out")
    assert torch.equal(new(TOKENS).logits, model(TOKENS).logits)
    made = [one.generate(TOKENS[:, :4], max_new_tokens=6, do_sample=False) for one in (model, new)]
    assert torch.equal(*made)
    padded = {"input_ids": torch.cat([TOKENS[:, :9], TOKENS[:, 4:13]]), "attention_mask": torch.ones(2, 9).long()}
    padded["attention_mask"][1, :3] = 0
    real = padded["attention_mask"].bool()
    assert torch.equal(new(**padded).logits[real], model(**padded).logits[real])
    made = [one.generate(**padded, max_new_tokens=6, do_sample=False) for one in (model, new)]
    assert torch.equal(*made)


def test_without_text_no_tokenizer_is_needed(tmp_path, text):
    saved("llama", tmp_path / "model")
    for file in (tmp_path / "model").glob("tokenizer*"):
        file.unlink()
    headwise.convert(tmp_path / "model", "g2", out=tmp_path / "out")
    assert loaded(tmp_path / "out").config.num_key_value_heads == 2
    with pytest.raises(SpecError, match="needs a tokenizer beside the model"):
        headwise.convert(tmp_path / "model", "g2", out=tmp_path / "other", data=text)


@pytest.mark.parametrize(
    ("name", "to"),
    [
        *itertools.product(["llama with biases", "qwen3", "gemma2"], ["g2", "g1", "r4", "h2", "L2", "g2-r4-L2"]),
        *itertools.product(["phi3", "olmo2", "gpt-oss", "glm4", "cohere2", "mixtral", "smollm3"], ["h2", "g2-r4-L2"]),
    ],
)
def test_smaller_models_load_and_decode_from_a_cache(name, to, tmp_path, text):
    saved(name, tmp_path / "model")
    done = headwise.convert(tmp_path / "model", to, out=tmp_path / "out", data=text, steps=3)
    new = loaded(tmp_path / "out")
    shape = headwise.ModelShape.parse(done.after)
    attention = new.model.layers[0].self_attn
    first = shape.layers[0]
    sizes = [first.heads * first.qk_rank, first.kv_heads * first.qk_rank]
    if name == "phi3":
        assert attention.qkv_proj.weight.shape[0] == sizes[0] + 2 * sizes[1]
    else:
        assert [attention.q_proj.weight.shape[0], attention.k_proj.weight.shape[0]] == sizes
    assert len(new.model.layers) == shape.depth
    assert done.parameters_after == sum(p.numel() for p in new.parameters())
    with torch.no_grad():
        whole = new(TOKENS).logits
        output = new(TOKENS[:, :10], use_cache=True)
        keys = output.past_key_values.layers[0].keys
        rest = new(TOKENS[:, 10:], past_key_values=output.past_key_values).logits
    kept = 2 * keys.shape[1] * keys.shape[3] * 4 * shape.depth  # keys and values
    assert done.kv_bytes_after == kept
    same(torch.cat([output.logits, rest], dim=1), whole, 1e-4)


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_latent_is_a_deepseek_whose_cache_is_small(name, tmp_path, text):
    saved(name, tmp_path / "model")
    done = headwise.convert(tmp_path / "model", "c20-p4", out=tmp_path / "out", data=text, steps=30)
    new = loaded(tmp_path / "out")
    assert done.architecture == type(new).__name__ == "DeepseekV3ForCausalLM"
    past = new(TOKENS, use_cache=True).past_key_values.layers[0]
    assert past.keys.shape[-1] + past.values.shape[-1] == 24
    assert done.kv == 24 / 64
    assert all(layer.fitted <= layer.worked_out for layer in done.layers)


@pytest.mark.parametrize(
    ("name", "to"),
    [
        ("qwen2", "c20-p4"),
        ("mistral", "c20-p4"),
        ("qwen2", "v4"),
        ("qwen3", "g2-v4"),
        ("qwen2", "r4-v6"),
        ("phi3", "g2-r4-v8"),
    ],
)
def test_what_no_configuration_can_say_is_a_folder_with_code(name, to, tmp_path, text):
    """A latent with biases or windows, and values of another rank than queries."""
    saved(name, tmp_path / "model")
    given = None if name == "qwen2" else text  # whose tokenizer is another one
    done = headwise.convert(tmp_path / "model", to, out=tmp_path / "out", data=given, steps=30)
    assert "trust_remote_code=True" in done.loading
    new = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    with torch.no_grad():
        whole = new(TOKENS).logits
        output = new(TOKENS[:, :10], use_cache=True)
        past = output.past_key_values.layers[1]
        cached = sum(part.numel() for part in (past.keys, past.values)) // past.keys.shape[-2]
        rest = new(TOKENS[:, 10:], past_key_values=output.past_key_values).logits
    assert done.kv_bytes_after == 4 * 3 * cached
    assert done.kv == cached / 64
    same(torch.cat([output.logits, rest], dim=1), whole, 1e-4)
    assert all(layer.fitted < layer.worked_out for layer in done.layers)


@pytest.mark.parametrize("name", ["llama with biases", "gemma2"])
@torch.no_grad()
def test_smaller_queries_beside_values_that_stay_are_those_of_all_smaller(name, tmp_path):
    """Where values have no more directions than stay, `r4` and `r4-v8` lose the same, and logits keep their size."""
    model = saved(name, tmp_path / "model")
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.view(4, 8, -1)[:, 4:] = 0
        if layer.self_attn.v_proj.bias is not None:
            layer.self_attn.v_proj.bias.view(4, 8)[:, 4:] = 0
    model.save_pretrained(tmp_path / "model")
    logits = []
    for to in ("r4", "r4-v8"):
        headwise.convert(tmp_path / "model", to, out=tmp_path / to)
        new = hf.AutoModelForCausalLM.from_pretrained(tmp_path / to, trust_remote_code=True).eval()
        logits.append(new(TOKENS).logits)
    same(logits[1], logits[0], 1e-5)


@torch.no_grad()
def test_a_latent_with_biases_and_room_for_all_is_the_same_keys_and_values():
    """Worked out for queries, keys and values with a constant 1 as a further entry, against their own arithmetic."""
    torch.manual_seed(2)
    heads = planted(torch.ones(3, dtype=torch.complex128))
    sizes = {"query_bias": (8, 6), "key_bias": (4, 6), "value_bias": (4, 5)}
    heads = replace(heads, **{name: torch.randn(size, dtype=torch.float64) for name, size in sizes.items()})
    heads = replace(heads, frequencies=torch.full((4, 3), 1e-9, dtype=torch.float64))  # so that nothing turns
    new = to_latent(heads, 4 * (4 + 5), 2, None)
    x = torch.randn(7, 16, dtype=torch.float64)
    latent = x @ new.down.mT + new.down_bias
    still, each = [1, 2, 4, 5], 2
    for h in range(8):
        key = x @ heads.key[h // each][still].mT + heads.key_bias[h // each][still]
        query = x @ heads.query[h][still].mT + heads.query_bias[h][still]
        content = x @ new.query[h][2:].mT + new.query_bias[h][2:]
        same(content @ (latent @ new.key_up[h].mT).mT, query @ key.mT, 1e-8)
        value = x @ heads.value[h // each].mT + heads.value_bias[h // each]
        same(latent @ new.value_up[h].mT @ new.output[h].mT, value @ heads.output[h].mT, 1e-8)


def test_the_loss_is_that_of_the_folder(tmp_path, text):
    model = saved("llama", tmp_path / "model")
    done = headwise.convert(tmp_path / "model", "g2", out=tmp_path / "out", data=text, steps=5)
    tokenizer = hf.AutoTokenizer.from_pretrained(tmp_path / "model")
    held = read_blocks(tokenizer, text, 32).held
    assert done.tokens == held[:, 1:].numel()
    for one, loss in ((model, done.loss_before), (loaded(tmp_path / "out"), done.converted.loss)):
        with torch.no_grad():
            logits = one(held).logits[:, :-1]
        assert loss == pytest.approx(F.cross_entropy(logits.flatten(0, 1), held[:, 1:].flatten()).item(), rel=1e-4)
    assert done.converted.low < done.converted.change < done.converted.high
    card = (tmp_path / "out" / "README.md").read_text()
    assert f"{done.converted.loss:.4f}" in card
    assert "vLLM and SGLang are not tested" in card
    assert json.loads((tmp_path / "out" / "conversion.json").read_text())["after"] == done.after


# ---- heads joined ----------------------------------------------------------------------------------------------------


def planted(twin_phases):
    """Four key/value heads; each even one is the next with its pairs turned, grown and its values mixed."""
    torch.manual_seed(1)
    query, key = torch.randn(8, 6, 16, dtype=torch.float64), torch.randn(4, 6, 16, dtype=torch.float64)
    value, output = torch.randn(4, 5, 16, dtype=torch.float64), torch.randn(8, 16, 5, dtype=torch.float64)
    for a, b in ((0, 2), (1, 3)):
        pairs = torch.complex(key[a, :3], key[a, 3:]) * twin_phases[:, None]
        key[b] = torch.cat([pairs.real, pairs.imag])
        value[b] = torch.randn(5, 5, dtype=torch.float64) @ value[a]
    frequencies = torch.tensor([1.0, 0.3, 0.1], dtype=torch.float64).expand(4, -1)
    return AttentionHeads(query, key, value, output, frequencies=frequencies)


def attended(heads, x):
    """Causal attention worked out from the heads, a few lines."""
    half, each = heads.rotated // 2, heads.shape.group
    angles = torch.arange(len(x), dtype=torch.float64)[:, None] * heads.frequencies[0]
    total = 0
    for h in range(len(heads.query)):
        rows = []
        for weight in (heads.query[h], heads.key[h // each]):
            y = x @ weight.mT
            pairs = torch.complex(y[:, :half], y[:, half:]) * torch.polar(torch.ones_like(angles), angles)
            rows.append(torch.cat([pairs.real, pairs.imag], dim=1))
        logits = (rows[0] @ rows[1].mT).masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -torch.inf)
        total = total + logits.softmax(-1) @ x @ heads.value[h // each].mT @ heads.output[h].mT
    return total


def test_heads_that_differ_by_a_turn_are_found_and_joined_without_loss():
    heads = planted(torch.polar(torch.tensor([2.0, 0.5, 1.0]), torch.tensor([0.3, 2.0, -1.0])).to(torch.complex128))
    groups = choose_groups(heads, 2, None)
    assert groups == [[0, 2], [1, 3]]
    new, order = merge(heads, groups, torch.arange(3), 6, 5, None)
    assert order.tolist() == [0, 1, 4, 5, 2, 3, 6, 7]
    x = torch.randn(7, 16, dtype=torch.float64)
    same(attended(new, x), attended(heads, x), 1e-9)


def test_values_share_the_best_subspace():
    """Eckart and Young: what is lost is the tail of the singular values of all outputs together."""
    heads = planted(torch.ones(3, dtype=torch.complex128))
    heads.value.copy_(torch.randn_like(heads.value))
    new, order = merge(heads, [[0, 1], [2, 3]], torch.arange(3), 6, 5, None)
    old = torch.stack([heads.output[h] @ heads.value[h // 2] for h in order])
    now = torch.stack([new.output[i] @ new.value[i // 4] for i in range(8)])
    for some in (slice(0, 4), slice(4, 8)):
        tail = torch.linalg.svdvals(old[some].flatten(0, 1))[5:].square().sum()
        assert (now[some] - old[some]).square().sum().item() == pytest.approx(tail.item(), rel=1e-9)
    assert weighted(heads, None) is heads


def test_smaller_heads_turn_at_frequencies_that_they_have():
    frequencies = 10_000.0 ** (-torch.arange(8) / 8)
    assert torch.allclose(frequencies[even_pairs_of(8, 4)], 10_000.0 ** (-torch.arange(4) / 4))


# ---- larger than memory ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "to"), [("llama with biases", "g2-r4"), ("qwen3", "h2"), ("phi3", "g1")])
def test_a_model_larger_than_memory_is_converted_layer_by_layer(name, to, tmp_path, monkeypatch):
    """The same folder as of the model in memory, which is never loaded, with one layer's attention at a time."""
    saved(name, tmp_path / "model")
    headwise.convert(tmp_path / "model", to, out=tmp_path / "whole")
    monkeypatch.setattr(streaming, "SHARE", 0.0)
    monkeypatch.setattr(conversion, "Converter", None)
    alive, most, read = [], [], Weights.stored

    def counted(self, name):
        tensor = read(self, name)
        if "self_attn" in name and "_proj" in name:
            alive.append(weakref.ref(tensor))
            most.append(sum(one() is not None for one in alive))
        return tensor

    monkeypatch.setattr(Weights, "stored", counted)
    done = headwise.convert(tmp_path / "model", to, out=tmp_path / "out")
    monkeypatch.undo()
    whole, new = loaded(tmp_path / "whole"), loaded(tmp_path / "out")
    with torch.no_grad():
        same(new(TOKENS).logits, whole(TOKENS).logits, 1e-5)
    assert done.parameters_after == sum(p.numel() for p in new.parameters())
    each = sum("layers.0.self_attn" in name and "_proj" in name for name, _ in new.named_parameters())
    assert max(most) <= 2 * each  # of three layers


def test_a_model_larger_than_memory_goes_on_after_the_last_file(tmp_path, monkeypatch):
    saved("llama", tmp_path / "model")
    monkeypatch.setattr(streaming, "SHARE", 0.0)
    monkeypatch.setattr(files, "SHARD_BYTES", 10_000)
    headwise.convert(tmp_path / "model", "g2", out=tmp_path / "whole")
    read, asked = Weights.stored, []

    def counted(self, name):
        asked.append(name)
        return read(self, name) if len(asked) != 20 else stop()

    monkeypatch.setattr(Weights, "stored", counted)
    with pytest.raises(KeyboardInterrupt):
        headwise.convert(tmp_path / "model", "g2", out=tmp_path / "out")
    assert (tmp_path / "out" / "fresh" / "shard-0.safetensors").exists()
    asked.clear()
    asked.extend([""] * 20)
    headwise.convert(tmp_path / "model", "g2", out=tmp_path / "out")
    assert "model.layers.1.self_attn.k_proj.weight" not in asked
    same_folders(tmp_path / "out", tmp_path / "whole")


def same_folders(one, other):
    assert {file.name for file in one.iterdir()} == {file.name for file in other.iterdir()}
    for a, b in zip(*(loaded(folder).parameters() for folder in (one, other)), strict=True):
        assert torch.equal(a, b)


def test_sixteen_bits_in_a_file_are_thirty_two_in_memory(tmp_path, monkeypatch):
    saved("llama", tmp_path / "model").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    numbers = sum(tensor.numel() for tensor in loaded(tmp_path / "model").state_dict().values())
    sizes = {"SC_PAGE_SIZE": 1, "SC_PHYS_PAGES": int(4 * numbers / streaming.SHARE) - 4}
    monkeypatch.setattr(streaming.os, "sysconf", sizes.get)
    assert streaming.too_large(tmp_path / "model")


# ---- budgets and healing ---------------------------------------------------------------------------------------------


def test_a_budget_takes_the_best_of_what_meets_it(tmp_path, text):
    saved("llama", tmp_path / "model")
    done = headwise.convert(tmp_path / "model", out=tmp_path / "out", kv=0.5, data=text, steps=5)
    assert len(done.tried) == 3
    assert all(way.kv <= 0.5 for way in done.tried)
    assert done.after == min(done.tried, key=lambda way: way.loss).shape
    most = headwise.convert(tmp_path / "model", out=tmp_path / "most", kv=0.75, data=text, steps=1)
    ranks = [headwise.ModelShape.parse(way.shape).layers[0].qk_rank for way in most.tried]
    assert 6 in ranks  # no divisor of 8, but three of its four frequencies
    less = headwise.convert(tmp_path / "model", out=tmp_path / "less", params=0.8, data=text, steps=5)
    assert less.parameters_after <= 0.8 * less.parameters_before
    loose = headwise.convert(tmp_path / "model", out=tmp_path / "loose", loss=5.0, data=text, steps=2)
    assert loose.kv <= 0.125


def test_a_budget_of_a_model_with_biases_is_met_without_a_latent(tmp_path, text):
    saved("llama with biases", tmp_path / "model")
    done = headwise.convert(tmp_path / "model", out=tmp_path / "out", kv=0.5, data=text, steps=2)
    assert [headwise.ModelShape.parse(way.shape).layers[0].kv_latent for way in done.tried] == [0, 0]


def test_heads_and_layers_that_do_nothing_go(tmp_path, text):
    """Their scores are 0: a head whose outputs are 0 has no derivative, a layer that adds nothing no loss. The layer of
    the least score goes, which may be one that the loss is lower without."""
    model = saved("qwen3", tmp_path / "model")  # the configuration of a Llama cannot say 3 heads in a width of 32
    for layer, head in enumerate((2, 0, 3)):
        model.model.layers[layer].self_attn.o_proj.weight.data[:, 8 * head : 8 * head + 8] = 0
    for linear in (model.model.layers[1].self_attn.o_proj, model.model.layers[1].mlp.down_proj):
        linear.weight.data.zero_()
    model.save_pretrained(tmp_path / "model")
    done = headwise.convert(tmp_path / "model", "h3", out=tmp_path / "heads", data=text, steps=0)
    scores = {(one.layer, one.head): one.score for one in done.importance}
    assert [head for (_, head), score in scores.items() if score == 0] == [2, 0, 1, 2, 3, 3]
    assert done.converted.change == pytest.approx(0, abs=1e-6)
    shown = "\n".join(str(getattr(line, "columns", line)) for line in conversion_lines(done))
    assert "2 (0%)" in shown
    assert "what heads are worth" in json.dumps(done.chart().to_dict(), ensure_ascii=False)
    done = headwise.convert(tmp_path / "model", "L2", out=tmp_path / "layers", data=text, steps=0)
    assert done.dropped == (min(done.importance, key=lambda one: one.score).layer,)
    assert [one.score == pytest.approx(0, abs=1e-6) for one in done.importance] == [False, True, False]


@torch.no_grad()
def test_the_score_of_a_head_is_the_squared_derivative_of_its_gate(tmp_path):
    """Against a finite difference of the loss as one head's outputs grow."""
    model = saved("llama", tmp_path / "model").double()
    blocks = torch.randint(64, (3, 12))
    scores = importance.head_scores(model, blocks, 4)
    weight, step = model.model.layers[1].self_attn.o_proj.weight, 1e-2
    losses = []
    for sign in (1, -1):
        weight[:, 16:24] *= 1 + sign * step
        losses.append(block_losses(model, blocks))
        weight[:, 16:24] /= 1 + sign * step
    expected = ((losses[0] - losses[1]) / (2 * step)).square().mean()
    assert scores[1, 2].item() == pytest.approx(expected.item(), rel=2e-2)


def test_healing_agrees_more_with_the_original_and_goes_on_where_it_stopped(tmp_path, monkeypatch):
    teacher = saved("llama", tmp_path / "model")
    blocks = torch.randint(64, (40, 16))
    start = copy.deepcopy(teacher)
    for layer in start.model.layers:
        layer.self_attn.v_proj.weight.data *= 0.5

    def disagreement(model):
        with torch.no_grad():
            logits = [one(blocks).logits.log_softmax(-1).flatten(0, 1) for one in (model, teacher)]
        return F.kl_div(logits[0], logits[1], log_target=True, reduction="batchmean").item()

    whole, parts = copy.deepcopy(start), copy.deepcopy(start)
    healing.heal(teacher, whole, blocks, Amount(steps=40), tmp_path / "whole")
    assert disagreement(whole) < 0.5 * disagreement(start)
    with monkeypatch.context() as patch:
        step, taken = healing._step, []
        patch.setattr(healing, "_step", lambda *args: taken.append(1) or (step(*args) if len(taken) < 8 else stop()))
        with pytest.raises(KeyboardInterrupt):
            healing.heal(teacher, parts, blocks, Amount(steps=40), tmp_path / "state")
    again = copy.deepcopy(start)
    assert healing.heal(teacher, again, blocks, Amount(steps=40), tmp_path / "state").steps == 40
    for a, b in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)


def stop():
    raise KeyboardInterrupt


def test_healing_is_asked_for_by_the_clock_or_by_steps():
    assert Amount.read("2m") == Amount(seconds=120)
    assert Amount.read(3) == Amount(seconds=3)
    assert Amount.read("300 steps") == Amount.read("300steps") == Amount(steps=300)
    with pytest.raises(SpecError):
        Amount.read("many")


def test_an_interrupted_command_goes_on(tmp_path, text, monkeypatch):
    saved("llama", tmp_path / "model")
    clock = itertools.count(0, 0.05)
    monkeypatch.setattr(healing.time, "monotonic", lambda: next(clock))
    step, taken = healing._step, []
    monkeypatch.setattr(healing, "_step", lambda *args: taken.append(1) or (step(*args) if len(taken) != 8 else stop()))
    call = {"to": "g1", "out": tmp_path / "out", "data": text, "steps": 2, "heal": 3.0}
    with pytest.raises(KeyboardInterrupt):
        headwise.convert(tmp_path / "model", **call)
    assert resume.read(tmp_path / "out" / unfinished.STATE)[1]["steps"] == 7
    done = headwise.convert(tmp_path / "model", **call)
    assert done.healing.steps > 7
    assert done.healed.loss != done.converted.loss
    assert {file.name for file in (tmp_path / "out").iterdir()} >= {"README.md", "conversion.json", "config.json"}
    assert not {unfinished.STATE, unfinished.REQUEST, unfinished.FRESH} & {f.name for f in (tmp_path / "out").iterdir()}
    loaded(tmp_path / "out")
    with pytest.raises(SpecError, match="is there already"):
        headwise.convert(tmp_path / "model", **call)


def test_an_interrupted_fit_goes_on_after_the_last_layer(tmp_path, text, monkeypatch):
    saved("llama", tmp_path / "model")
    call = {"kv": 0.5, "data": text, "steps": 3}
    whole = headwise.convert(tmp_path / "model", out=tmp_path / "whole", **call)
    fit, fitted = fitting._fit, []
    stopping = lambda *args: fitted.append(args[0]) or (fit(*args) if len(fitted) != 5 else stop())  # noqa: E731
    monkeypatch.setattr(fitting, "_fit", stopping)
    with pytest.raises(KeyboardInterrupt):
        headwise.convert(tmp_path / "model", out=tmp_path / "out", **call)
    with pytest.raises(SpecError, match="is there already"):
        headwise.convert(tmp_path / "model", out=tmp_path / "out", **call | {"steps": 4})
    text.rename(tmp_path / "elsewhere.txt")
    with pytest.raises(SpecError, match="cannot read --data"):  # nothing that was done is lost by a missing file
        headwise.convert(tmp_path / "model", out=tmp_path / "out", **call)
    (tmp_path / "elsewhere.txt").rename(text)
    done = headwise.convert(tmp_path / "model", out=tmp_path / "out", **call)
    assert len(fitted) == 1 + 3 * 3  # three ways of three layers, one of them begun twice
    assert done.converted == whole.converted
    assert done.layers == whole.layers
    same_folders(tmp_path / "out", tmp_path / "whole")


def test_a_model_that_was_healed_is_not_healed_again(tmp_path, text, monkeypatch):
    """Interrupted between the last step and the end, at every place where something is written."""
    saved("llama", tmp_path / "model")
    call = {"to": "g1", "data": text, "steps": 2, "heal": "5 steps"}
    headwise.convert(tmp_path / "model", out=tmp_path / "whole", **call)
    for place in ("_write", "_loaded_back"):
        out, done, times, last = tmp_path / place, getattr(conversion, place), itertools.count(1), 2
        with monkeypatch.context() as patch:
            stopping = lambda *args, done=done, times=times, last=last: done(*args) if next(times) < last else stop()  # noqa: E731
            patch.setattr(conversion, place, stopping)
            with pytest.raises(KeyboardInterrupt):
                headwise.convert(tmp_path / "model", out=out, **call)
        assert headwise.convert(tmp_path / "model", out=out, **call).healing.steps == 5
        same_folders(out, tmp_path / "whole")


def test_several_budgets_go_on_where_they_stopped(tmp_path, text, monkeypatch):
    saved("llama", tmp_path / "model")
    call = {"data": text, "steps": 2, "out": tmp_path / "out"}
    write, written = conversion._write, []
    stopping = lambda *args: written.append(args[2].folder) or (write(*args) if len(written) != 2 else stop())  # noqa: E731
    monkeypatch.setattr(conversion, "_write", stopping)
    with pytest.raises(KeyboardInterrupt):
        headwise.frontier(tmp_path / "model", [0.5, 0.25], **call)
    several = headwise.frontier(tmp_path / "model", [0.5, 0.25], **call)
    assert [folder.name for folder in written] == ["kv-50", "kv-25", "kv-25"]
    assert [one.kv for one in several.conversions] == [0.5, 0.25]
    again = headwise.frontier(tmp_path / "model", [0.5, 0.25], **call)
    assert len(written) == 3
    assert again.as_dict() == several.as_dict()


def test_healing_is_shown_to_a_tracker(tmp_path, text, monkeypatch):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    saved("llama", tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    words = {"out": tmp_path / "out", "data": text, "steps": 2, "heal": 1.0, "track": "tensorboard"}
    done = headwise.convert(tmp_path / "model", "g1", **words)
    (folder,) = (tmp_path / "runs" / "convert").iterdir()
    events = event_accumulator.EventAccumulator(str(folder))
    events.Reload()
    steps = [event.step for event in events.Scalars("healing loss")]
    assert steps == list(range(1, done.healing.steps + 1))
    with pytest.raises(SpecError, match="no tracker 'paper'"):
        headwise.convert(tmp_path / "model", "g1", **words | {"track": "paper", "out": tmp_path / "other"})
    with pytest.raises(SpecError, match="give --heal"):
        headwise.convert(tmp_path / "model", "g1", out=tmp_path / "other", track="tensorboard")
    assert not (tmp_path / "other").exists()


# ---- every layer its own shape ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "llama with biases", "qwen3"])
def test_heads_stay_where_layers_need_them(name, tmp_path, text):
    """The planted layer's heads are alike: it can lose them all but one, so the others keep theirs."""
    model = saved(name, tmp_path / "model")
    attention = model.model.layers[1].self_attn
    for linear in (attention.k_proj, attention.v_proj):
        rows = linear.weight.data.view(4, 8, 32)
        rows.copy_(rows[:1].expand(4, -1, -1).clone())
        if linear.bias is not None:
            linear.bias.data.copy_(linear.bias.data.view(4, 8)[:1].expand(4, -1).flatten().clone())
    model.save_pretrained(tmp_path / "model")
    words = {"out": tmp_path / "out", "kv": 0.75, "data": text, "per_layer": True, "steps": 2}
    done = headwise.convert(tmp_path / "model", **words)
    counts = [layer.kv_heads for layer in headwise.ModelShape.parse(done.after).layers]
    assert counts == [4, 1, 4]
    assert max(one.error for one in done.sensitivity if one.layer == 1) == pytest.approx(0, abs=1e-9)
    new = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    with torch.no_grad():
        same(new(TOKENS).logits, model(TOKENS).logits, 1e-4)
        past = new(TOKENS, use_cache=True).past_key_values
    assert [layer.keys.shape[1] for layer in past.layers] == counts
    assert done.kv_bytes_after == sum(2 * count * 8 * 4 for count in counts)
    made = [one.generate(TOKENS[:, :4], max_new_tokens=6, do_sample=False) for one in (model, new)]
    assert torch.equal(*made)
    assert "trust_remote_code=True" in (tmp_path / "out" / "README.md").read_text()


def test_a_budget_is_shared_out_at_the_least_sum():
    found = [Sensitivity(0, 1, 0.5), Sensitivity(0, 2, 0.1), Sensitivity(1, 1, 0.2), Sensitivity(1, 2, 0.15)]
    assert allocate(found, 4, 2, 8) == (4, 4)
    assert allocate(found, 4, 2, 5) == (4, 1)
    assert allocate(found, 4, 2, 3) == (2, 1)
    assert allocate(found, 4, 2, 1) == ()


# ---- the command -----------------------------------------------------------------------------------------------------


def command(*words):
    return headwise_command("convert", *map(str, words), check=False)


def test_the_command(tmp_path, text, monkeypatch):
    monkeypatch.setattr(conversion, "STEPS", 3)
    saved("llama", tmp_path / "model")
    done = command(tmp_path / "model", "--to", "g2", "--out", tmp_path / "out")
    assert done.returncode == 0
    assert "from the weights alone" in done.stdout
    page = tmp_path / "page.html"
    words = ("--kv", "50%,25%", "--data", text, "--out", tmp_path / "several", "--report", page, "--json")
    several = command(tmp_path / "model", *words)
    assert [
        one["kv"] <= share for one, share in zip(json.loads(several.stdout)["conversions"], (0.5, 0.25), strict=True)
    ]
    drawn = page.read_text()
    assert "KV cache budget" in drawn
    assert "error of attention" in drawn
    assert "Example" in command("--help").stdout


BAD = [
    ([], "give one of --to SHAPE"),
    (["--to", "g2", "--kv", "50%"], "give one of --to SHAPE"),
    (["--to", "x2"], "'x2' is none of"),
    (["--to", "g3"], "cannot be joined in 3 equal groups"),
    (["--to", "g8"], "larger than"),
    (["--to", "L9"], "the model has 3"),
    (["--to", "p4"], "give c too"),
    (["--to", "r4-v9"], "v is the rank of values, at most 8"),
    (["--to", "L2"], "give --data TEXT"),
    (["--kv", "5"], "a share of the cache"),
    (["--kv", "half"], "a share such as 25%"),
    (["--to", "g2", "--heal", "1m"], "--heal trains on text"),
    (["--loss", "+1%"], "--loss is measured"),
    (["--to", "g2", "--per-layer"], "give --kv and --data"),
    (["--to", "g2", "--report", "page.html"], "give --data TEXT"),
    (["--to", "g2", "--track", "wandb"], "give --heal"),
]


def test_bad_input_is_one_sentence(tmp_path):
    saved("llama", tmp_path / "model")
    for words, message in BAD:
        done = command(tmp_path / "model", "--out", tmp_path / "out", *words)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
        assert not (tmp_path / "out").exists()


def test_other_families_say_why_not(tmp_path):
    for name in ("gemma3", "qwen3 with experts"):
        saved(name, tmp_path / name)
        with pytest.raises(SpecError, match="give fewer key/value heads"):
            headwise.convert(tmp_path / name, "c16-p2", out=tmp_path / "out")
    with pytest.raises(SpecError, match="pass a norm: give r or v alone"):
        headwise.convert(tmp_path / "gemma3", "r4-v6", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert read_share("+1%", "--loss") == 0.01
