"""Products with weights, for sizes that no kernel of ours is for, by the faster of torch's two libraries.

Torch multiplies with MKL, which on processors of other makers than its own uses half of their vectors: 115 GFLOP/s
where oneDNN, which torch has too and uses for inference, reaches 250 (AMD Zen 5, one thread). So there, and in float32,
`product` goes through oneDNN. It has first derivatives only; elsewhere it is `F.linear`.

Letters: N tokens, I inputs, O outputs.
"""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAST_NUMBERS = 2**12  # of a weight: for smaller ones the two are equal


@cache
def lags() -> bool:
    """Whether MKL leaves half of this processor's vectors unused."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return False
    ours = next((line for line in lines if line.startswith("vendor_id")), "GenuineIntel")
    vectors = any("avx512f" in line.split() for line in lines if line.startswith("flags"))
    libraries = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    return libraries and vectors and "GenuineIntel" not in ours and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def serves(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN is the faster for such a product."""
    alike = x.device.type == weight.device.type == "cpu" and x.dtype == weight.dtype == torch.float32
    return alike and weight.numel() >= LEAST_NUMBERS and not torch.is_autocast_enabled("cpu") and lags()


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weightᵀ + bias: (..., I) and (O, I) give (..., O)."""
    if not serves(x, weight):
        return F.linear(x, weight, bias)
    output: Tensor = _Product.apply(x, weight, bias)
    return output


def times(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left rightᵀ + bias of two matrices, without derivatives; both may be views that stand transposed."""
    if not serves(left, right):
        return F.linear(left, right, bias)
    output: Tensor = torch.ops.mkldnn._linear_pointwise(left, right, bias, "none", [], "")
    return output


def by_weight(gradient: Tensor, x: Tensor) -> Tensor:
    """gradientᵀ x of (N, O) and (N, I): the smaller of the two is copied, since a left factor must stand in order."""
    if gradient.shape[1] > x.shape[1]:
        return times(x.mT, gradient.mT).mT
    return times(gradient.mT, x.mT)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        ctx.save_for_backward(rows, weight)
        ctx.leading = x.shape[:-1]
        return times(rows, weight, bias).view(*ctx.leading, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.reshape(-1, gradient.shape[-1])
        by_x = times(rows, weight.mT).view(*ctx.leading, -1) if ctx.needs_input_grad[0] else None
        return (
            by_x,
            by_weight(rows, x) if ctx.needs_input_grad[1] else None,
            rows.sum(0) if ctx.needs_input_grad[2] else None,
        )
