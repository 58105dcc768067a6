"""Which GPU kernels for attention take a head's size: what is fast is not the shape's matter alone.

The sizes are those that each source says or checks, as read in November 2026 and in 16-bit numbers; we timed none. A
kernel compiled for certain sizes runs the next larger one with the rest empty. No torch here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headwise.shape import AttentionShape, ModelShape

MULTIPLE = 8  # of every kernel; other sizes are padded
LARGEST = 256  # for NVIDIA's GPUs
LARGEST_ANY = 512  # on AMD's
_FLASH = "https://github.com/Dao-AILab/flash-attention/blob/main"
_TORCH = "https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/native/transformers/cuda/sdp_utils.cpp"
_CUDNN = "https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Attention.html"


@dataclass(frozen=True)
class Kernel:
    """Which query/key and value ranks a kernel takes, and the sizes it is compiled for, where it says so."""

    name: str
    takes: Callable[[int, int], bool]
    source: str
    sizes: tuple[int, ...] = ()


def _one_size(keys: int, values: int) -> bool:
    return keys == values <= LARGEST


def _hopper(keys: int, values: int) -> bool:
    """Values of another size go with keys like DeepSeek's, or with small ones."""
    return _one_size(keys, values) or (128 < keys <= 192 and 96 < values <= 128) or (keys <= 64 and values <= 512)


def _trained_by_cudnn(keys: int, values: int) -> bool:
    return max(keys, values) <= 128 or (keys, values) == (192, 128)


KERNELS = (
    Kernel("FlashAttention-2", _one_size, f"{_FLASH}/csrc/flash_attn/flash_api.cpp", (32, 64, 96, 128, 192, 256)),
    Kernel("FlashAttention-3", _hopper, f"{_FLASH}/hopper/flash_api.cpp", (64, 96, 128, 192, 256)),
    Kernel("FlashAttention-4", lambda keys, values: _trained_by_cudnn(keys, values) or keys == values == LARGEST,
           f"{_FLASH}/flash_attn/cute/interface.py"),
    Kernel("torch SDPA flash", _one_size, _TORCH),
    Kernel("torch SDPA flash (AMD)", lambda keys, values: LARGEST < keys == values <= LARGEST_ANY, _TORCH),
    Kernel("cuDNN", _trained_by_cudnn, _CUDNN),
)  # fmt: skip
DECODING = (
    Kernel("FlashMLA (decoding)", lambda latent, rotary: (latent, rotary) == (512, 64),
           "https://github.com/deepseek-ai/FlashMLA"),
)  # fmt: skip


def kernel_fit(shape: ModelShape) -> dict[str, Any]:
    """Kernels that take the heads of a shape, and a warning where they do not suit; of the layer that fits worst."""
    fits = [_fit(layer) for layer in dict.fromkeys(shape.layers)]
    return min(fits, key=lambda fit: (len(fit["kernels"]), not fit["warning"]))


def _fit(layer: AttentionShape) -> dict[str, Any]:
    keys, values = (size + -size % MULTIPLE for size in (layer.qk_rank, layer.v_rank))
    taken = [kernel for kernel in KERNELS if kernel.takes(keys, values)]
    names = [kernel.name for kernel in taken]
    if names:
        names += [one.name for one in DECODING if one.takes(layer.kv_latent or 0, layer.rope_rank)]
    return {"head_dim": max(layer.qk_rank, layer.v_rank), "kernels": names, "warning": _warning(layer, taken)}


def _warning(layer: AttentionShape, taken: list[Kernel]) -> str:
    size = max(layer.qk_rank, layer.v_rank)
    if size > LARGEST_ANY:
        return f"heads of {size} are beyond every flash kernel (at most {LARGEST}): attention runs on slow paths"
    if layer.qk_rank % MULTIPLE or layer.v_rank % MULTIPLE:
        return f"heads of {size} are no multiple of {MULTIPLE}: they are padded"
    if not taken:
        return f"no flash kernel takes keys of {layer.qk_rank} with values of {layer.v_rank}: pad them to one size"
    if size > LARGEST:
        return f"no flash kernel for NVIDIA's GPUs takes heads of {size} (at most {LARGEST})"
    padded = {one.name: next(run for run in one.sizes if run >= layer.qk_rank) for one in taken if one.sizes}
    run_as = [f"{run} in {name}" for name, run in padded.items() if run != layer.qk_rank]
    return f"heads of {layer.qk_rank} run as {' and as '.join(run_as)}: the same FLOPs take longer" if run_as else ""
