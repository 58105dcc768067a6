"""Configurations that transformers writes: the model they describe has as many parameters as transformers' own."""

import json
from dataclasses import replace
from importlib import import_module

import pytest
import torch
import transformers as hf

import headwise as hw
from headwise.cost import cost_of
from headwise.spec import SpecError
from helpers.autograd import saved_bytes

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "num_key_value_heads": 2}
MLA = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "first_k_dense_replace": 1}
MLA |= {
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "n_group": 1,
    "topk_group": 1,
}
MODELS = {
    "gpt2": ("GPT2LMHeadModel", {"n_embd": 48, "n_layer": 3, "n_head": 4, "vocab_size": 61}),
    "gpt2 with an MLP of its own": ("GPT2LMHeadModel", {"n_embd": 48, "n_layer": 3, "n_head": 4, "n_inner": 80}),
    "llama": ("LlamaForCausalLM", {**SIZES, "num_key_value_heads": 2, "vocab_size": 61}),
    "llama, tied, other heads": ("LlamaForCausalLM", {**SIZES, "head_dim": 20, "tie_word_embeddings": True}),
    "llama with biases": ("LlamaForCausalLM", {**SIZES, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", {**SIZES, "num_key_value_heads": 2}),
    "qwen2": ("Qwen2ForCausalLM", {**SIZES, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "num_key_value_heads": 2, "head_dim": 16}),
    "gemma": ("GemmaForCausalLM", {**SIZES, "num_key_value_heads": 1, "head_dim": 16}),
    "gemma2": ("Gemma2ForCausalLM", {**SIZES, "num_key_value_heads": 2, "head_dim": 16}),
    "gemma3": ("Gemma3ForCausalLM", {**SIZES, "num_key_value_heads": 1, "head_dim": 16}),
    "mixtral": ("MixtralForCausalLM", {**SIZES, "num_key_value_heads": 2, "num_local_experts": 4}),
    "qwen2-moe": ("Qwen2MoeForCausalLM", {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 40}),
    "qwen3-moe": ("Qwen3MoeForCausalLM", {**SIZES, **EXPERTS, "head_dim": 16, "mlp_only_layers": [1]}),
    "deepseek-v2": ("DeepseekV2ForCausalLM", {**SIZES, **MLA, "q_lora_rank": None, "n_shared_experts": 2}),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {**SIZES, **MLA, "q_lora_rank": 20, "n_group": 2, "topk_group": 1}),
    "nanochat": ("NanoChatForCausalLM", {**SIZES, "vocab_size": 61}),
    "bert": ("BertModel", {**SIZES, "vocab_size": 61}),
    "bert, masked": ("BertForMaskedLM", {**SIZES, "vocab_size": 61}),
    "bert, classes": ("BertForSequenceClassification", {**SIZES, "num_labels": 5}),
    "roberta": ("RobertaModel", {**SIZES, "vocab_size": 61}),
    "vit": ("ViTForImageClassification", {**SIZES, "image_size": 32, "patch_size": 8, "num_labels": 7}),
}


@pytest.mark.parametrize("name", MODELS)
def test_as_many_parameters(name, tmp_path):
    kind, config = MODELS[name]
    with torch.device("meta"):
        model = getattr(hf, kind)(getattr(hf, kind).config_class(**config))
    model.config.architectures = [kind]  # as save_pretrained writes it
    model.config.save_pretrained(tmp_path)
    known = hw.read_config(tmp_path)
    assert known == hw.read_config(str(tmp_path / "config.json"))
    assert (known.shape.depth, known.shape.width) == (3, 48)
    assert hw.price(tmp_path).parameters["total"] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("config", "shape", "total", "active"),
    [
        (lambda: hf.DeepseekV3Config(), "w7168-h128-r192-v128-c512-q1536-p64-m18432x3,0x58", 671e9, 37.5e9),
        (lambda: hf.MixtralConfig(), "w4096-h32-g8-L32-m0", 46.7e9, 12.9e9),
    ],
)
def test_experts_count_in_all_and_by_token(config, shape, total, active, tmp_path):
    """As their authors say."""
    config().save_pretrained(tmp_path)
    cost = hw.price(tmp_path)
    assert cost.shape == shape
    assert (cost.parameters["total"], cost.parameters_active) == (
        pytest.approx(total, rel=0.003),
        pytest.approx(active, rel=0.003),
    )


@pytest.mark.parametrize(("kind", "module"), [("Mixtral", "mixtral"), ("Qwen3Moe", "qwen3_moe")])
@pytest.mark.parametrize(("hidden", "experts", "active"), [(128, 8, 2), (32, 16, 4)])
def test_a_mixture_keeps_what_its_experts_keep(kind, module, hidden, experts, active, tmp_path):
    """Against what autograd saves of transformers' mixture; the rest is that of a model without MLPs, and the norm."""
    width, tokens, count = 64, 256, "num_local_experts" if kind == "Mixtral" else "num_experts"
    own = "intermediate_size" if kind == "Mixtral" else "moe_intermediate_size"
    sizes = {"hidden_size": width, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
    config = getattr(hf, f"{kind}Config")(
        **sizes, **{own: hidden, count: experts}, num_experts_per_tok=active, vocab_size=61
    )
    config._experts_implementation = "eager"
    config.architectures = [f"{kind}ForCausalLM"]
    config.save_pretrained(tmp_path)
    known = hw.read_config(tmp_path)
    whole, without = (cost_of(one, context=tokens).activation_bytes for one in (known, replace(known, experts=None)))
    original = import_module(f"transformers.models.{module}.modeling_{module}")
    mixture = getattr(original, f"{kind}SparseMoeBlock")(config)
    for weights in mixture.parameters():
        torch.nn.init.normal_(weights, std=0.05)
    saved = saved_bytes(mixture, torch.randn(1, tokens, width, requires_grad=True))
    norm = 4 * tokens * (2 * width + 1)
    assert whole - without - norm == pytest.approx(saved, rel=0.02)


def test_layers_with_windows_keep_no_more_than_those(tmp_path):
    hf.MistralConfig(sliding_window=4096, num_hidden_layers=3).save_pretrained(tmp_path)
    assert hw.read_config(tmp_path).windows == (4096, 4096, 4096)
    assert hw.price(tmp_path, context=32_768).kv_bytes == 4096 * hw.price(tmp_path).kv_bytes_per_token
    hf.Gemma3TextConfig(num_hidden_layers=7, sliding_window=64).save_pretrained(tmp_path)
    assert hw.read_config(tmp_path).windows == (64, 64, 64, 64, 64, 0, 64)


def test_a_configuration_is_as_good_as_a_name(tmp_path):
    hf.GPT2Config().save_pretrained(tmp_path)
    assert (
        hw.suggest(tmp_path, "memory").document["suggestions"] == hw.suggest("gpt2", "memory").document["suggestions"]
    )
    assert list(hw.equal_cost(str(tmp_path))) == list(hw.equal_cost("gpt2"))
    assert [cost.parameters["total"] for cost in hw.prices([tmp_path, "gpt2"]).costs] == [124_439_808] * 2


def test_a_folder_that_headwise_wrote(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "headwise", "shape": "w32-h4-v4-L2"}))
    assert str(hw.read_config(tmp_path).shape) == "w32-h4-v4-L2"
    hf.GPT2Config(n_embd=32, n_layer=2, n_head=4).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    cut = config | {"headwise": {"shape": "w32-h4-r4-L2"}}  # as truncate writes it
    (tmp_path / "config.json").write_text(json.dumps(cut))
    assert str(hw.read_config(tmp_path).shape) == "w32-h4-r4-L2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "there is no configuration"),
        ("{", "cannot read"),
        ("{}", "has no model_type, whose configuration no reader knows"),
        ('{"model_type": "mamba"}', "has model_type 'mamba'"),
        ('{"model_type": "gpt2"}', "does not say n_embd, without which there is no shape"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(text, message, tmp_path):
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(SpecError, match=message):
        hw.read_config(tmp_path)
