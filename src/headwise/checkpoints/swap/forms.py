"""In which ways layers of transformers' models hold attention: a form is a row, and most rows are names."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Form:
    """One way in which layers of a reader's family hold attention.

    `turns` is how the model's rotary table lists its frequencies: "halves" (all of them, twice), "twice" (each of
    them, twice), "once", "complex", or "patches" (as halves, of an image's patches alone, which come last). `gives` is
    what the module gives back: "weights" with the output, "bias" between them, "asked" weights alone, or the "sum" with
    its input, normed.
    """

    families: tuple[str, ...]
    place: str  # of the module in a layer
    projections: tuple[str, ...]  # what the module projects with
    classes: tuple[str, ...]  # known to have that form
    outside: str = ""  # the output projection, where it stands outside the module: its place in the layer
    turns: str = "halves"
    gives: str = "weights"
    softcap: str = ""  # of the module: what bounds its logits


_FOUR = ("q_proj", "k_proj", "v_proj", "o_proj")
_OUT = (*_FOUR[:3], "out_proj")
_BERTS = ("Bert", "Roberta", "XLMRoberta", "Camembert", "Electra")
_LLAMAS = (
    *("Llama", "Mistral", "Qwen2", "Qwen3", "Granite", "SmolLM3", "Starcoder2", "Mixtral", "Qwen2Moe", "Qwen3Moe"),
    *("Gemma", "Gemma3", "Olmo", "Olmo2", "Olmo3"),
)
_LATENT: tuple[str, ...] = ("kv_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm", "o_proj")
_LATENT += ("q_proj", "q_a_proj", "q_a_layernorm", "q_b_proj")  # one way or the other
_TOWERS = ("clip", "clip_text_model", "clip_vision_model")
FORMS = (
    Form(("llama", "olmo", "olmo2", "olmo3"), "self_attn", _FOUR, tuple(f"{name}Attention" for name in _LLAMAS)),
    Form(("llama",), "self_attn", _FOUR, ("Gemma2Attention",), softcap="attn_logit_softcapping"),
    Form(("gpt_oss",), "self_attn", _FOUR, ("GptOssAttention",), turns="once"),
    Form(("glm", "glm4"), "self_attn", _FOUR, ("GlmAttention", "Glm4Attention")),
    Form(("cohere", "cohere2"), "self_attn", _FOUR, ("CohereAttention", "Cohere2Attention"), turns="twice"),
    Form(("phi",), "self_attn", (*_FOUR[:3], "dense"), ("PhiAttention",)),
    Form(("phi3",), "self_attn", ("qkv_proj", "o_proj"), ("Phi3Attention",)),
    Form(("deepseek",), "self_attn", _LATENT, ("DeepseekV3Attention",)),
    Form(("deepseek",), "self_attn", _LATENT, ("DeepseekV2Attention",), turns="complex"),
    Form(("nanochat",), "self_attn", _FOUR, ("NanoChatAttention",)),
    Form(("gpt2",), "attn", ("c_attn", "c_proj"), ("GPT2Attention",)),
    Form(("gpt_neox",), "attention", ("query_key_value", "dense"), ("GPTNeoXAttention",)),
    Form(
        ("bert",),
        "attention.self",
        ("query", "key", "value"),
        tuple(f"{name}SelfAttention" for name in _BERTS),
        outside="attention.output",
    ),
    Form(("bert",), "attention", ("q_lin", "k_lin", "v_lin", "out_lin"), ("DistilBertSelfAttention",)),
    Form(("mpnet",), "attention.attn", ("q", "k", "v", "o"), ("MPNetSelfAttention",), gives="asked"),
    Form(("albert",), "attention", ("query", "key", "value", "dense"), ("AlbertAttention",), gives="sum"),
    Form(("modernbert",), "attn", ("Wqkv", "Wo"), ("ModernBertAttention",)),
    Form(("t5", "mt5"), "SelfAttention", ("q", "k", "v", "o"), ("T5Attention", "MT5Attention"), gives="bias"),
    Form(
        ("vit",),
        "attention",
        _FOUR,
        tuple(f"{name}Attention" for name in ("ViT", "DeiT", "Dinov2", "Dinov2WithRegisters", "ViTMAE")),
    ),
    Form(("dinov3_vit",), "attention", _FOUR, ("DINOv3ViTAttention",), turns="patches"),
    Form(("opt", "whisper", *_TOWERS), "self_attn", _OUT, ("OPTAttention", "WhisperAttention", "CLIPAttention")),
    Form(("siglip", "siglip_text_model", "siglip_vision_model"), "self_attn", _OUT, ("SiglipAttention",)),
)
SERVED = "transformers' " + ", ".join(
    name.removesuffix("SelfAttention").removesuffix("Attention") for form in FORMS for name in form.classes
)


def table_of(form: Form, turned: tuple[Tensor, Tensor] | Tensor, tokens: int) -> Tensor:
    """(2, B, T, n): the model's cosines and sines, each frequency once; before an image's patches nothing turns."""
    if isinstance(turned, Tensor):  # as complex numbers
        return torch.stack([turned.real, turned.imag])
    table = torch.stack(turned)
    if form.turns == "once":
        return table
    if form.turns == "twice":
        return table[..., ::2]
    table = table[..., : table.shape[-1] // 2]
    if form.turns == "halves":
        return table
    before = tokens - table.shape[-2]
    return torch.stack([F.pad(table[0], (0, 0, before, 0), value=1.0), F.pad(table[1], (0, 0, before, 0))])[:, None]


def distance_bias(host: Any, given: dict[str, Any], keys: int) -> Tensor | None:
    """What is added to logits by distance: given, or worked out by the module that has its table (T5's first)."""
    bias: Tensor | None = given.get("position_bias")
    if bias is None and getattr(host, "has_relative_attention_bias", False):
        tokens = given["hidden_states"].shape[1]
        bias = host.compute_bias(tokens, keys, given["hidden_states"].device, keys - tokens)
    return bias


def result(
    form: Form, host: Any, given: dict[str, Any], output: Tensor, weights: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, ...]:
    """What the module gave back."""
    if form.gives == "sum":
        return host.LayerNorm(given["hidden_states"] + host.output_dropout(output)), weights
    if form.gives == "bias":
        return output, bias, weights
    if form.gives == "asked":
        return (output,) if weights is None else (output, weights)
    return (host.resid_dropout(output) if hasattr(host, "resid_dropout") else output), weights
