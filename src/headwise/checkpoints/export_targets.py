"""What of transformers a model trained here can be: Llama, Qwen3, NanoChat, DeepSeek-V3 or BERT.

Each is an `ExportTarget`: the options it can have, what it cannot express of a shape, its configuration, tensor names.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headwise.checkpoints.rotary import rope_parameters
from headwise.options import PLAIN, ModelOptions
from headwise.shape import AttentionShape, ModelShape

Tensors = dict[str, Tensor]
LONGEST = 2048  # said of a model without a limit of its own, where a configuration must say something
HF_ACTIVATIONS = {"gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "relu": "relu", "silu": "silu"}
USUAL: dict[str, tuple[Any, ...]] = {  # that no configuration of transformers can change
    "residual": (True,),
    "hardmax": (False,),
    "logit_scale": (False,),
    "output_scale": (1.0,),
    "attention_softcap": (0.0,),
    "embedding_scale": (1.0,),
}


@dataclass(frozen=True)
class ExportTarget:
    """A model of transformers: what its options must be, what else, its configuration, and its names."""

    name: str
    options: dict[str, tuple[Any, ...]]  # what it can have
    misfit: Callable[[ModelShape, ModelOptions], str]  # what of the rest it cannot say; nothing where it can
    architecture: Callable[[ModelOptions], str]
    config: Callable[[ModelShape, ModelOptions], dict[str, Any]]
    tensors: Callable[[Tensors, ModelShape, ModelOptions], Tensors]


# ---- what fits -----------------------------------------------------------------------------------------------------


def misfit(target: ExportTarget, shape: ModelShape, options: ModelOptions) -> str:
    """Why the model is none of these; empty where it is one."""
    if options.mixer != PLAIN:
        return f"mixer is '{options.mixer}'"
    for name, possible in target.options.items():
        value = getattr(options, name)
        if value not in possible:
            return f"{name} is {value!r}"
    if len(set(shape.layers)) > 1 or len(set(shape.mlps)) > 1:
        return "layers differ"
    return "there is no MLP" if not shape.mlps[0] else target.misfit(shape, options)


def _usual(shape: AttentionShape) -> str:
    """Queries, keys and values of one rank, no latents."""
    if shape.kv_latent or shape.q_latent:
        return "attention has a latent"
    return "v_rank is not qk_rank" if shape.v_rank != shape.qk_rank else ""


def _llama_misfit(shape: ModelShape, options: ModelOptions) -> str:
    first = shape.layers[0]
    return _usual(first) or ("not all of a head turns" if first.rotated != first.qk_rank else "")


def _nanochat_misfit(shape: ModelShape, options: ModelOptions) -> str:
    return _llama_misfit(shape, options) or ("" if options.softcap else "softcap is 0")


def _deepseek_misfit(shape: ModelShape, options: ModelOptions) -> str:
    first = shape.layers[0]
    if not first.kv_latent:
        return "there is no latent"
    if not first.rope_rank or first.rope_rank % 2:
        return f"rope_rank is {first.rope_rank}"
    if options.norm_eps != 1e-6:  # of its latents' norms, which its configuration cannot change
        return f"norm_eps is {options.norm_eps:g}, not 1e-06"
    return "key/value heads are shared" if first.kv_heads != first.heads else ""


def _bert_misfit(shape: ModelShape, options: ModelOptions) -> str:
    first = shape.layers[0]
    if why := _usual(first):
        return why
    if first.kv_heads != first.heads or first.heads * first.qk_rank != first.width:
        return "heads × qk_rank is not the width, or key/value heads are shared"
    if not options.segments:
        return "there are no segments"
    if options.head == "mlm":
        return "" if options.tied else "the output is not tied"
    return "" if options.pooler else "there is no pooler"


# ---- configurations ------------------------------------------------------------------------------------------------


def _decoder_config(shape: ModelShape, options: ModelOptions) -> dict[str, Any]:
    first = shape.layers[0]
    return {
        "vocab_size": options.vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.mlps[0],
        "num_hidden_layers": shape.depth,
        "num_attention_heads": first.heads,
        "num_key_value_heads": first.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": options.context or LONGEST,
        "rms_norm_eps": options.norm_eps,
        "rope_parameters": {"rope_theta": options.rope_base, **rope_parameters(options.scaling)},
        "attention_bias": options.bias == "all",
        "attention_dropout": options.dropout,
        "tie_word_embeddings": options.tied,
    }


def _llama_config(shape: ModelShape, options: ModelOptions) -> dict[str, Any]:
    more = {"model_type": "llama", "head_dim": shape.layers[0].qk_rank, "mlp_bias": options.bias == "all"}
    return _decoder_config(shape, options) | more


def _qwen3_config(shape: ModelShape, options: ModelOptions) -> dict[str, Any]:
    return _decoder_config(shape, options) | {"model_type": "qwen3", "head_dim": shape.layers[0].qk_rank}


def _nanochat_config(shape: ModelShape, options: ModelOptions) -> dict[str, Any]:
    more = {"model_type": "nanochat", "head_dim": shape.layers[0].qk_rank, "hidden_act": "relu2"}
    return _decoder_config(shape, options) | more | {"final_logit_softcapping": options.softcap}


def _deepseek_config(shape: ModelShape, options: ModelOptions) -> dict[str, Any]:
    first = shape.layers[0]
    return _decoder_config(shape, options) | {
        "model_type": "deepseek_v3",
        "q_lora_rank": first.q_latent or None,
        "kv_lora_rank": first.kv_latent,
        "qk_nope_head_dim": first.content_rank,
        "qk_rope_head_dim": first.rope_rank,
        "v_head_dim": first.v_rank,
        "rope_interleave": False,
        "first_k_dense_replace": shape.depth,  # no layer has experts
    }


def _bert_config(shape: ModelShape, options: ModelOptions) -> dict[str, Any]:
    return {
        "model_type": "bert",
        "vocab_size": options.vocab,
        "hidden_size": shape.width,
        "intermediate_size": shape.mlps[0],
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.layers[0].heads,
        "hidden_act": HF_ACTIVATIONS[options.activation],
        "max_position_embeddings": options.context,
        "type_vocab_size": options.segments,
        "layer_norm_eps": options.norm_eps,
        "hidden_dropout_prob": options.dropout,
        "attention_probs_dropout_prob": options.dropout,
        "id2label": {str(i): f"LABEL_{i}" for i in range(options.classes or 2)},
    }


# ---- names ---------------------------------------------------------------------------------------------------------


def _blocks(state: Tensors, shape: ModelShape) -> Iterator[tuple[int, Tensors]]:
    for number in range(shape.depth):
        start = f"body.blocks.{number}."
        yield number, {name.removeprefix(start): t for name, t in state.items() if name.startswith(start)}


def _linear(block: Tensors, name: str, targets: tuple[str, ...], sizes: list[int] | None = None) -> Tensors:
    """One linear layer under other names, cut into several where it stands for them."""
    named: Tensors = {}
    for kind in ("weight", "bias"):
        if f"{name}.{kind}" in block:
            tensor = block[f"{name}.{kind}"]
            parts = tensor.split(sizes) if sizes else tensor.chunk(len(targets))
            named |= {f"{target}.{kind}": part for target, part in zip(targets, parts, strict=True)}
    return named


def _decoder_tensors(
    state: Tensors, shape: ModelShape, attention: Callable[[Tensors, AttentionShape], Tensors]
) -> Tensors:
    tensors = {
        "model.embed_tokens.weight": state["embedding.weight"],
        "model.norm.weight": state["body.final_norm.weight"],
    }
    tensors |= {"lm_head.weight": state["head.weight"]} if "head.weight" in state else {}
    for number, block in _blocks(state, shape):
        layer = {f"self_attn.{name}": tensor for name, tensor in attention(block, shape.layers[number]).items()}
        layer |= _linear(block, "mlp.input", ("mlp.gate_proj", "mlp.up_proj"))
        layer |= _linear(block, "mlp.output", ("mlp.down_proj",))
        layer |= _linear(block, "norms.0", ("input_layernorm",)) | _linear(
            block, "norms.1", ("post_attention_layernorm",)
        )
        tensors |= {f"model.layers.{number}.{name}": tensor for name, tensor in layer.items()}
    return tensors


def _llama_attention(block: Tensors, shape: AttentionShape) -> Tensors:
    tensors = _linear(block, "attention.input", ("q_proj", "k_proj", "v_proj"), shape.input_rows)
    tensors |= _linear(block, "attention.output", ("o_proj",))
    return (
        tensors
        | _linear(block, "attention.query_norm", ("q_norm",))
        | _linear(block, "attention.key_norm", ("k_norm",))
    )


def _deepseek_attention(block: Tensors, shape: AttentionShape) -> Tensors:
    """DeepSeek's heads are (content, rotated), headwise's (rotated, content)."""
    query = "q_a_proj" if shape.q_latent else "q_proj"
    tensors = _linear(block, "attention.input", (query, "kv_a_proj_with_mqa"), shape.input_rows)
    names = {"output": "o_proj", "kv_latent_norm": "kv_a_layernorm", "kv_up": "kv_b_proj"}
    names |= {"query_latent_norm": "q_a_layernorm", "query_up": "q_b_proj"}
    for ours, theirs in names.items():
        tensors |= _linear(block, f"attention.{ours}", (theirs,))
    rows = "q_b_proj.weight" if shape.q_latent else "q_proj.weight"
    heads = tensors[rows].unflatten(0, (shape.heads, -1))
    return tensors | {rows: heads.roll(-shape.rope_rank, dims=1).flatten(0, 1)}


def _nanochat_tensors(state: Tensors, shape: ModelShape, options: ModelOptions) -> Tensors:
    """NanoChat turns heads the other way round, which is headwise's way with their halves exchanged."""
    tensors = {"model.embed_tokens.weight": state["embedding.weight"], "lm_head.weight": state["head.weight"]}
    for number, block in _blocks(state, shape):
        rank = shape.layers[number].qk_rank
        layer = _llama_attention(block, shape.layers[number])
        for rows in ("q_proj.weight", "k_proj.weight"):
            layer[rows] = layer[rows].unflatten(0, (-1, rank)).roll(rank // 2, dims=1).flatten(0, 1)
        layer = {f"self_attn.{name}": tensor for name, tensor in layer.items()}
        layer |= _linear(block, "mlp.input", ("mlp.fc1",)) | _linear(block, "mlp.output", ("mlp.fc2",))
        tensors |= {f"model.layers.{number}.{name}": tensor for name, tensor in layer.items()}
    return tensors


def _bert_tensors(state: Tensors, shape: ModelShape, options: ModelOptions) -> Tensors:
    tensors = _linear(state, "embedding", ("embeddings.word_embeddings",))
    tensors |= _linear(state, "places", ("embeddings.position_embeddings",))
    tensors |= _linear(state, "segments", ("embeddings.token_type_embeddings",))
    tensors |= _linear(state, "embedding_norm", ("embeddings.LayerNorm",))
    tensors |= _linear(state, "pooler", ("pooler.dense",)) if options.head != "mlm" else {}
    names = {"attention.output": "attention.output.dense", "norms.0": "attention.output.LayerNorm"}
    names |= {"mlp.input": "intermediate.dense", "mlp.output": "output.dense", "norms.1": "output.LayerNorm"}
    for number, block in _blocks(state, shape):
        three = ("attention.self.query", "attention.self.key", "attention.self.value")
        layer = _linear(block, "attention.input", three, shape.layers[number].input_rows)
        for ours, theirs in names.items():
            layer |= _linear(block, ours, (theirs,))
        tensors |= {f"encoder.layer.{number}.{name}": tensor for name, tensor in layer.items()}
    if options.head == "none":
        return tensors
    tensors = {f"bert.{name}": tensor for name, tensor in tensors.items()}
    if options.head == "classes":
        return tensors | _linear(state, "head", ("classifier",))
    tensors |= _linear(state, "masked_head.dense", ("cls.predictions.transform.dense",))
    tensors |= _linear(state, "masked_head.norm", ("cls.predictions.transform.LayerNorm",))
    return tensors | {"cls.predictions.bias": state["masked_head.bias"]}


_DECODER: dict[str, tuple[Any, ...]] = {
    "family": ("decoder",),
    "positions": ("rotary",),
    "norm": ("rms",),
    "norm_place": ("pre",),
    "mlp_kind": ("gated",),
    "activation": ("silu",),
    "embedding_norm": (False,),
    "final_norm": (True,),
    "softcap": (0.0,),
    **USUAL,
}
_NANOCHAT: dict[str, tuple[Any, ...]] = {
    "norm": ("rms-plain",),
    "qk_norm": ("rms-plain",),
    "mlp_kind": ("plain",),
    "activation": ("relu2",),
    "bias": ("none",),
    "embedding_norm": (True,),
    "tied": (False,),
}
_BERT_HEADS = {"none": "BertModel", "mlm": "BertForMaskedLM", "classes": "BertForSequenceClassification"}
TARGETS = (
    ExportTarget(
        "Llama",
        _DECODER | {"qk_norm": ("none",), "bias": ("none", "all")},
        _llama_misfit,
        lambda options: "LlamaForCausalLM",
        _llama_config,
        lambda state, shape, options: _decoder_tensors(state, shape, _llama_attention),
    ),
    ExportTarget(
        "Qwen3",
        _DECODER | {"qk_norm": ("rms",), "bias": ("none",)},
        _llama_misfit,
        lambda options: "Qwen3ForCausalLM",
        _qwen3_config,
        lambda state, shape, options: _decoder_tensors(state, shape, _llama_attention),
    ),
    ExportTarget(
        "NanoChat",
        {name: one for name, one in _DECODER.items() if name != "softcap"} | _NANOCHAT,
        _nanochat_misfit,
        lambda options: "NanoChatForCausalLM",
        _nanochat_config,
        _nanochat_tensors,
    ),
    ExportTarget(
        "DeepSeek-V3",
        _DECODER | {"qk_norm": ("none",), "bias": ("none",)},
        _deepseek_misfit,
        lambda options: "DeepseekV3ForCausalLM",
        _deepseek_config,
        lambda state, shape, options: _decoder_tensors(state, shape, _deepseek_attention),
    ),
    ExportTarget(
        "BERT",
        {
            "family": ("bert",),
            "positions": ("learned",),
            "norm": ("layer",),
            "norm_place": ("post",),
            "mlp_kind": ("plain",),
            "activation": tuple(HF_ACTIVATIONS),
            "bias": ("all",),
            "qk_norm": ("none",),
            "embedding_norm": (True,),
            "final_norm": (False,),
            **USUAL,
        },
        _bert_misfit,
        lambda options: _BERT_HEADS[options.head],
        _bert_config,
        _bert_tensors,
    ),
)
