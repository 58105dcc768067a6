"""Parameter counts: transformers' models of the published sizes (no numbers, only shapes) = `headwise.cost`, by part.

The sizes come from the models' cards; what is left out is the config class's default. DeepSeek counts one attention
layer and the norm before it, times the depth: headwise does not price its experts.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Attention, DeepseekV2RMSNorm
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention, DeepseekV3RMSNorm

from headwise.cost import parameters
from headwise.known import KNOWN

SIGNS = {  # the first sign that a weight's name contains says where headwise counts it
    "embeddings": ("embed", "wte", "wpe"),  # with BERT's norm of them
    "norms": ("norm", "ln_", "LayerNorm"),
    "attention": ("attn", "attention."),
    "mlp": ("mlp.", "intermediate.", "output.dense"),
    "head": ("lm_head", "classifier", "pooler"),
}


def part(name: str) -> str:
    return next(part for part, signs in SIGNS.items() if any(sign in name for sign in signs))


def sizes(width: int, layers: int, heads: int, mlp: int, **more: Any) -> dict[str, Any]:
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": mlp,
        **more,
    }


def gpt2(width: int = 768, layers: int = 12, heads: int = 12) -> tuple[str, dict[str, Any]]:
    return "GPT2LMHeadModel", {"n_embd": width, "n_layer": layers, "n_head": heads}


def bert(*given: int) -> tuple[str, dict[str, Any]]:
    return "BertModel", sizes(*given)


def vit(*given: int) -> tuple[str, dict[str, Any]]:
    return "ViTForImageClassification", sizes(*given, num_labels=1000)


def llama(*given: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "LlamaForCausalLM", sizes(*given, num_key_value_heads=8, vocab_size=128_256, **more)


def qwen3(*given: int, **more: Any) -> tuple[str, dict[str, Any]]:
    return "Qwen3ForCausalLM", sizes(*given, num_key_value_heads=8, head_dim=128, vocab_size=151_936, **more)


def gemma3(*given: int) -> tuple[str, dict[str, Any]]:
    return "Gemma3ForCausalLM", sizes(*given, num_key_value_heads=1, head_dim=256, vocab_size=262_144)


PUBLISHED = {
    "nanochat-d20": ("NanoChatForCausalLM", sizes(1280, 20, 10, 5120, vocab_size=65_536)),
    "gpt2": gpt2(),
    "gpt2-medium": gpt2(1024, 24, 16),
    "gpt2-xl": gpt2(1600, 48, 25),
    "bert-base": bert(768, 12, 12, 3072),
    "bert-large": bert(1024, 24, 16, 4096),
    "vit-s16": vit(384, 12, 6, 1536),
    "vit-b16": vit(768, 12, 12, 3072),
    "vit-l16": vit(1024, 24, 16, 4096),
    "llama-3.2-1b": llama(2048, 16, 32, 8192, tie_word_embeddings=True),
    "llama-3-8b": llama(4096, 32, 32, 14_336),
    "mistral-7b": ("MistralForCausalLM", sizes(4096, 32, 32, 14_336, num_key_value_heads=8, vocab_size=32_000)),
    "qwen3-0.6b": qwen3(1024, 28, 16, 3072, tie_word_embeddings=True),
    "qwen3-8b": qwen3(4096, 36, 32, 12_288),
    "gemma3-270m": gemma3(640, 18, 4, 2048),
    "gemma3-1b": gemma3(1152, 26, 4, 6912),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_model(name):
    class_name, config = PUBLISHED[name]
    model_class = getattr(transformers, class_name)
    with torch.device("meta"):
        model = model_class(model_class.config_class(**config))
    counts: Counter[str] = Counter()
    for weight, parameter in model.named_parameters():
        counts[part(weight)] += parameter.numel()

    known = KNOWN[name]
    priced = parameters(known.shape, known.options)
    assert sum(counts.values()) == priced["total"] == known.published
    assert counts["attention"] == sum(priced[kind] for kind in ("query", "key", "value", "output"))
    for kind in ("mlp", "norms", "embeddings", "head"):
        assert counts[kind] == priced[kind], kind


@pytest.mark.parametrize(
    ("name", "config", "attention", "norm"),
    [
        (
            "deepseek-v2-lite",
            lambda: transformers.DeepseekV2Config(
                hidden_size=2048, num_hidden_layers=27, num_attention_heads=16, q_lora_rank=None
            ),
            DeepseekV2Attention,
            DeepseekV2RMSNorm,
        ),
        ("deepseek-v3", transformers.DeepseekV3Config, DeepseekV3Attention, DeepseekV3RMSNorm),
    ],
)
def test_deepseek_attention(name: str, config: Callable[[], Any], attention: type[nn.Module], norm: type[nn.Module]):
    made = config()
    with torch.device("meta"):
        layer, before = attention(made, 0), norm(made.hidden_size)
    counts = {weight: p.numel() for weight, p in layer.named_parameters()}
    norms = sum(p.numel() for p in before.parameters())
    depth = made.num_hidden_layers
    priced = parameters(KNOWN[name].shape, KNOWN[name].options)
    assert depth * (sum(counts.values()) + norms) == priced["total"]
    assert depth * counts["o_proj.weight"] == priced["output"]
    assert depth * counts.get("q_proj.weight", counts.get("q_b_proj.weight")) == priced["query"]
    assert depth * norms == priced["norms"]
