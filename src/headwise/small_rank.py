"""Attention of small rank, forward and backward generated for the machine it runs on.

With hundreds of heads of rank 1 to 16 nearly all the time of torch's kernels goes into tiles that are mostly empty.
Here the batch is innermost, so that every head and rank fills the vector registers; scores are never stored, and the
exponentials are computed again in the backward pass; heads go in groups that stay in a core's cache. Inductor turns the
few lines of `_forward` and `_backward` into C++ for each size, which takes seconds once and needs a C++ compiler
(`works()`); so a run uses this only where its plan says so (`Execution.path`), and elsewhere torch's kernels serve.

Letters: H heads, R qk_rank, V v_rank, N tokens, B batch.
"""

import math
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGEST_RANK = 16
GROUP_BYTES = 2**20  # of queries, keys, values and outputs that one call works on: half of a core's second cache
LOG2E = math.log2(math.e)


def small_rank_attention(qkv: Tensor, heads: int, qk_rank: int, v_rank: int, scale: float) -> Tensor:
    """softmax(scale · QKᵀ) V of every head; (H·(2R+V), N, B) of queries, keys and values give (H·V, N, B)."""
    return _SmallRank.apply(qkv, heads, qk_rank, v_rank, scale)


@cache
def works() -> bool:
    """Whether kernels can be generated here: there is a compiler, and a small one gives the right numbers."""
    if not any(map(shutil.which, ("g++", "clang++", "c++", "cl"))):
        return False
    try:
        qkv = torch.linspace(-1, 1, 6 * 3 * 16).reshape(6, 3, 16).requires_grad_()
        output = small_rank_attention(qkv, 2, 1, 1, 1.0)
        output.sum().backward()
        queries, keys, values = qkv.detach().reshape(3, 2, 3, 16).permute(0, 3, 1, 2)[..., None]
        wanted = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, scale=1.0)
    except Exception:  # whatever a compiler may do, torch's own kernels are there
        return False
    return torch.allclose(output.reshape(2, 3, 16).permute(2, 0, 1), wanted[..., 0], atol=1e-5)


class _SmallRank(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, qk_rank: int, v_rank: int, scale: float) -> Tensor:
        _, tokens, batch = qkv.shape
        output, norms = qkv.new_empty(heads, v_rank, tokens, batch), qkv.new_empty(heads, tokens, batch)
        groups = _groups(heads, 4 * tokens * batch * (2 * qk_rank + 2 * v_rank))
        for q, k, v, o, z in _in_groups(groups, *_split(qkv, heads, qk_rank), output, norms):
            o[...], z[...] = _kernel(_forward, q * (scale * LOG2E), k, v)
        ctx.save_for_backward(qkv, output, norms)
        ctx.sizes = heads, qk_rank, scale, groups
        return output.flatten(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, output, norms = ctx.saved_tensors
        heads, qk_rank, scale, groups = ctx.sizes
        result = torch.empty_like(qkv)
        given = (*_split(qkv, heads, qk_rank), output, norms, gradient.reshape_as(output).contiguous())
        for q, *rest, dq, dk, dv in _in_groups(groups, *given, *_split(result, heads, qk_rank)):
            found, dk[...], dv[...] = _kernel(_backward, q * (scale * LOG2E), *rest)
            torch.mul(found, scale, out=dq)
        return result, None, None, None, None


def _split(qkv: Tensor, heads: int, qk_rank: int) -> tuple[Tensor, ...]:
    """(H, R, N, B) of queries and of keys, (H, V, N, B) of values."""
    queries, keys, values = qkv.tensor_split([heads * qk_rank, 2 * heads * qk_rank])
    return tuple(part.unflatten(0, (heads, -1)) for part in (queries, keys, values))


def _in_groups(groups: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(tensor.chunk(groups) for tensor in tensors), strict=True)


def _groups(heads: int, head_bytes: int) -> int:
    """The fewest equal groups of heads that fit; equal, so that one kernel serves all of them."""
    wanted = -(-heads * head_bytes // GROUP_BYTES)
    return next(count for count in range(min(wanted, heads), heads + 1) if heads % count == 0)


# ---- what is generated from ----------------------------------------------------------------------------------------


def _products(left: Tensor, right: Tensor) -> Tensor:
    """(G, R, N, B) twice to (G, N, N, B): sums over R, written out so that nothing is stored."""
    pairs = [left[:, c, :, None] * right[:, c, None] for c in range(left.shape[1])]
    return sum(pairs[1:], pairs[0])


def _forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The heads' outputs, and the logarithm of each query's normaliser; queries are scaled, to base 2."""
    scores = _products(q, k)
    largest = scores.amax(2)
    weights = torch.exp2(scores - largest[:, :, None])
    total = weights.sum(2)
    outputs = [(weights * v[:, c, None]).sum(2) / total for c in range(v.shape[1])]
    return torch.stack(outputs, 1), largest + total.log2()


def _backward(q: Tensor, k: Tensor, v: Tensor, o: Tensor, z: Tensor, do: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Derivatives by queries before their scale, by keys and by values."""
    weights = torch.exp2(_products(q, k) - z[:, :, None])
    moved = weights * (_products(do, v) - (do * o).sum(1)[:, :, None])
    dq = torch.stack([(moved * k[:, c, None]).sum(2) for c in range(q.shape[1])], 1)
    dk = torch.stack([(moved * q[:, c, :, None]).sum(1) for c in range(q.shape[1])], 1)
    dv = torch.stack([(weights * do[:, c, :, None]).sum(1) for c in range(v.shape[1])], 1)
    return dq, dk / LOG2E, dv


def _kernel(what: Callable[..., Any], *tensors: Tensor) -> Any:
    return _generate(what, tuple(tuple(tensor.shape) for tensor in tensors), tensors[0].dtype)(*tensors)


@cache
def _generate(what: Callable[..., Any], sizes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> Any:
    """Compiled for these sizes; what inductor would otherwise store between its loops, it computes where it is used."""
    from torch._inductor import compile as generate
    from torch._inductor import config
    from torch.fx.experimental.proxy_tensor import make_fx

    examples: list[Any] = [torch.zeros(size, dtype=dtype) for size in sizes]
    graph = make_fx(what)(*examples)
    never = 10**6
    settings: dict[str, Any] = {
        "realize_reads_threshold": never,
        "realize_opcount_threshold": never,
        "compile_threads": 1,
    }
    with config.patch(settings):
        return generate(graph, examples)
