"""headwise.convert on models that transformers itself writes: the same shape is the same model, smaller ones load.

Losses are worked out again here from the folder that transformers loads; sizes are read from its tensors.
"""

import copy
import itertools
import json
import weakref

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import headwise
from headwise.checkpoints import conversion
from headwise.checkpoints.conversion import healing, read_share, streaming, unfinished
from headwise.checkpoints.conversion.allocation import Sensitivity, allocate
from headwise.checkpoints.conversion.merging import choose_groups, even_pairs_of, merge
from headwise.checkpoints.conversion.text import read_blocks
from headwise.checkpoints.files import Weights
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.seen import weighted
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


# ---- budgets and healing ---------------------------------------------------------------------------------------------


def test_a_budget_takes_the_best_of_what_meets_it(tmp_path, text):
    saved("llama", tmp_path / "model")
    done = headwise.convert(tmp_path / "model", out=tmp_path / "out", kv=0.5, data=text, steps=5)
    assert len(done.tried) == 3
    assert all(way.kv <= 0.5 for way in done.tried)
    assert done.after == min(done.tried, key=lambda way: way.loss).shape
    less = headwise.convert(tmp_path / "model", out=tmp_path / "less", params=0.8, data=text, steps=5)
    assert less.parameters_after <= 0.8 * less.parameters_before
    loose = headwise.convert(tmp_path / "model", out=tmp_path / "loose", loss=5.0, data=text, steps=2)
    assert loose.kv <= 0.125


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
    healing.heal(teacher, whole, blocks, 0, tmp_path / "whole", steps=40)
    assert disagreement(whole) < 0.5 * disagreement(start)
    with monkeypatch.context() as patch:
        step, taken = healing._step, []
        patch.setattr(healing, "_step", lambda *args: taken.append(1) or (step(*args) if len(taken) < 8 else stop()))
        with pytest.raises(KeyboardInterrupt):
            healing.heal(teacher, parts, blocks, 0, tmp_path / "state", steps=40)
    again = copy.deepcopy(start)
    assert healing.heal(teacher, again, blocks, 0, tmp_path / "state", steps=40).steps == 40
    for a, b in zip(again.parameters(), whole.parameters(), strict=True):
        assert torch.equal(a, b)


def stop():
    raise KeyboardInterrupt


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
    (["--to", "r4-v6"], "give r alone"),
    (["--to", "L2"], "give --data TEXT"),
    (["--kv", "5"], "a share of the cache"),
    (["--kv", "half"], "a share such as 25%"),
    (["--to", "g2", "--heal", "1m"], "--heal trains on text"),
    (["--loss", "+1%"], "--loss is measured"),
    (["--to", "g2", "--per-layer"], "give --kv and --data"),
]


def test_bad_input_is_one_sentence(tmp_path):
    saved("llama", tmp_path / "model")
    for words, message in BAD:
        done = command(tmp_path / "model", "--out", tmp_path / "out", *words)
        assert done.returncode == 2
        assert message in " ".join(done.stderr.split())
        assert not (tmp_path / "out").exists()


def test_other_families_and_biases_say_why_not(tmp_path):
    saved("qwen2", tmp_path / "model")
    with pytest.raises(SpecError, match="DeepSeek-V3, whose queries have no biases"):
        headwise.convert(tmp_path / "model", "c16-p2", out=tmp_path / "out")
    assert read_share("+1%", "--loss") == 0.01
