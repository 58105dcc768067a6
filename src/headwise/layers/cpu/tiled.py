"""Training on a processor with compiled kernels: attention; `mlp.py` and `norm.py` have the rest.

A step on one core waits for memory, and for the many small operations that autograd makes of a few lines. Torch's
kernels fill their tiles with heads of rank 1 badly, and with a whole batch's queries, keys, values and scores every
cache overflows. So here a whole layer, from tokens to tokens, goes through some heads (or hidden units) of some samples
at a time, in what a core's second cache holds, as products of tiles in registers (`tiles.h`); the backward pass makes
scores and weights again rather than fetch them. Where the ranks of many heads are most of the width, QKᵀ and VO are
merged, which is fewer operations. A key's bias moves all logits of a query alike, which softmax does not see: it is
left out, and its derivative is 0.

They have first derivatives only, on a processor, and need a C++ compiler (`works`): a run uses them where its plan says
so (`Execution.path` is `generated`). Elsewhere torch's kernels serve.

Letters: B batch, T tokens, W width, H heads, R qk_rank, V v_rank, M hidden units.
"""

import math
import subprocess
import warnings
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.layers.cpu.compiled import AttentionSize, KernelSize, call, library, tried, usable
from headwise.shape import AttentionShape, qkv_rows

REALS = {torch.float32: "float", torch.float64: "double"}
VECTOR = 16  # numbers; on some processors a vector holds fewer, but never more
GROUP_ROWS = 64  # of queries at a time, if a head has not more
UNIT_COLUMNS, MOST_COLUMNS = 128, 640  # tokens at a time: about so many, and at most
LARGEST_WIDTH = 128  # beyond it torch's products are as fast
FEWEST_MERGED = 8  # heads: for fewer, what is saved is less than merging takes


# ---- attention -----------------------------------------------------------------------------------------------------


@cache
def attention_size(shape: AttentionShape, tokens: int, dtype: torch.dtype = torch.float32) -> AttentionSize | None:
    """The kernel of a layer, if its size is one that kernels are for."""
    sample = math.lcm(tokens, VECTOR)
    shared = shape.group > 1 or shape.kv_latent or shape.q_latent
    if shared or not tokens or not fits(shape.width, dtype) or sample > MOST_COLUMNS:
        return None
    width, heads = shape.width, shape.heads
    merged = heads >= FEWEST_MERGED and shape.merges(tokens)
    qk_rank, v_rank = (width, width) if merged else (shape.qk_rank, shape.v_rank)
    most = max(1, GROUP_ROWS // max(qk_rank, v_rank))
    group = max(size for size in range(1, most + 1) if heads % size == 0)
    unit = max(1, UNIT_COLUMNS // sample) * sample
    ranks = {"qk_rank": qk_rank, "v_rank": v_rank}
    return AttentionSize(real=REALS[dtype], tokens=tokens, width=width, **ranks, group=group, unit=unit, merged=merged)


def merge(
    query: Tensor, key: Tensor, value: Tensor, output: Tensor, query_bias: Tensor, value_bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `TiledAttention` takes, from (H, R, W), (H, R, W), (H, V, W), (H, W, V), (H, R) and (H, V)."""
    weight = (key.mT @ query).flatten(0, 1)
    bias = (key.mT @ query_bias[..., None]).flatten()
    constant = (output @ value_bias[..., None]).sum(0).flatten()
    return weight, bias, (value.mT @ output.mT).flatten(0, 1), constant


class TiledAttention(torch.autograd.Function):
    """softmax(scale · QKᵀ) V of all heads and their output projection: (B, T, W) give (B, T, W).

    `weight` (H·(2R+V), W) and `bias` make queries, keys and values, `output` is (H·V, W), `constant` (W) is added to
    every token. Where they are merged, `weight` is (H·W, W) and makes queries whose keys are the tokens; values are the
    tokens too. `sums`, if given, are what the derivatives of these four are added to.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        output: Tensor,
        constant: Tensor,
        size: AttentionSize,
        heads: int,
        scale: float,
        sums: list[Tensor | None] | None,
    ) -> Tensor:
        layout = _Layout(size, heads)
        columns = layout.columns(x)
        result = torch.zeros_like(columns)
        largest, inverse = x.new_empty(2, heads, len(columns) * layout.unit)
        made = x.new_empty(len(weight), len(columns) * layout.unit + VECTOR)  # a few more, which are only read
        given = columns, *layout.parts(weight, bias), output, made, result, largest, inverse
        call(library(size).forward, given, heads, len(columns), scale)
        ctx.save_for_backward(x, columns, weight, bias, output, made, largest, inverse)
        ctx.layout, ctx.scale, ctx.sums = layout, scale, sums
        return layout.tokens(result, len(x)).add_(constant)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, columns, weight, bias, output, made, largest, inverse = ctx.saved_tensors
        layout: _Layout = ctx.layout
        sums = into(ctx.sums, weight, bias, output, output[0])
        by_weight, by_bias, by_output, by_constant = sums
        by_constant += gradient.sum((0, 1))
        outer = layout.columns(gradient)
        by_x = torch.zeros_like(columns) if ctx.needs_input_grad[0] else None
        query, _, key, value, _ = layout.parts(weight, bias)
        given = columns, layout.padded(x), outer, layout.padded(gradient), query, key, value, output, made
        gradients = by_x, *layout.parts(by_weight, by_bias), by_output
        numbers = layout.heads, len(columns), ctx.scale
        call(library(layout.size).backward, (*given, largest, inverse, *gradients), *numbers)
        handed_on = sums if ctx.sums is None else [None] * 4
        return None if by_x is None else layout.tokens(by_x, len(x)), *handed_on, None, None, None, None


class _Layout:
    """What stands where, for a kernel of attention: whole samples in units of columns."""

    def __init__(self, size: AttentionSize, heads: int) -> None:
        self.size, self.heads = size, heads
        self.unit, self.samples, self.merged = size.unit, size.unit // size.tokens, size.merged
        self.rows = qkv_rows(heads, heads, size.qk_rank, size.v_rank)

    def padded(self, x: Tensor) -> Tensor:
        """(B, T, W), with samples of 0 until units are full."""
        lacking = -len(x) % self.samples
        return F.pad(x, (0, 0, 0, 0, 0, lacking)) if lacking else x.contiguous()

    def columns(self, x: Tensor) -> Tensor:
        """(units, W, unit)"""
        return self.padded(x).view(-1, self.unit, x.shape[-1]).mT.contiguous()

    def tokens(self, columns: Tensor, batch: int) -> Tensor:
        """What `columns` was made of."""
        rows = columns.mT.contiguous()
        return rows.view(-1, self.unit // self.samples, rows.shape[-1])[:batch]

    def parts(self, weight: Tensor, bias: Tensor) -> tuple[Tensor | None, ...]:
        """Weight and bias of queries, weight of keys, weight and bias of values."""
        if self.merged:
            return weight, bias, None, None, None
        (query, key, value), (query_bias, _, value_bias) = weight.split(self.rows), bias.split(self.rows)
        return query, query_bias, key, value, value_bias


# ---- sums of derivatives, and whether kernels work here ------------------------------------------------------------


def fits(width: int, dtype: torch.dtype) -> bool:
    """Whether kernels are for tokens of this width and type."""
    return width % VECTOR == 0 and width <= LARGEST_WIDTH and dtype in REALS


def into(sums: list[Tensor | None] | None, *weights: Tensor) -> list[Tensor]:
    """What derivatives of the weights are added to: the sums there are, else zeros."""
    given = sums or [None] * len(weights)
    return [torch.zeros_like(one) if into is None else into for one, into in zip(weights, given, strict=False)]


# Some processors advertise instructions that they cannot run: a child process is what they may kill.
_TRY = """
import ctypes, sys
library, room = ctypes.CDLL(sys.argv[1]), (ctypes.c_float * 65536)()
numbers = ctypes.c_long(2), ctypes.c_long(1), ctypes.c_double(1.0)
library.forward(*[room] * 11, *numbers)
library.backward(*[room] * 18, *numbers)
"""


def served(x: Tensor, weight: Tensor, width: int, size: KernelSize | None = None) -> bool:
    """Whether kernels can take such tokens to such weights: on a processor, of one type, not lowered by autocast.

    Where kernels do not work, or this one cannot be compiled or loaded, torch's serve, and a warning says so once.
    """
    alike = x.device.type == weight.device.type == "cpu" and x.dtype == weight.dtype and x.shape[-1] == width
    asked = alike and x.numel() > 0 and not torch.is_autocast_enabled("cpu")
    return asked and _working() and (size is None or usable(size))


@cache
def _working() -> bool:
    if not works():
        warnings.warn("compiled kernels do not work here, so torch's kernels serve: `headwise doctor`", stacklevel=2)
        return False
    return True


@cache
@torch.inference_mode(False)
@torch.enable_grad()
def works() -> bool:
    """Whether kernels can be compiled here, run, and give the right numbers."""
    size = attention_size(AttentionShape(width=16, heads=2, qk_rank=1, v_rank=1), 16)
    assert size
    x, weight, output = (
        torch.linspace(-1, 1, n, dtype=torch.float32, device="cpu").view(-1, 16) for n in (512, 96, 32)
    )
    x, nothing = x.view(2, 16, 16).requires_grad_(), torch.zeros_like(x[0])
    try:
        tried(size, _TRY)
        result = TiledAttention.apply(x, weight, nothing[:6], output, nothing[:16], size, 2, 1.0, None)
    except (OSError, subprocess.SubprocessError):
        return False
    queries, keys, values = (x @ weight.mT).mT[..., None].unflatten(1, (3, 2)).unbind(1)
    wanted = F.scaled_dot_product_attention(queries, keys, values, scale=1.0)[..., 0].mT @ output
    ours, theirs = (torch.autograd.grad(one.square().sum(), x)[0] for one in (result, wanted))
    pairs = ((result, wanted), (ours, theirs))
    return all(bool((one - other).abs().max() <= 1e-4 * other.abs().max()) for one, other in pairs)
