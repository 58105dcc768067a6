"""headwise.swap in other people's models: the same shape is the same model, larger ranks too, smaller are the best.

The peers are the models themselves before the swap. Truncation is held against closed forms: Eckart and Young's tail of
singular values, of QᵀK itself and of the logits that tokens really give.
"""

import copy
import math

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import headwise
from headwise.checkpoints.swap import Swap
from headwise.layers.attention import Attention
from headwise.layers.multihead import MultiheadAttention
from headwise.shape import AttentionShape
from headwise.spec import SpecError
from helpers.copying import same, scrambled

VOCAB, TOKENS = 61, 9
TEXT = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT |= {"intermediate_size": 48, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
LLAMA = {**TEXT, "num_key_value_heads": 2, "head_dim": 12}
GROUPED = {**TEXT, "num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
DEEP = {"kv_lora_rank": 16, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 10}
DEEP |= {"num_key_value_heads": 4, "first_k_dense_replace": 2}
GPT2 = {"vocab_size": VOCAB, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 4, "pad_token_id": 0}
GPT2 |= {"bos_token_id": None, "eos_token_id": None}
IMAGE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
IMAGE |= {"image_size": 12, "patch_size": 4}

# model class, configuration class, its numbers, attention in headwise's words, whether queries and keys pass a norm
MODELS = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, LLAMA, "w32-h4-r12-g2", False),
    "llama with biases": (
        hf.LlamaForCausalLM,
        hf.LlamaConfig,
        {**LLAMA, "attention_bias": True},
        "w32-h4-r12-g2",
        False,
    ),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig, {**LLAMA, "sliding_window": 4}, "w32-h4-r12-g2", False),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config, {**TEXT, "num_key_value_heads": 2}, "w32-h4-g2", False),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, LLAMA, "w32-h4-r12-g2", True),
    "nanochat": (hf.NanoChatForCausalLM, hf.NanoChatConfig, {**TEXT, "num_key_value_heads": 2}, "w32-h4-g2", True),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, {**GPT2, "scale_attn_by_inverse_layer_idx": True}, "w32-h4", False),
    "bert": (hf.BertForMaskedLM, hf.BertConfig, TEXT, "w32-h4", False),
    "electra": (hf.ElectraForMaskedLM, hf.ElectraConfig, {**TEXT, "embedding_size": 16}, "w32-h4", False),
    "distilbert": (
        hf.DistilBertForMaskedLM,
        hf.DistilBertConfig,
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48},
        "w32-h4",
        False,
    ),
    "roberta": (hf.RobertaModel, hf.RobertaConfig, TEXT, "w32-h4", False),
    "bert that decodes": (hf.BertLMHeadModel, hf.BertConfig, {**TEXT, "is_decoder": True}, "w32-h4", False),
    "granite": (hf.GraniteForCausalLM, hf.GraniteConfig, {**GROUPED, "attention_multiplier": 0.2}, "w32-h4-g2", False),
    "smollm3": (hf.SmolLM3ForCausalLM, hf.SmolLM3Config, GROUPED, "w32-h4-g2", False),
    "starcoder2": (hf.Starcoder2ForCausalLM, hf.Starcoder2Config, GROUPED, "w32-h4-g2", False),
    "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig, LLAMA, "w32-h4-r12-g2", False),
    "olmo": (hf.OlmoForCausalLM, hf.OlmoConfig, GROUPED, "w32-h4-g2", False),
    "phi3": (hf.Phi3ForCausalLM, hf.Phi3Config, GROUPED, "w32-h4-g2", False),
    "opt": (hf.OPTForCausalLM, hf.OPTConfig, {**TEXT, "ffn_dim": 48, "word_embed_proj_dim": 32}, "w32-h4", False),
    "clip text": (hf.CLIPTextModel, hf.CLIPTextConfig, {**TEXT, "eos_token_id": 2}, "w32-h4", False),
    "siglip text": (hf.SiglipTextModel, hf.SiglipTextConfig, TEXT, "w32-h4", False),
    "modernbert": (
        hf.ModernBertForMaskedLM,
        hf.ModernBertConfig,
        {**TEXT, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 6},
        "w32-h4",
        False,
    ),
    "gemma2": (
        hf.Gemma2ForCausalLM,
        hf.Gemma2Config,
        {**LLAMA, "attn_logit_softcapping": 1.5, "query_pre_attn_scalar": 20, "sliding_window": 4},
        "w32-h4-r12-g2",
        False,
    ),
    "gemma3": (
        hf.Gemma3ForCausalLM,
        hf.Gemma3TextConfig,
        {**LLAMA, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        "w32-h4-r12-g2",
        True,
    ),
    "gpt-oss": (
        hf.GptOssForCausalLM,
        hf.GptOssConfig,
        {**LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
        "w32-h4-r12-g2",
        False,
    ),
    "olmo2": (hf.Olmo2ForCausalLM, hf.Olmo2Config, GROUPED, "w32-h4-g2", True),
    "olmo3": (hf.Olmo3ForCausalLM, hf.Olmo3Config, {**GROUPED, "sliding_window": 4}, "w32-h4-g2", True),
    "glm": (hf.GlmForCausalLM, hf.GlmConfig, LLAMA, "w32-h4-r12-g2-p6", False),
    "glm4": (hf.Glm4ForCausalLM, hf.Glm4Config, LLAMA, "w32-h4-r12-g2-p6", False),
    "cohere": (hf.CohereForCausalLM, hf.CohereConfig, GROUPED, "w32-h4-g2", False),
    "cohere2": (
        hf.Cohere2ForCausalLM,
        hf.Cohere2Config,
        {**GROUPED, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 4},
        "w32-h4-g2",
        False,
    ),
    "phi": (hf.PhiForCausalLM, hf.PhiConfig, {**GROUPED, "partial_rotary_factor": 0.5}, "w32-h4-g2-p4", False),
    "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, {**TEXT, "rotary_pct": 0.5}, "w32-h4-p4", False),
    "deepseek v2": (
        hf.DeepseekV2ForCausalLM,
        hf.DeepseekV2Config,
        {**TEXT, **DEEP, "q_lora_rank": None},
        "w32-h4-r20-v10-c16-p8",
        True,
    ),
    "deepseek v3": (
        hf.DeepseekV3ForCausalLM,
        hf.DeepseekV3Config,
        {**TEXT, **DEEP, "q_lora_rank": 24},
        "w32-h4-r20-v10-c16-q24-p8",
        True,
    ),
    "mpnet": (hf.MPNetForMaskedLM, hf.MPNetConfig, TEXT, "w32-h4", False),
    "albert": (hf.AlbertForMaskedLM, hf.AlbertConfig, {**TEXT, "embedding_size": 16}, "w32-h4", False),
    "t5": (
        hf.T5ForConditionalGeneration,
        hf.T5Config,
        {"vocab_size": VOCAB, "d_model": 32, "d_kv": 10, "d_ff": 48, "num_layers": 2, "num_heads": 4}
        | {"decoder_start_token_id": 0},
        "w32-h4-r10",
        False,
    ),
    "vit": (hf.ViTForImageClassification, hf.ViTConfig, IMAGE, "w32-h4", False),
    "deit": (hf.DeiTModel, hf.DeiTConfig, IMAGE, "w32-h4", False),
    "dinov2": (hf.Dinov2Model, hf.Dinov2Config, IMAGE, "w32-h4", False),
    "dinov3": (hf.DINOv3ViTModel, hf.DINOv3ViTConfig, {**IMAGE, "num_register_tokens": 3}, "w32-h4", False),
    "clip vision": (hf.CLIPVisionModel, hf.CLIPVisionConfig, IMAGE, "w32-h4", False),
    "siglip vision": (hf.SiglipVisionModel, hf.SiglipVisionConfig, IMAGE, "w32-h4", False),
}
SWAPPED = {"albert": 1, "t5": 4}  # modules, where it is not two: one is gone through twice; two encode, two decode
ONLY_EAGER = ("gemma2", "gpt-oss", "mpnet")  # transformers has no other way for them
DECODERS = tuple(
    name for name, (kind, *_) in MODELS.items() if kind.__name__.endswith(("ForCausalLM", "LMHeadModel", "Generation"))
)
UNNORMED = tuple(name for name, (*_, normed) in MODELS.items() if not normed and name != "gpt-oss")
EXACT, SINGLE = 1e-12, 1e-6
# Some round to float32 in whatever they compute: eager attention its softmax, NanoChat its norms, which it takes after
# turning and headwise before.
# Gemma, OLMo and Cohere turn or normalise in float32.
ROUNDING = {(name, "sdpa") for name in ("nanochat", "modernbert", "gemma3", "olmo2", "olmo3", "cohere", "cohere2")}
ROUNDING |= {("deepseek v2", "sdpa"), ("deepseek v3", "sdpa")}
ROUNDING |= {(name, "eager") for name in MODELS if name not in ("gpt2", "bert", "mpnet", "albert", "t5")}


def make(name: str, dtype: torch.dtype = torch.float64, attention: str = "sdpa") -> nn.Module:
    kind, config, sizes, *_ = MODELS[name]
    attention = "eager" if name in ONLY_EAGER else attention
    model = scrambled(kind(config(**copy.deepcopy(sizes), attn_implementation=attention)), dtype)
    if name == "gpt2":
        model.transformer.wpe.weight.data *= 8  # else one token follows itself for ever
    return model


def swapped(model: nn.Module, choice, **options) -> tuple[nn.Module, Swap]:
    """A copy with other attention, and what was said about it."""
    new = copy.deepcopy(model)
    return new, headwise.swap(new, choice, **options)


def inputs(name: str, dtype: torch.dtype, padding: str = "left") -> dict[str, Tensor]:
    """Two sequences, the second with padding; or images."""
    if "image_size" in MODELS[name][2]:
        return {"pixel_values": torch.randn(2, 3, 12, 12, dtype=dtype)}
    if padding == "left" and name in ONLY_EAGER and dtype == torch.float64:
        padding = "right"  # left of float64, eager attention makes NaN
    real = torch.ones(2, TOKENS, dtype=torch.long)
    real[1, {"left": slice(3), "right": slice(6, None), "none": slice(0)}[padding]] = 0
    given = {"input_ids": torch.randint(1, VOCAB, (2, TOKENS)) * real, "attention_mask": real}
    return given | ({"decoder_input_ids": torch.randint(1, VOCAB, (2, TOKENS))} if name == "t5" else {})


@torch.no_grad()
def run(model: nn.Module, given: dict[str, Tensor]) -> Tensor:
    """Logits, or hidden states, of real tokens."""
    output = model(**given)
    found = output.logits if "logits" in output else output.last_hidden_state
    return found[given["attention_mask"].bool()] if "attention_mask" in given else found


def grown(text: str) -> AttentionShape:
    shape = AttentionShape.parse(text)
    return shape.replace(qk_rank=shape.qk_rank + 6, v_rank=shape.v_rank + 3, rope_rank=shape.rope_rank + 6)


def attention_of(model: nn.Module) -> list[Attention]:
    return [module for module in model.modules() if isinstance(module, Attention)]


# ---- the same function ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name", MODELS)
def test_the_same_shape_is_the_same_model(name, attention):
    if name in ONLY_EAGER and attention != "eager":
        pytest.skip("transformers has no such attention for it")
    for dtype, tolerance in ((torch.float64, EXACT), (torch.float32, SINGLE)):
        if name == "gpt-oss" and dtype == torch.float64:  # transformers has no experts in float64
            continue
        model = make(name, dtype, attention)
        new, told = swapped(model, MODELS[name][3])
        assert len(attention_of(new)) == len(told.layers) == SWAPPED.get(name, 2)
        given = inputs(name, dtype, "right" if attention == "eager" else "left")  # of float64 on the left it makes NaN
        same(run(new, given), run(model, given), SINGLE if (name, attention) in ROUNDING else tolerance)


@pytest.mark.parametrize("kind", [hf.MixtralForCausalLM, hf.Qwen2MoeForCausalLM, hf.Qwen3MoeForCausalLM])
def test_the_same_shape_beside_experts(kind):
    """In float32: transformers has no experts in float64."""
    model = scrambled(kind(kind.config_class(**(GROUPED if "Qwen2" in kind.__name__ else LLAMA), **EXPERTS)))
    new, _ = swapped(model, lambda number, old: old)
    given = inputs("llama", torch.float32)
    same(run(new, given), run(model, given), SINGLE)
    options = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(new.generate(**given, **options), model.generate(**given, **options))


def test_whisper_is_swapped_but_for_what_looks_at_the_encoder():
    sizes = {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "num_mel_bins": 8}
    sizes |= {
        f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("attention_heads", 4), ("ffn_dim", 48))
    }
    sizes |= {"max_source_positions": 10, "max_target_positions": 20, "pad_token_id": 0, "bos_token_id": 1}
    config = hf.WhisperConfig(**sizes, eos_token_id=2, decoder_start_token_id=1)
    model = scrambled(hf.WhisperForConditionalGeneration(config))
    new, told = swapped(model, "w32-h4")
    given = {"input_features": torch.randn(1, 8, 20), "decoder_input_ids": torch.randint(3, VOCAB, (1, TOKENS))}
    same(run(new, given), run(model, given), SINGLE)
    assert len(told.layers) == 4
    assert told.left == tuple(f"model.decoder.layers.{i}.encoder_attn" for i in range(2))


def test_siglip_swaps_its_text_and_says_what_it_left():
    model = scrambled(hf.SiglipModel(hf.SiglipConfig(text_config=TEXT, vision_config=IMAGE)))
    _, told = swapped(model, "w32-h4")
    assert len(told.layers) == 2
    assert all(layer.name.startswith("text_model.") for layer in told.layers)
    assert "left as they were: 3 attention layers (vision_model.encoder.layers.0.self_attn" in str(told)


@pytest.mark.parametrize("name", UNNORMED)
def test_larger_ranks_compute_the_same_and_can_learn(name):
    model = make(name)
    shape = grown(MODELS[name][3])
    new, told = swapped(model, shape)
    given = inputs(name, torch.float64)
    tolerance = SINGLE if (name, "eager" if name in ONLY_EAGER else "sdpa") in ROUNDING else EXACT
    same(run(new, given), run(model, given), tolerance)
    assert all(layer.after == shape and layer.error < tolerance for layer in told.layers)
    before = [layer.qk_matrices().detach() for layer in attention_of(new)]
    optimizer = torch.optim.SGD(new.parameters(), lr=1e-2)
    for _ in range(2):
        output = new(**given)
        (output.logits if "logits" in output else output.last_hidden_state).square().sum().backward()
        optimizer.step()
    for layer, old in zip(attention_of(new), before, strict=True):
        rank = AttentionShape.parse(MODELS[name][3]).qk_rank
        assert torch.linalg.matrix_rank(old, rtol=1e-9).max() <= rank
        assert torch.linalg.matrix_rank(layer.qk_matrices().detach(), rtol=1e-9).min() > rank


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", DECODERS)
def test_generate_gives_the_same_tokens(name, cached):
    model = make(name, torch.float32)
    given = {key: tensor for key, tensor in inputs(name, torch.float32).items() if key != "decoder_input_ids"}
    options = {"max_new_tokens": 14, "do_sample": False, "use_cache": cached}
    options |= {"no_repeat_ngram_size": 1}  # else some follow one token by itself for ever, whatever attention says
    expected = model.generate(**given, **options)
    assert len(expected[:, -14:].unique()) >= 14
    for shape in (MODELS[name][3], *(() if MODELS[name][4] else (grown(MODELS[name][3]),))):
        assert torch.equal(swapped(model, shape)[0].generate(**given, **options), expected)


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"cache_implementation": "static"}])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_generate_with_beams_and_a_cache_of_fixed_size(name, options):
    model = make(name, torch.float32)
    given = inputs(name, torch.float32)
    new, _ = swapped(model, grown(MODELS[name][3]))
    options = {**options, "max_new_tokens": 8, "do_sample": False, "disable_compile": True}
    assert torch.equal(new.generate(**given, **options), model.generate(**given, **options))


@torch.no_grad()
@pytest.mark.parametrize("name", ["llama", "bert", "vit"])
def test_attention_weights_are_still_given(name):
    model = make(name, attention="eager")
    new, _ = swapped(model, MODELS[name][3])
    given = inputs(name, torch.float64, padding="none")
    for ours, theirs in zip(*(m(**given, output_attentions=True).attentions for m in (new, model)), strict=True):
        same(ours, theirs, SINGLE)


def test_the_cache_holds_what_the_shape_says():
    new, _ = swapped(make("llama", torch.float32), "w32-h4-r8-v6-g2")
    cache = hf.DynamicCache(config=new.config)
    new(**inputs("llama", torch.float32), past_key_values=cache)
    assert {(layer.keys.shape, layer.values.shape) for layer in cache.layers} == {((2, 2, 9, 8), (2, 2, 9, 6))}


def test_only_the_layers_that_a_function_names():
    model = make("llama")
    new, told = swapped(model, lambda number, old: old.replace(v_rank=6) if number == 1 else None)
    assert [str(layer).split(",")[0] for layer in told.layers] == [
        "model.layers.1.self_attn: w32-h4-r12-g2 to w32-h4-r12-v6-g2"
    ]
    assert len(attention_of(new)) == 1


def test_state_dicts_and_copies_carry_everything():
    new, _ = swapped(make("llama"), "w32-h4-r8-g2")
    other, _ = swapped(make("llama"), "w32-h4-r8-g2")
    given = inputs("llama", torch.float64)
    assert not torch.equal(run(new, given), run(other, given))
    other.load_state_dict(new.state_dict())
    for one in (other, copy.deepcopy(new)):
        assert torch.equal(run(one, given), run(new, given))


# ---- the best truncation -------------------------------------------------------------------------------------------


def logits_of(model: nn.Module) -> list[Tensor]:
    """(H, W, W) a layer, with the scale in it."""
    return [
        layer.qk_matrices().detach() * layer.inverse_temperature / math.sqrt(layer.shape.qk_rank)
        for layer in attention_of(model)
    ]


def tail(matrix: Tensor, rank: int) -> float:
    """Eckart and Young: how far the nearest matrix of that rank is."""
    return float(torch.linalg.svdvals(matrix)[rank:].norm())


def test_truncation_is_eckart_and_young():
    model = make("vit")
    for layer in model.vit.layers:
        layer.attention.q_proj.bias.data.zero_()
    whole, _ = swapped(model, "w32-h4")
    new, _ = swapped(model, "w32-h4-r5-v3")
    for old, cut in zip(logits_of(whole), logits_of(new), strict=True):
        for head in range(4):
            assert float((old - cut)[head].norm()) == pytest.approx(tail(old[head], 5))
    for old, cut in zip(attention_of(whole), attention_of(new), strict=True):
        for before, after in zip(old.vo_matrices().detach(), cut.vo_matrices().detach(), strict=True):
            assert float((before - after).norm()) == pytest.approx(tail(before, 3))


def test_with_data_truncation_is_the_best_for_the_logits_they_give():
    """Softmax does not see what all keys share, so logits are compared around their mean over keys."""
    model = make("vit")
    for layer in model.vit.layers:
        layer.attention.q_proj.bias.data.zero_()
    given = inputs("vit", torch.float64)
    seen: list[Tensor] = []
    hook = model.vit.layers[0].attention.register_forward_pre_hook(lambda _, args: seen.append(args[0].flatten(0, 1)))
    run(model, given)
    hook.remove()
    tokens = seen[0]
    around = tokens - tokens.mean(0)
    assert len(tokens) < 32  # fewer than the width, so much of a matrix is never seen
    whole, _ = swapped(model, "w32-h4")
    blind, _ = swapped(model, "w32-h4-r3")
    new = copy.deepcopy(model)
    told = headwise.swap(new, "w32-h4-r3", data=lambda: new(**given))
    assert told.measured_on == "the data given"
    assert told.table["name"].to_list() == [layer.name for layer in told.layers]
    for head in range(4):
        old, cut, other = (logits_of(m)[0][head] for m in (whole, new, blind))
        best = tail(tokens @ old @ around.mT, 3)
        assert float((tokens @ (old - cut) @ around.mT).norm()) == pytest.approx(best)
        assert float((tokens @ (old - other) @ around.mT).norm()) > 1.1 * best


def test_with_data_truncation_is_the_best_for_the_values_they_give():
    model = make("vit")
    tokens = torch.randn(20, 32, dtype=torch.float64)
    whole, _ = swapped(model, "w32-h4")
    new = copy.deepcopy(model)
    headwise.swap(new, "w32-h4-v3", data=lambda: [layer.attention(tokens[None]) for layer in new.vit.layers])
    for old, cut in zip(attention_of(whole), attention_of(new), strict=True):
        for before, after in zip(old.vo_matrices().detach(), cut.vo_matrices().detach(), strict=True):
            assert float(((before - after) @ tokens.mT).norm()) == pytest.approx(tail(before @ tokens.mT, 3))


def plant(model: nn.Module, ranks: tuple[int, int]) -> None:
    """Llama whose heads need fewer frequency pairs and values than they have; each key/value head its own pairs."""
    with torch.no_grad():
        for layer in model.model.layers:
            attention = layer.self_attn
            keys = attention.k_proj.weight.view(2, 12, 32)
            for group in range(2):
                gone = torch.randperm(6)[ranks[0] // 2 :]
                keys[group, torch.cat([gone, gone + 6])] = 0
            values = attention.v_proj.weight.view(2, 12, 32)
            values.copy_(torch.randn(2, 12, ranks[1], dtype=values.dtype) @ values[:, : ranks[1]])


@pytest.mark.parametrize("aware", [False, True])
def test_under_rotary_whole_pairs_go_and_each_head_keeps_its_own(aware):
    model = make("llama")
    plant(model, (8, 5))
    given = inputs("llama", torch.float64)
    new = copy.deepcopy(model)
    told = headwise.swap(new, "w32-h4-r8-v5-g2", data=(lambda: new(**given)) if aware else None)
    same(run(new, given), run(model, given), 1e-7)  # float32 norms of the model's own
    assert max(layer.error for layer in told.layers) < EXACT
    pairs = [layer.pairs for layer in attention_of(new)]
    assert not all(torch.equal(one[0], one[1]) for one in pairs)
    options = {"max_new_tokens": 10, "do_sample": False}
    assert torch.equal(new.generate(**given, **options), model.generate(**given, **options))


def test_as_much_of_a_head_turns_as_before_where_nothing_is_said_of_it():
    model = make("phi")
    new, told = swapped(model, "w32-h4-g2")
    given = inputs("phi", torch.float64)
    same(run(new, given), run(model, given), EXACT)
    assert str(told.layers[0].after) == "w32-h4-g2-p4"
    assert str(swapped(model, "w32-h4-r4-g2")[1].layers[0].after) == "w32-h4-r4-g2-p2"


@pytest.mark.parametrize("name", ["olmo2", "olmo3"])
def test_sharing_less_behind_a_norm_over_all_heads(name):
    model = make(name)
    new, _ = swapped(model, "w32-h4")
    given = inputs(name, torch.float64)
    same(run(new, given), run(model, given), SINGLE)


@pytest.mark.parametrize("name", ["olmo2", "gemma3"])
def test_smaller_ranks_behind_other_norms_keep_values_exact(name):
    """Queries and keys lose what the error says; values that were never more than so many lose nothing."""
    model = make(name, torch.float64)
    rank = AttentionShape.parse(MODELS[name][3]).qk_rank
    new, told = swapped(model, f"w32-h4-r{rank - 2}-v{rank}-g2")
    assert all(1e-3 < layer.error < 1 for layer in told.layers)
    for layer in model.model.layers:
        layer.self_attn.v_proj.weight.data.view(2, rank, 32)[:, 3:] = 0
    new, told = swapped(model, f"w32-h4-r{rank}-v3-g2")
    given = inputs(name, torch.float64)
    same(run(new, given), run(model, given), SINGLE)


def test_sharing_less_changes_nothing():
    model = make("llama")
    new, told = swapped(model, "w32-h4-r12")
    given = inputs("llama", torch.float64)
    same(run(new, given), run(model, given), EXACT)
    assert max(layer.error for layer in told.layers) < EXACT


# ---- behind a norm -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [-4, 8])
@pytest.mark.parametrize("name", ["qwen3", "nanochat"])
def test_behind_a_norm_the_error_is_stated(name, more):
    """What is said is what the layer does to the tokens it sees."""
    model = make(name, torch.float32)
    given = {key: tensor[:1] for key, tensor in inputs(name, torch.float32).items()}
    new = copy.deepcopy(model)
    old = AttentionShape.parse(MODELS[name][3])
    told = headwise.swap(
        new, old.replace(qk_rank=old.qk_rank + more, rope_rank=old.qk_rank + more), data=lambda: new(**given)
    )
    calls: list[dict] = []
    layer = model.model.layers[0].self_attn
    layer.register_forward_pre_hook(lambda _, args, options: calls.append(options), with_kwargs=True)
    run(model, {**given, "use_cache": False})
    with torch.no_grad():
        before, after = (m.model.layers[0].self_attn(**calls[0])[0] for m in (model, new))
    measured = float((after - before).norm() / before.norm())
    assert told.layers[0].error == pytest.approx(measured, rel=0.02)
    assert 0 < measured < 1e-3 if more > 0 else 0.01 < measured < 1


# ---- new weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["w32-h8-r8-g2", "w32-h2-r24-v10-c12-p8", "w32-h4-r16-c8-q20"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_any_shape_with_new_weights_trains_and_generates(name, shape):
    new, told = swapped(make(name, torch.float32), shape, fresh=True)
    assert all(layer.error is None for layer in told.layers)
    given = inputs(name, torch.float32, padding="none")
    loss = new(**given, labels=given["input_ids"]).loss
    loss.backward()
    assert all(p.grad is not None and p.grad.any() for layer in attention_of(new) for p in layer.parameters())
    options = {"max_new_tokens": 8, "do_sample": False}
    with_cache, without = (new.generate(**given, **options, use_cache=cached) for cached in (True, False))
    assert torch.equal(with_cache, without)


# ---- torch's own layers --------------------------------------------------------------------------------------------


def encoder(batch_first: bool = True, bias: bool = True) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(32, 4, 48, batch_first=batch_first, bias=bias, dropout=0.0)
    return scrambled(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.float64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("shape", ["w32-h4", "w32-h4-r12-v11"])
def test_a_torch_encoder_computes_the_same(shape, batch_first, bias):
    model = encoder(batch_first, bias)
    x = torch.randn(3, 9, 32, dtype=torch.float64)
    x = x if batch_first else x.transpose(0, 1)
    padding = torch.arange(9) >= torch.tensor([[9], [5], [7]])
    causal = nn.Transformer.generate_square_subsequent_mask(9, dtype=torch.float64)
    new = copy.deepcopy(model)
    headwise.swap(new, shape, data=lambda: new(x))
    assert all(isinstance(layer.self_attn, MultiheadAttention) for layer in new.layers)
    hidden = torch.zeros(3, 9, dtype=torch.float64).masked_fill(padding, -math.inf)
    for masks in ({}, {"src_key_padding_mask": hidden}, {"mask": causal}):
        for training in (False, True):
            model.train(training), new.train(training)
            with torch.set_grad_enabled(training):  # without gradients torch's own takes another way
                same(new(x, **masks), model(x, **masks), EXACT)


def test_one_encoder_layer_and_a_decoder_layer():
    layer, memory = encoder().layers[0], torch.randn(2, 7, 32, dtype=torch.float64)
    new, _ = swapped(layer, "w32-h4")
    same(new(memory), layer(memory), EXACT)
    decoder = scrambled(nn.TransformerDecoderLayer(32, 4, 48, batch_first=True), torch.float64)
    new, told = swapped(decoder, "w32-h4-r9")
    assert len(told.layers) == 2
    same(new(memory, memory[:, :5]), decoder(memory, memory[:, :5]), EXACT)


# ---- what cannot be ------------------------------------------------------------------------------------------------


def refused(model: nn.Module, choice, **options) -> str:
    with pytest.raises(SpecError) as error:
        headwise.swap(model, choice, **options)
    return str(error.value)


def test_what_cannot_be_is_a_sentence_and_changes_nothing():
    model = make("llama")
    given = inputs("llama", torch.float64)
    before = run(model, given)
    assert "width is 32" in refused(model, "w64-h4")
    assert "width is 32" in refused(model, "w64-h4", fresh=True)
    assert "heads differs; fresh=True" in refused(model, "w32-h8")
    assert "kv_latent differs; fresh=True" in refused(model, "w32-h4-r12-c8")
    assert "repeated, not joined" in refused(model, "w32-h4-r12-g1")
    assert "letter" in refused(model, "w32-x4")
    assert "give an AttentionShape" in refused(model, lambda number, old: 12)
    assert "nothing to swap" in refused(model, lambda number, old: None)
    assert "width is 32" in refused(model, lambda number, old: old if number == 0 else "w64-h4")
    assert "did not run" in refused(model, "w32-h4-r8-g2", data=lambda: None)
    assert "leave one of them out" in refused(model, "w32-h4-r8-g2", data=lambda: None, fresh=True)
    assert torch.equal(run(model, given), before)
    headwise.swap(model, "w32-h4-r8-g2")
    assert "swapped before" in refused(model, "w32-h4-r8-g2")


def test_models_that_are_not_known_are_named():
    assert "attention in Linear; it knows transformers' Llama" in refused(nn.Linear(3, 3), "w32-h4")
    bart = hf.BartModel(hf.BartConfig(d_model=32, encoder_layers=1, decoder_layers=1, vocab_size=VOCAB))
    assert "BartModel" in refused(bart, "w32-h4")
    deepseek = make("deepseek v3")
    assert "kv_latent differs; fresh=True" in refused(deepseek, "w32-h4")
    assert "beside a latent ranks stay" in refused(deepseek, "w32-h4-r18-v10-c16-q24-p8")
    with torch.device("meta"):
        empty = hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA))
    assert "no numbers" in refused(empty, "w32-h4-r12-g2")
    model = make("llama")
    model.config._attn_implementation = "flex_attention"
    assert "attn_implementation='sdpa'" in refused(model, "w32-h4-r12-g2")
    layer = nn.TransformerEncoderLayer(32, 4)
    assert "no latent" in refused(layer, "w32-h4-c8", fresh=True)
    layer.self_attn = nn.MultiheadAttention(32, 4, add_bias_kv=True)
    assert "add_bias_kv" in refused(layer, "w32-h4")
    assert "model around" in refused(nn.MultiheadAttention(32, 4), "w32-h4")


def test_what_was_left_is_said():
    sizes = {**IMAGE, "num_channels": 3}
    model = hf.SiglipVisionModel(hf.SiglipVisionConfig(**sizes))
    told = headwise.swap(model, "w32-h4")
    assert len(told.layers) == 2
    assert told.left == ("head.attention",)  # the pooling head is torch's
    assert "left as they were: 1 attention layers (head.attention)" in str(told)


def test_the_trainer_of_transformers_trains_what_was_swapped(tmp_path):
    """The example of docs/guides/swap.md, where accelerate is installed, without which there is no Trainer."""
    pytest.importorskip("accelerate")
    model, _ = swapped(make("llama", torch.float32), "w32-h4-r8-g2")
    before = copy.deepcopy(attention_of(model)[0].input.weight)
    rows = [{"input_ids": [i, i + 1, i + 2], "labels": [i, i + 1, i + 2]} for i in range(1, 9)]
    arguments = hf.TrainingArguments(tmp_path / "out", max_steps=2, report_to="none", use_cpu=True)
    hf.Trainer(model, arguments, train_dataset=rows).train()
    assert not torch.equal(attention_of(model)[0].input.weight, before)
    model.save_pretrained(tmp_path / "swapped")
    back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "swapped", trust_remote_code=True).eval()
    given = inputs("llama", torch.float32)
    same(run(back, given), run(model.eval(), given), SINGLE)


def test_a_layer_that_computes_something_else_is_refused():
    model = make("llama")
    original = type(model.model.layers[1].self_attn).forward
    model.model.layers[1].self_attn.forward = lambda *args, **options: (
        1.1 * original(model.model.layers[1].self_attn, *args, **options)[0],
        None,
    )
    assert "computes something else than headwise does" in refused(model, "w32-h4-r12-g2")


@pytest.mark.parametrize("name", [name for name in MODELS if name != "bert that decodes"])
def test_a_swapped_model_is_saved_and_loaded(name, tmp_path):
    """By transformers itself, through the code in the folder."""
    shape = AttentionShape.parse(MODELS[name][3])
    new, _ = swapped(make(name, torch.float32), shape if shape.kv_latent else shape.replace(v_rank=5))
    new.save_pretrained(tmp_path / "model")
    auto = {"ForCausalLM": hf.AutoModelForCausalLM, "LMHeadModel": hf.AutoModelForCausalLM}
    auto |= {"ForConditionalGeneration": hf.AutoModelForSeq2SeqLM}
    auto |= {"ForMaskedLM": hf.AutoModelForMaskedLM, "ForImageClassification": hf.AutoModelForImageClassification}
    kind = next((one for end, one in auto.items() if type(new).__name__.endswith(end)), hf.AutoModel)
    back, told = kind.from_pretrained(tmp_path / "model", trust_remote_code=True, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    assert [str(layer.shape) for layer in attention_of(back)] == [str(layer.shape) for layer in attention_of(new)]
    given = inputs(name, torch.float32, "none")
    assert torch.equal(run(back.eval(), given), run(new.eval(), given))
    back.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "modeling_headwise.py").exists()


LOADED = {
    hf.MixtralForCausalLM: ({**LLAMA, **EXPERTS}, hf.AutoModelForCausalLM),
    hf.GPTNeoXForCausalLM: (TEXT, hf.AutoModelForCausalLM),
    hf.DeiTModel: (IMAGE, hf.AutoModel),
    hf.ViTForImageClassification: (IMAGE, hf.AutoModelForImageClassification),
}


@pytest.mark.parametrize("kind", LOADED)
def test_a_model_that_was_loaded_is_saved_under_the_names_it_has(kind, tmp_path):
    """transformers saves some families under other names than theirs in memory, and a folder's own code cannot tell."""
    sizes, auto = LOADED[kind]
    scrambled(kind(kind.config_class(**sizes))).save_pretrained(tmp_path / "first")
    model = kind.from_pretrained(tmp_path / "first").eval()
    new, _ = swapped(model, lambda number, old: old)
    new.save_pretrained(tmp_path / "second")
    back, told = auto.from_pretrained(tmp_path / "second", trust_remote_code=True, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    given = {"pixel_values": torch.randn(2, 3, 12, 12)}
    given = given if sizes is IMAGE else {"input_ids": torch.randint(1, VOCAB, (2, TOKENS))}
    same(run(back.eval(), given), run(model, given), SINGLE)


def test_a_latent_is_saved_and_loaded(tmp_path):
    new, _ = swapped(make("llama", torch.float32), "w32-h4-r12-c8-p4", fresh=True)
    new.save_pretrained(tmp_path / "model")
    back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)
    given = inputs("llama", torch.float32, "none")
    assert torch.equal(run(back.eval(), given), run(new.eval(), given))


@pytest.mark.parametrize(("shape", "fresh"), [("w32-h4-r12-g2", False), ("w32-h4-r12-c8-p4", True)])
def test_lora_trains_what_the_guide_names(shape, fresh):
    peft = pytest.importorskip("peft")
    new, _ = swapped(make("llama", torch.float32), shape, fresh=fresh)
    names = ["headwise.input", "headwise.output", *(["headwise.kv_up"] if fresh else [])]
    model = peft.get_peft_model(new, peft.LoraConfig(target_modules=names, task_type="CAUSAL_LM"))
    trained = {name.split("self_attn.")[1].split(".lora")[0] for name, p in model.named_parameters() if p.requires_grad}
    assert trained == set(names)
    given = inputs("llama", torch.float32, "none")
    model(**given, labels=given["input_ids"]).loss.backward()
    assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
    for name, p in model.named_parameters():
        if "lora_B" in name:
            p.data.normal_()
    tokens = given["input_ids"][:1]
    made = [model.generate(input_ids=tokens, max_new_tokens=8, do_sample=False, use_cache=c) for c in (True, False)]
    assert torch.equal(*made)  # from a cache, where a latent's expansion is absorbed, LoRA counts too


def test_names_that_the_guide_gives_for_lora():
    new, _ = swapped(make("qwen3", torch.float32), "w32-h4-r12-g2")
    linears = {name for name, module in new.named_modules() if isinstance(module, nn.Linear) and ".self_attn" in name}
    assert {name.split("self_attn.")[1] for name in linears} == {"headwise.input", "headwise.output"}
