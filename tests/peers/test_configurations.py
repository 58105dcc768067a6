"""Configurations that transformers writes: the model they describe has as many parameters as transformers' own."""

import json

import pytest
import torch
import transformers as hf

import headwise as hw
from headwise.cost import parameters
from headwise.spec import SpecError

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 80}
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
    assert (known.shape.depth, known.shape.width, known.note) == (3, 48, "")
    assert parameters(known.shape, known.options)["total"] == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (lambda: hf.DeepseekV3Config(), "w7168-h128-r192-v128-c512-q1536-p64-L61-m0"),
        (lambda: hf.MixtralConfig(), "w4096-h32-g8-L32-m0"),
    ],
)
def test_experts_are_left_out_and_that_is_said(config, shape, tmp_path):
    config().save_pretrained(tmp_path)
    known = hw.read_config(tmp_path)
    assert (str(known.shape), "attention only" in known.note) == (shape, True)


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
