"""Training on a processor with compiled kernels: attention, the ReLU MLP and the unit norm, derivatives by hand.

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

from headwise.layers.cpu.compiled import AttentionSize, KernelSize, MLPSize, NormSize, call, library, tried, usable
from headwise.shape import AttentionShape, qkv_rows

REALS = {torch.float32: "float", torch.float64: "double"}
VECTOR = 16  # numbers; on some processors a vector holds fewer, but never more
PANEL = 32  # hidden units that stand together
GROUP_ROWS = 64  # of queries at a time, if a head has not more
UNIT_COLUMNS, MOST_COLUMNS = 128, 640  # tokens at a time: about so many, and at most
LARGEST_WIDTH, LEAST_HIDDEN = 128, 256  # outside these torch's products are as fast
FEWEST_MERGED = 8  # heads: for fewer, what is saved is less than merging takes


# ---- attention -----------------------------------------------------------------------------------------------------


@cache
def attention_size(shape: AttentionShape, tokens: int, dtype: torch.dtype = torch.float32) -> AttentionSize | None:
    """The kernel of a layer, if its size is one that kernels are for."""
    sample = math.lcm(tokens, VECTOR)
    shared = shape.group > 1 or shape.kv_latent or shape.q_latent
    if shared or not tokens or not _fits(shape.width, dtype) or sample > MOST_COLUMNS:
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
        sums = _into(ctx.sums, weight, bias, output, output[0])
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


# ---- the MLP -------------------------------------------------------------------------------------------------------


def mlp_size(width: int, hidden: int, dtype: torch.dtype = torch.float32) -> MLPSize | None:
    """The kernel of an MLP, if its size is one that kernels are for."""
    known = _fits(width, dtype) and hidden % PANEL == 0 and hidden >= LEAST_HIDDEN
    return MLPSize(real=REALS[dtype], width=width) if known else None


def _fits(width: int, dtype: torch.dtype) -> bool:
    return width % VECTOR == 0 and width <= LARGEST_WIDTH and dtype in REALS


def panels(weight: Tensor) -> Tensor:
    """(W, M) as (M / PANEL, W, PANEL)."""
    return weight.unflatten(1, (-1, PANEL)).movedim(1, 0).contiguous()


class TiledMLP(torch.autograd.Function):
    """relu(x W₁ᵀ + b₁) W₂ᵀ + b₂: (..., W) give (..., W).

    `first` and `second` are W₁ᵀ and W₂ in panels; the kernel also wants W₁ and W₂ᵀ as they are. `sums`, if given, are
    what the derivatives of first, b₁, second and b₂ are added to.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        first: Tensor,
        b1: Tensor,
        second: Tensor,
        b2: Tensor,
        w1: Tensor,
        w2t: Tensor,
        size: MLPSize,
        sums: list[Tensor | None] | None,
    ) -> Tensor:
        x = x.contiguous()
        count = x.shape[:-1].numel()
        hidden, result = x.new_empty(len(first), count, PANEL), torch.empty_like(x)
        call(library(size).forward, (x, first, b1, w2t, b2, hidden, result), count, len(first))
        ctx.save_for_backward(x, first, b1, second, b2, w1, hidden)
        ctx.size, ctx.sums = size, sums
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, first, b1, second, b2, w1, hidden = ctx.saved_tensors
        sums = _into(ctx.sums, first, b1, second, b2)
        by_first, by_b1, by_second, by_b2 = sums
        outer, by_x = gradient.contiguous(), torch.zeros_like(x)
        by_b2 += outer.reshape(-1, outer.shape[-1]).sum(0)
        given = x, outer, hidden, w1, second, by_x, by_first, by_b1, by_second
        call(library(ctx.size).backward, given, x.shape[:-1].numel(), len(first))
        return by_x, *(sums if ctx.sums is None else [None] * 4), None, None, None, None


# ---- the norm ------------------------------------------------------------------------------------------------------


def norm_size(width: int, dtype: torch.dtype = torch.float32) -> NormSize | None:
    """The kernel of a norm, if its width is one that kernels are for."""
    return NormSize(real=REALS[dtype], width=width) if _fits(width, dtype) else None


class TiledNorm(torch.autograd.Function):
    """scale · x / max(|x|, eps), over the last dimension: `apply(x, scale, eps, size)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, eps: float, size: NormSize) -> Tensor:
        x = x.contiguous()
        result, inverse = torch.empty_like(x), x.new_empty(x.shape[:-1])
        call(library(size).forward, (x, scale, result, inverse), inverse.numel(), eps)
        ctx.save_for_backward(x, scale, inverse)
        ctx.eps, ctx.size = eps, size
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, inverse = ctx.saved_tensors
        by_x, by_scale = torch.empty_like(x), torch.empty_like(scale)
        given = x, gradient.contiguous(), scale, inverse, by_x, by_scale
        call(library(ctx.size).backward, given, inverse.numel(), ctx.eps)
        return by_x, by_scale, None, None


# ---- sums of derivatives, and whether kernels work here ------------------------------------------------------------


def _into(sums: list[Tensor | None] | None, *weights: Tensor) -> list[Tensor]:
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


def served(x: Tensor, weight: Tensor, width: int, size: KernelSize) -> bool:
    """Whether kernels can take such tokens to such weights: on a processor, of one type, not lowered by autocast.

    Where kernels do not work, or this one cannot be compiled or loaded, torch's serve, and a warning says so once.
    """
    alike = x.device.type == weight.device.type == "cpu" and x.dtype == weight.dtype and x.shape[-1] == width
    asked = alike and x.numel() > 0 and not torch.is_autocast_enabled("cpu")
    return asked and _working() and usable(size)


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
