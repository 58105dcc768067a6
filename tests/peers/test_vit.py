"""transformers' ViT with a classifier = headwise's `preset("vit")`, in float64: logits and gradients, of pixels too."""

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from headwise.models import build
from headwise.options import preset
from headwise.shape import ModelShape
from helpers.copying import EXACT, Tensors, each_layer, hold_equal, joined, scrambled, take, under


def translate(tensors: Tensors) -> Tensors:
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


@pytest.mark.parametrize("channels", [1, 3])
def test_model(path, channels):
    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        image_size=12,
        patch_size=4,
        num_channels=channels,
        num_labels=5,
        layer_norm_eps=1e-6,
    )
    peer = scrambled(ViTForImageClassification(config), torch.float64)
    options = preset("vit", image=12, patch=4, channels=channels, classes=5)
    model = take(build(ModelShape.parse("w32-h4-L2-m48"), options, dtype=torch.float64), path)
    images = torch.randn(3, channels, 12, 12, dtype=torch.float64)
    hold_equal(model, peer, translate, [images], EXACT, run_peer=lambda images: peer(images).logits)
