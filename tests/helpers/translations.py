"""Peers' tensors under headwise's names, a model at a time: GPT-2, BERT, ViT and NanoChat (Llama is in `copying`)."""

from torch import Tensor

from helpers.copying import Tensors, each_layer, joined, llama_attention, under, within

_GPT2 = {
    "ln_1": "norms.0",
    "attn.c_attn": "attention.input",
    "attn.c_proj": "attention.output",
    "ln_2": "norms.1",
    "mlp.c_fc": "mlp.input",
    "mlp.c_proj": "mlp.output",
}


def gpt2_model(tensors: Tensors) -> Tensors:
    ours = {
        "embedding.weight": tensors["transformer.wte.weight"],
        "places.weight": tensors["transformer.wpe.weight"],
        "body.final_norm.weight": tensors["transformer.ln_f.weight"],
        "body.final_norm.bias": tensors["transformer.ln_f.bias"],
    }
    for block, layer in each_layer(tensors, "transformer.h."):
        for name, tensor in layer.items():
            module, kind = name.rsplit(".", 1)
            ours[f"{block}{_GPT2[module]}.{kind}"] = tensor.mT if tensor.dim() == 2 else tensor
    return ours


def bert_model(tensors: Tensors) -> Tensors:
    embeddings = within(tensors, "embeddings.")
    ours = {
        "embedding.weight": embeddings["word_embeddings.weight"],
        "places.weight": embeddings["position_embeddings.weight"],
        "segments.weight": embeddings["token_type_embeddings.weight"],
        **joined(embeddings, ("LayerNorm",), "embedding_norm"),
    }
    if "pooler.dense.weight" in tensors:
        ours |= joined(tensors, ("pooler.dense",), "pooler")
    for block, layer in each_layer(tensors, "encoder.layer."):
        names = [f"attention.self.{name}" for name in ("query", "key", "value")]
        ours |= under(
            block,
            {
                **joined(layer, names, "attention.input"),
                **joined(layer, ("attention.output.dense",), "attention.output"),
                **joined(layer, ("attention.output.LayerNorm",), "norms.0"),
                **joined(layer, ("intermediate.dense",), "mlp.input"),
                **joined(layer, ("output.dense",), "mlp.output"),
                **joined(layer, ("output.LayerNorm",), "norms.1"),
            },
        )
    return ours


def bert_masked(tensors: Tensors) -> Tensors:
    head = within(tensors, "cls.predictions.")
    return {
        **bert_model(within(tensors, "bert.")),
        **joined(head, ("transform.dense",), "masked_head.dense"),
        **joined(head, ("transform.LayerNorm",), "masked_head.norm"),
        "masked_head.bias": head["bias"],
    }


def bert_classes(tensors: Tensors) -> Tensors:
    return bert_model(within(tensors, "bert.")) | joined(tensors, ("classifier",), "head")


def vit_model(tensors: Tensors) -> Tensors:
    embeddings = "vit.embeddings."
    ours = {
        "class_token": tensors[embeddings + "cls_token"].flatten(),
        "places": tensors[embeddings + "position_embeddings"][0],
        "patches.weight": tensors[embeddings + "patch_embeddings.projection.weight"].flatten(1),
        "patches.bias": tensors[embeddings + "patch_embeddings.projection.bias"],
        **joined(tensors, ("vit.layernorm",), "body.final_norm"),
        **joined(tensors, ("classifier",), "head"),
    }
    for block, layer in each_layer(tensors, "vit.layers."):
        names = [f"attention.{name}_proj" for name in "qkv"]
        ours |= under(
            block,
            {
                **joined(layer, names, "attention.input"),
                **joined(layer, ("attention.o_proj",), "attention.output"),
                **joined(layer, ("layernorm_before",), "norms.0"),
                **joined(layer, ("layernorm_after",), "norms.1"),
                **joined(layer, ("mlp.fc1",), "mlp.input"),
                **joined(layer, ("mlp.fc2",), "mlp.output"),
            },
        )
    return ours


def _exchanged(rows: Tensor, rank: int) -> Tensor:
    return rows.unflatten(0, (-1, rank)).roll(rank // 2, dims=1).flatten(0, 1)


def nanochat_model(tensors: Tensors, rank: int) -> Tensors:
    ours = {"embedding.weight": tensors["model.embed_tokens.weight"], "head.weight": tensors["lm_head.weight"]}
    for block, layer in each_layer(tensors, "model.layers."):
        attention = within(layer, "self_attn.")
        attention |= {name: _exchanged(attention[name], rank) for name in ("q_proj.weight", "k_proj.weight")}
        ours |= under(block + "attention.", llama_attention(attention))
        ours |= under(block, joined(layer, ("mlp.fc1",), "mlp.input") | joined(layer, ("mlp.fc2",), "mlp.output"))
    return ours
