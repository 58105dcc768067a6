"""Small models of every family, as transformers itself makes and writes them."""

import copy
from pathlib import Path

import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn

from helpers.copying import scrambled

VOCAB, TOKENS, EPS, BASE = 61, 10, 0.01, 500.0
TEXT = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT |= {"intermediate_size": 48, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": BASE}}
LLAMA = {**TEXT, **ROPE, "num_key_value_heads": 2, "head_dim": 12, "rms_norm_eps": EPS}
LLAMA3 = {"rope_type": "llama3", "rope_theta": BASE, "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
MLA = {**TEXT, **ROPE, "kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
MLA |= {"moe_intermediate_size": 16, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1}
MLA |= {"first_k_dense_replace": 1, "rms_norm_eps": EPS, "num_key_value_heads": 4}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IMAGE |= {"image_size": 12, "patch_size": 4}
GEMMA3 = {"sliding_attention": {"rope_type": "default", "rope_theta": 50.0}, "full_attention": ROPE["rope_parameters"]}
GROUPED = {**TEXT, **ROPE, "num_key_value_heads": 2}
HALF = {"rope_parameters": {**ROPE["rope_parameters"], "partial_rotary_factor": 0.5}}
YARN = {"rope_type": "yarn", "rope_theta": BASE, "factor": 4.0, "original_max_position_embeddings": 64}
YARN |= {"beta_fast": 4.0, "beta_slow": 1.0}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
WHISPER = {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 8}
WHISPER |= {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
WHISPER |= {f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")}
WHISPER |= {"max_source_positions": TOKENS, "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1}
WHISPER |= {"eos_token_id": 2, "decoder_start_token_id": 1}

# name: model class, configuration class, its numbers, the shape in headwise's words, its layers' attention
FAMILIES = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, "w32-h4-r12-g2-L2-m48"),
    "llama with biases and scaling": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**LLAMA, "attention_bias": True, "rope_parameters": LLAMA3},
        "w32-h4-r12-g2-L2-m48",
    ),
    "linear scaling": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {**LLAMA, "rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": BASE}},
        "w32-h4-r12-g2-L2-m48",
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": None}, "w32-h4-r12-g2-L2-m48"),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA, "w32-h4-r12-g2-L2-m48"),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", LLAMA, "w32-h4-r12-g2-L2-m48"),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", LLAMA, "w32-h4-r12-g2-L2-m48"),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**LLAMA, "query_pre_attn_scalar": 20, "attn_logit_softcapping": None},
        "w32-h4-r12-g2-L2-m48",
    ),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**LLAMA, "rope_parameters": GEMMA3, "layer_types": ["sliding_attention", "full_attention"]},
        "w32-h4-r12-g2-L2-m48",
    ),
    "granite": (
        "GraniteForCausalLM",
        "GraniteConfig",
        {**TEXT, **ROPE, "num_key_value_heads": 2, "attention_multiplier": 0.2},
        "w32-h4-g2-L2-m48",
    ),
    "smollm3": (
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        {**TEXT, **ROPE, "num_key_value_heads": 2, "no_rope_layers": [1, 1]},
        "w32-h4-g2-L2-m48",
    ),
    "starcoder2": (
        "Starcoder2ForCausalLM",
        "Starcoder2Config",
        {**TEXT, **ROPE, "num_key_value_heads": 2},
        "w32-h4-g2-L2-m48",
    ),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 24},
        "w32-h4-L2-m48",
    ),
    "clip text": (
        "CLIPTextModel",
        "CLIPTextConfig",
        {**TEXT, "max_position_embeddings": 24, "eos_token_id": 2},
        "w32-h4-L2-m48",
    ),
    "clip vision": ("CLIPVisionModel", "CLIPVisionConfig", IMAGE, "w32-h4-L2-m48"),
    "siglip vision": ("SiglipVisionModel", "SiglipVisionConfig", IMAGE, "w32-h4-L2-m48"),
    "nanochat": ("NanoChatForCausalLM", "NanoChatConfig", {**LLAMA, "head_dim": 8}, "w32-h4-g2-L2-m48"),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCAB, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4},
        "w32-h4-L2",
    ),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {**TEXT, "rotary_pct": 0.5}, "w32-h4-p4-L2-m48"),
    "bert": ("BertForMaskedLM", "BertConfig", TEXT, "w32-h4-L2-m48"),
    "roberta": ("RobertaModel", "RobertaConfig", TEXT, "w32-h4-L2-m48"),
    "electra": ("ElectraModel", "ElectraConfig", {**TEXT, "embedding_size": 16}, "w32-h4-L2-m48"),
    "distilbert": (
        "DistilBertModel",
        "DistilBertConfig",
        {"vocab_size": VOCAB, "dim": 32, "hidden_dim": 48, "n_heads": 4, "n_layers": 2},
        "w32-h4-L2-m48",
    ),
    "vit": ("ViTForImageClassification", "ViTConfig", IMAGE, "w32-h4-L2-m48"),
    "deit": ("DeiTModel", "DeiTConfig", IMAGE, "w32-h4-L2-m48"),
    "dinov2": ("Dinov2Model", "Dinov2Config", IMAGE, "w32-h4-L2"),
    "yarn": ("LlamaForCausalLM", "LlamaConfig", {**LLAMA, "rope_parameters": YARN}, "w32-h4-r12-g2-L2-m48"),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**LLAMA, **EXPERTS}, "w32-h4-r12-g2-L2-m0"),
    "qwen2 with experts": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**GROUPED, **EXPERTS, "shared_expert_intermediate_size": 16},
        "w32-h4-g2-L2-m0",
    ),
    "qwen3 with experts": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**LLAMA, **EXPERTS}, "w32-h4-r12-g2-L2-m0"),
    "phi": ("PhiForCausalLM", "PhiConfig", {**GROUPED, "partial_rotary_factor": 0.5}, "w32-h4-g2-p4-L2-m48"),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", GROUPED, "w32-h4-g2-L2-m48"),
    "phi4-mini": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {**GROUPED, "rope_parameters": {**ROPE["rope_parameters"], "partial_rotary_factor": 0.75}},
        "w32-h4-g2-p6-L2-m48",
    ),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", GROUPED, "w32-h4-g2-L2-m48"),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", {**GROUPED, "rms_norm_eps": EPS}, "w32-h4-g2-L2-m48"),
    "olmo3": ("Olmo3ForCausalLM", "Olmo3Config", {**GROUPED, "rms_norm_eps": EPS}, "w32-h4-g2-L2-m48"),
    "gpt-oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
        "w32-h4-r12-g2-L2-m0",
    ),
    "glm": ("GlmForCausalLM", "GlmConfig", {**LLAMA, **HALF}, "w32-h4-r12-g2-p6-L2-m48"),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", {**LLAMA, **HALF}, "w32-h4-r12-g2-p6-L2-m48"),
    "cohere": ("CohereForCausalLM", "CohereConfig", GROUPED, "w32-h4-g2-L2-m48"),
    "cohere2": (
        "Cohere2ForCausalLM",
        "Cohere2Config",
        {**GROUPED, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 32},
        "w32-h4-g2-L2-m48",
    ),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", TEXT, "w32-h4-L2-m48"),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**TEXT, "embedding_size": 16}, "w32-h4-L2-m48"),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**TEXT, "cls_token_id": 1, "sep_token_id": 2},
        "w32-h4-L2-m48",
    ),
    "siglip text": ("SiglipTextModel", "SiglipTextConfig", TEXT, "w32-h4-L2-m48"),
    "dinov3": (
        "DINOv3ViTModel",
        "DINOv3ViTConfig",
        {**IMAGE, "image_size": 4, "num_register_tokens": 5},
        "w32-h4-L2-m48",
    ),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCAB, "d_model": 32, "d_kv": 10, "d_ff": 48, "num_layers": 2, "num_heads": 4},
        "w32-h4-r10-L4-m48",
    ),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, "w32-h4-L4-m48"),
    "deepseek v2": (
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        {**MLA, "q_lora_rank": None},
        "w32-h4-r20-v10-c16-p8-m48,0",
    ),
    "deepseek v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**MLA, "q_lora_rank": 24},
        "w32-h4-r20-v10-c16-q24-p8-m48,0",
    ),
}


def saved(name: str, folder: Path) -> nn.Module:
    """The model, its weights far from their start, and its files."""
    kind, config, sizes, _ = FAMILIES[name]
    made = scrambled(getattr(hf, kind)(getattr(hf, config)(**copy.deepcopy(sizes), attn_implementation="eager")))
    for name_of, parameter in made.named_parameters():
        if "relative_attention_bias" in name_of:  # no part of the heads
            parameter.data.zero_()
    made.save_pretrained(folder)
    return made


def example(config) -> dict[str, Tensor]:
    """Something for a model of this configuration to read."""
    tokens = torch.randint(3, VOCAB, (1, TOKENS))
    if "image_size" in config.to_dict():
        return {"pixel_values": torch.randn(1, 3, config.image_size, config.image_size)}
    if config.model_type == "whisper":
        return {"input_features": torch.randn(1, 8, 2 * TOKENS), "decoder_input_ids": tokens}
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})


WORDS = [f"w{number}" for number in range(VOCAB - 2)]


def with_tokenizer(folder: Path) -> Path:
    """A file of random words, and a tokenizer that knows them, beside the model."""
    words = Tokenizer(WordLevel({"[UNK]": 0, "[MASK]": 1, **{word: i + 2 for i, word in enumerate(WORDS)}}, "[UNK]"))
    words.pre_tokenizer = Whitespace()
    made = hf.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", mask_token="[MASK]")
    made.save_pretrained(folder)
    text = folder.parent / "text.txt"
    text.write_text(" ".join(WORDS[int(i)] for i in torch.randint(len(WORDS), (300,))))
    return text
