"""GPU kernels by the size of a head, and that the docs name the source of every one."""

from pathlib import Path

import pytest

from headwise.gpu.kernels import DECODING, KERNELS, kernel_fit
from headwise.shape import ModelShape

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "choosing.md"


def fit(shape):
    return kernel_fit(ModelShape.parse(shape))


@pytest.mark.parametrize("size", [64, 96, 128])
def test_usual_heads_suit_every_kernel_for_training(size):
    found = fit(f"w{4 * size}-h4-L2")
    assert found["warning"] == ""
    assert set(found["kernels"]) == {kernel.name for kernel in KERNELS if "AMD" not in kernel.name}


def test_small_and_odd_heads_are_padded():
    assert fit("w128-h4-L2")["warning"] == "heads of 32 run as 64 in FlashAttention-3: the same FLOPs take longer"
    assert "80 run as 96 in FlashAttention-2 and as 96 in FlashAttention-3" in fit("w320-h4-L2")["warning"]
    assert "no multiple of 8" in fit("w100-h10-L2")["warning"]


def test_keys_and_values_of_two_sizes():
    """DeepSeek's 192 and 128, and keys up to 64, have kernels; keys wider than values in general have not."""
    assert {"FlashAttention-3", "FlashAttention-4", "cuDNN"} == set(fit("w2048-h16-r192-v128-L2")["kernels"])
    assert "FlashAttention-2" not in fit("w768-h12-r32-v64-L2")["kernels"]
    assert fit("w2048-h8-r256-v64-L2") == {
        "head_dim": 256,
        "kernels": [],
        "warning": "no flash kernel takes keys of 256 with values of 64: pad them to one size",
    }


def test_large_heads():
    assert fit("w1792-h1-L28")["kernels"] == []
    assert "beyond every flash kernel" in fit("w1792-h1-L28")["warning"]
    assert fit("w2560-h8-L2")["kernels"] == ["torch SDPA flash (AMD)"]
    assert fit("w2048-h8-L2")["warning"] == ""


def test_a_latent_of_deepseeks_size_has_a_kernel_for_decoding():
    assert "FlashMLA (decoding)" in fit("w1280-h10-c512-p64-L20")["kernels"]
    assert "FlashMLA (decoding)" not in fit("w1280-h10-c256-p64-L20")["kernels"]


def test_the_worst_layer_speaks():
    assert fit("w512-h8x2,1x1")["head_dim"] == 512


def test_the_guide_links_every_source():
    text = GUIDE.read_text()
    assert [kernel.name for kernel in (*KERNELS, *DECODING) if kernel.source not in text] == []
