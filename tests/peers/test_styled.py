"""transformers' Swin = headwise's style `swin`, whole; Florence-2's blocks = those of the style `davit`."""

import torch
from transformers import Florence2VisionConfig, SwinConfig, SwinForImageClassification
from transformers.models.florence2.modeling_florence2 import Florence2VisionSpatialBlock

from headwise.mixer import find_mixer
from headwise.models import build
from headwise.models.styled import StyledBlock
from headwise.options import preset
from headwise.shape import AttentionShape, ModelShape
from helpers.copying import SINGLE, hold_equal, joined, scrambled, under, within


def swin_block(tensors):
    attention = within(tensors, "attention.")
    return {
        **under("attention.", joined(attention, ("q_proj", "k_proj", "v_proj"), "input")),
        **under("attention.", joined(attention, ("o_proj",), "output")),
        "attention.distances": attention["relative_position_bias.relative_position_bias_table"],
        **joined(tensors, ("layernorm_before",), "norms.0"),
        **joined(tensors, ("layernorm_after",), "norms.1"),
        **joined(tensors, ("mlp.fc1",), "mlp.input"),
        **joined(tensors, ("mlp.fc2",), "mlp.output"),
    }


def swin_model(depths):
    def translate(tensors):
        ours = joined(tensors, ("swin.embeddings.patch_embeddings.projection",), "stem.patches")
        ours |= joined(tensors, ("swin.embeddings.norm",), "stem.norm")
        ours |= joined(tensors, ("swin.layernorm",), "body.final_norm") | joined(tensors, ("classifier",), "head")
        number = 0
        for stage, depth in enumerate(depths):
            layer = within(tensors, f"swin.encoder.layers.{stage}.")
            for block in range(depth):
                ours |= under(f"body.blocks.{number}.", swin_block(within(layer, f"blocks.{block}.")))
                number += 1
            if stage + 1 < len(depths):
                merge = f"body.merges.{stage}."
                ours |= joined(layer, ("downsample.norm",), f"{merge}norm")
                ours |= joined(layer, ("downsample.reduction",), f"{merge}reduce")
        return ours

    return translate


def test_swin():
    """Squares of 4 in grids of 8 and 4: some moved, and one that is the whole grid."""
    depths = [2, 2]
    config = SwinConfig(
        image_size=32, patch_size=4, embed_dim=8, depths=depths, num_heads=[2, 4], window_size=4, num_labels=5,
        drop_path_rate=0.0,
    )  # fmt: skip
    peer = scrambled(SwinForImageClassification(config))
    options = preset("swin", image=32, patch=4, classes=5, mixer="swin-4,swin-4-2")
    model = build(ModelShape.parse("w8-h2-L2,2"), options)
    images = torch.randn(2, 3, 32, 32)
    hold_equal(model, peer, swin_model(depths), [images], SINGLE, run_peer=lambda x: peer(x).logits)


def test_davits_spatial_block_is_florence_2s():
    config = Florence2VisionConfig(
        embed_dim=[16], num_heads=[4], num_groups=[4], depths=[1], window_size=3, qkv_bias=True,
        attn_implementation="eager",
    )  # fmt: skip
    peer = scrambled(Florence2VisionSpatialBlock(config, 0, 0.0))
    options = preset("davit", image=24, patch=4, classes=5)
    block = StyledBlock(AttentionShape.parse("w16-h4"), 64, options, find_mixer("squares-3"))

    def translate(tensors):
        return {
            **joined(tensors, ("conv1",), "places.0"),
            **joined(tensors, ("conv2",), "places.1"),
            **joined(tensors, ("norm1",), "norms.0"),
            **joined(tensors, ("norm2",), "norms.1"),
            **joined(tensors, ("window_attn.qkv",), "attention.input"),
            **joined(tensors, ("window_attn.proj",), "attention.output"),
            **joined(tensors, ("ffn.fc1",), "mlp.input"),
            **joined(tensors, ("ffn.fc2",), "mlp.output"),
        }

    def run_peer(x):
        return peer(x.mT.unflatten(2, (6, 6))).flatten(2).mT

    x = torch.randn(2, 36, 16)
    hold_equal(block, peer, translate, [x], SINGLE, run=lambda x: block(x, x)[0], run_peer=run_peer)
