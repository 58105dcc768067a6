"""Parameter counts: transformers' models of the published sizes (no numbers, only shapes) = `headwise.cost`, by part.

The sizes come from the models' cards; what is left out is the config class's default. A token of DeepSeek's meets those
experts that its configuration says, of which a whole model counts all.
"""

from collections import Counter
from typing import Any

import pytest
import torch
import transformers

from headwise.cost import cost_of
from headwise.known import KNOWN

SIGNS = {  # the first sign that a weight's name contains says where headwise counts it
    "embeddings": ("embed", "wte", "wpe"),  # with BERT's norm of them
    "norms": ("norm", "ln_", "LayerNorm"),
    "attention": ("attn", "attention."),
    "mlp": ("mlp.", "intermediate.", "output.dense"),
    "head": ("lm_head", "classifier", "pooler"),
}
MIXTURE = {  # of a mixture of experts; its attention by latents
    "router": ("mlp.gate.",),
    "experts": ("experts",),
    "norms": ("input_layernorm", "post_attention_layernorm", "model.norm"),
    "latents": ("kv_a_", "q_a_"),
}


def part(name: str, signs: dict[str, tuple[str, ...]] = SIGNS) -> str:
    return next(part for part, words in signs.items() if any(word in name for word in words))


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


EXPERTS = {
    "deepseek-v2-lite": (
        "DeepseekV2ForCausalLM",
        sizes(2048, 27, 16, 10_944, q_lora_rank=None, moe_intermediate_size=1408, vocab_size=102_400)
        | {"n_routed_experts": 64, "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1},
    ),
    "deepseek-v3": ("DeepseekV3ForCausalLM", {}),
}


def counted(class_name: str, config: dict[str, Any], signs: dict[str, tuple[str, ...]] = SIGNS) -> Counter[str]:
    """The parameters of transformers' model, by part."""
    model_class = getattr(transformers, class_name)
    with torch.device("meta"):
        model = model_class(model_class.config_class(**config))
    counts: Counter[str] = Counter()
    for weight, parameter in model.named_parameters():
        counts[part(weight, signs)] += parameter.numel()
    return counts


@pytest.mark.parametrize("name", PUBLISHED)
def test_model(name):
    counts, priced = counted(*PUBLISHED[name]), cost_of(name).parameters
    assert sum(counts.values()) == priced["total"] == KNOWN[name].published
    assert counts["attention"] == sum(priced[kind] for kind in ("query", "key", "value", "output"))
    for kind in ("mlp", "norms", "embeddings", "head"):
        assert counts[kind] == priced[kind], kind


@pytest.mark.parametrize(("name", "active"), [("deepseek-v2-lite", 2.66e9), ("deepseek-v3", 37.55e9)])
def test_mixture(name, active):
    """All parts; of the active parameters DeepSeek's papers leave out the embeddings, and round: 2.4 and 37 B."""
    counts, cost = counted(*EXPERTS[name], MIXTURE | SIGNS | {"norms": MIXTURE["norms"]}), cost_of(name)
    assert sum(counts.values()) == cost.parameters["total"] == KNOWN[name].published
    parts = ("query", "key", "value", "output", "latents")  # the shared rotary key is made with the latent there
    assert counts["attention"] + counts["latents"] == sum(cost.parameters[kind] for kind in parts)
    for kind in ("mlp", "norms", "embeddings", "head", "experts", "router"):
        assert counts[kind] == cost.parameters[kind], kind
    assert cost.parameters_active == pytest.approx(active, rel=0.001)
