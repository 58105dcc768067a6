"""transformers' ViT with a classifier = headwise's `preset("vit")`, in float64: logits and gradients, of pixels too."""

import pytest
import torch
from transformers import ViTConfig, ViTForImageClassification

from headwise.models import build
from headwise.options import preset
from headwise.shape import ModelShape
from helpers.copying import EXACT, hold_equal, scrambled, take
from helpers.translations import vit_model


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
    hold_equal(model, peer, vit_model, [images], EXACT, run_peer=lambda images: peer(images).logits)
