"""Which GPU kernels for attention are made for a head's size: what is fast is not the shape's matter alone.

As far as we know them, checked on no GPU: FlashAttention-2 and torch's flash backend take heads up to 256, in tiles of
32; FlashAttention-3 has kernels for 64, 96, 128, 192 and 256; torch's flash backend wants keys and values of one size;
FlashMLA serves a latent of 512 with a rotary part of 64. All of them want multiples of 8. No torch here.
"""

from typing import Any

from headwise.shape import AttentionShape, ModelShape

FAST = (64, 96, 128, 192, 256)
LARGEST, TILE, MULTIPLE = 256, 32, 8
FLASH_MLA = (512, 64)


def kernel_fit(shape: ModelShape) -> dict[str, Any]:
    """Kernels made for the heads of a shape, and a warning where none likes them; of the layer that fits worst."""
    fits = [_fit(layer) for layer in dict.fromkeys(shape.layers)]
    return min(fits, key=lambda fit: (len(fit["kernels"]), not fit["warning"]))


def _fit(layer: AttentionShape) -> dict[str, Any]:
    size = max(layer.qk_rank, layer.v_rank)
    if size > LARGEST:
        why = f"heads of {size} are beyond every flash kernel (at most {LARGEST}): attention runs on slow paths"
        return {"head_dim": size, "kernels": [], "warning": why}
    kernels = ["FlashAttention-2"]
    if layer.qk_rank == layer.v_rank:
        kernels.append("torch SDPA flash")
    if size in FAST:
        kernels.append("FlashAttention-3")
    if (layer.kv_latent, layer.rope_rank) == FLASH_MLA:
        kernels.append("FlashMLA (decoding)")
    return {"head_dim": size, "kernels": kernels, "warning": _warning(layer, size)}


def _warning(layer: AttentionShape, size: int) -> str:
    if layer.qk_rank % MULTIPLE or layer.v_rank % MULTIPLE:
        return f"heads of {size} are no multiple of {MULTIPLE}: they are padded"
    if size < FAST[0]:
        return f"heads of {size} leave tiles of {FAST[0]} partly empty: the same FLOPs take longer"
    if size % TILE:
        return f"heads of {size} are padded to {size + -size % TILE}"
    return ""
