"""Attention of small rank on a processor, as C++ that is compiled for each size on the machine it runs on.

With hundreds of heads of rank 1 to 16 nearly all the time of torch's kernels goes into tiles that are mostly empty, and
much of the rest into memory: queries, keys, values and scores of all heads at once. So here (`small_rank.cpp`) the
batch is innermost, and every head and rank fills the vector registers; scores are never stored, and exponentials are
computed again in the backward pass; and a whole layer, from tokens to tokens, goes in groups of heads rather than all
at once. A key's bias moves all logits of a query alike, which softmax does
not see: it is left out, and its derivative is exactly 0. Compiling takes a second or two for each rank and number of
tokens, once for a machine, and needs g++ or clang++ (`works()`); so a run uses this only where its plan says so
(`Execution.path`). Elsewhere torch's kernels serve.

Letters: W width, H heads, R qk_rank, V v_rank, N tokens, B batch.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch
from platformdirs import user_cache_dir
from torch import Tensor
from torch.autograd.function import once_differentiable

from headwise.machine import processor

LARGEST_RANK = 16
LARGEST_HEAD = 2048  # tokens times both ranks: a head of a few samples, with its derivatives, in half a mebibyte
GROUP_BYTES = 2**22  # of queries, keys, values and outputs worked on at a time: with less, products are too small
COMPILERS = ("g++", "clang++", "c++")
SOURCE = Path(__file__).with_name("small_rank.cpp")
REALS = {torch.float32: "float", torch.float64: "double"}


def small_rank_attention(
    x: Tensor, weight: Tensor, bias: Tensor | None, output: Tensor, heads: int, qk_rank: int, v_rank: int, scale: float
) -> Tensor:
    """The output projection of softmax(scale · QKᵀ) V of every head, tokens as columns: (W, N, B) give (W, N, B).

    `weight` (H·(2R+V), W) and `bias` make queries, keys and values; `output` is (W, H·V).
    """
    bias = torch.zeros_like(weight[:, 0]) if bias is None else bias
    return _SmallRank.apply(x.contiguous(), weight, bias, output, (heads, qk_rank, v_rank), scale)


def fits(qk_rank: int, v_rank: int, tokens: int) -> bool:
    """Whether heads are of a size that this is for."""
    return max(qk_rank, v_rank) <= LARGEST_RANK and tokens * (qk_rank + v_rank) <= LARGEST_HEAD


@cache
def works() -> bool:
    """Whether kernels can be compiled here, run, and give the right numbers."""
    x = torch.linspace(-1, 1, 24).reshape(2, 3, 4).requires_grad_()
    weight = torch.linspace(-1, 1, 12).reshape(6, 2)
    try:
        _try_in_a_child(_compiled(_command(3, 1, 1, torch.float32)))
        found = small_rank_attention(x, weight, None, torch.eye(2), 2, 1, 1, 1.0)
    except (OSError, subprocess.SubprocessError):
        return False
    queries, keys, values = (weight @ x.flatten(1)).reshape(3, 2, 3, 4).permute(0, 3, 1, 2)[..., None]
    heads = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, scale=1.0)
    wanted = heads[..., 0].permute(1, 2, 0)
    ours, theirs = (torch.autograd.grad(output.square().sum(), x)[0] for output in (found, wanted))
    return torch.allclose(found, wanted, atol=1e-5) and torch.allclose(ours, theirs, atol=1e-5)


class _SmallRank(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, output: Tensor, shape: tuple[int, int, int], scale: float
    ) -> Tensor:
        (heads, qk_rank, v_rank), (_, tokens, batch) = shape, x.shape
        sizes = _Sizes(heads, qk_rank, v_rank, tokens, batch, scale)
        columns = x.flatten(1)
        qkv, seen = x.new_empty(len(weight), columns.shape[1]), x.new_empty(output.shape[1], columns.shape[1])
        largest, inverse = x.new_empty(heads, columns.shape[1]), x.new_empty(heads, columns.shape[1])
        result = x.new_zeros(len(output), columns.shape[1])
        kernel = _kernel(tokens, qk_rank, v_rank, x.dtype)
        for group in sizes.groups():
            parts = sizes.parts(qkv, group)
            for part, rows in zip(parts, sizes.parts(weight, group), strict=True):
                torch.mm(rows, columns, out=part)
            q_bias, _, v_bias = sizes.parts(bias, group)
            made = seen[group.values]
            sizes.call(kernel.forward, group, *parts, q_bias, v_bias, made, largest[group.heads], inverse[group.heads])
            result.addmm_(output[:, group.values], made)
        ctx.save_for_backward(x, weight, bias, output, qkv, seen, largest, inverse)
        ctx.sizes = sizes
        return result.view(len(output), tokens, batch)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, output, qkv, seen, largest, inverse = ctx.saved_tensors
        sizes: _Sizes = ctx.sizes
        columns, gradient = x.flatten(1), gradient.contiguous().flatten(1)
        by_x = torch.zeros_like(columns) if ctx.needs_input_grad[0] else None
        by_weight, by_bias, by_output = torch.empty_like(weight), torch.zeros_like(bias), torch.empty_like(output)
        kernel = _kernel(sizes.tokens, sizes.qk_rank, sizes.v_rank, x.dtype)
        for group in sizes.groups():
            made = seen[group.values]
            by_output[:, group.values] = gradient @ made.mT
            parts, (q_bias, _, v_bias) = sizes.parts(qkv, group), sizes.parts(bias, group)
            derived = [torch.empty_like(part) for part in parts]
            by_q_bias, _, by_v_bias = sizes.parts(by_bias, group)
            given = *parts, q_bias, v_bias, made, largest[group.heads], inverse[group.heads]
            by_made = output[:, group.values].mT @ gradient
            sizes.call(kernel.backward, group, *given, by_made, *derived, by_q_bias, by_v_bias)
            rows = zip(derived, sizes.parts(weight, group), sizes.parts(by_weight, group), strict=True)
            for part, made_by, found in rows:
                torch.mm(part, columns.mT, out=found)
                if by_x is not None:
                    by_x.addmm_(made_by.mT, part)
        return None if by_x is None else by_x.view_as(x), by_weight, by_bias, by_output, None, None


# ---- groups of heads -----------------------------------------------------------------------------------------------


class _Group:
    """Neighbouring heads: where they and their values stand."""

    def __init__(self, start: int, stop: int, v_rank: int) -> None:
        self.heads, self.values = slice(start, stop), slice(start * v_rank, stop * v_rank)


class _Sizes:
    """Of one layer, with what is in which rows."""

    def __init__(self, heads: int, qk_rank: int, v_rank: int, tokens: int, batch: int, scale: float) -> None:
        self.heads, self.qk_rank, self.v_rank = heads, qk_rank, v_rank
        self.tokens, self.batch, self.scale = tokens, batch, scale

    def groups(self) -> Iterator[_Group]:
        most = max(1, GROUP_BYTES // (4 * self.tokens * self.batch * 2 * (self.qk_rank + self.v_rank)))
        count = -(-self.heads // most)
        for i in range(count):
            yield _Group(i * self.heads // count, (i + 1) * self.heads // count, self.v_rank)

    def parts(self, rows: Tensor, group: _Group) -> tuple[Tensor, Tensor, Tensor]:
        """The group's rows of what is in the order of queries, keys and values."""
        queries, keys, values = rows.split([self.heads * self.qk_rank] * 2 + [self.heads * self.v_rank])
        ranks = slice(group.heads.start * self.qk_rank, group.heads.stop * self.qk_rank)
        return queries[ranks], keys[ranks], values[group.values]

    def call(self, function: Any, group: _Group, *tensors: Tensor) -> None:
        heads = group.heads.stop - group.heads.start
        function(*(tensor.data_ptr() for tensor in tensors), heads, self.batch, self.scale)


# ---- compiling -----------------------------------------------------------------------------------------------------


def missing(sizes: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Of (tokens, qk_rank, v_rank), those that this machine has no kernel for yet."""
    return [size for size in sorted(set(sizes)) if not _place(_command(*size, torch.float32)).exists()]


def prepare(sizes: Iterable[tuple[int, int, int]]) -> None:
    """Compile them all at once, before workers want them one by one."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_compile, (_command(*size, torch.float32) for size in sizes)))


@cache
def _kernel(tokens: int, qk_rank: int, v_rank: int, dtype: torch.dtype) -> Any:
    """The compiled source for one size."""
    library = ctypes.CDLL(str(_compiled(_command(tokens, qk_rank, v_rank, dtype))))
    numbers: list[Any] = [ctypes.c_long, ctypes.c_long, ctypes.c_double]
    library.forward.argtypes = [ctypes.c_void_p] * 8 + numbers
    library.backward.argtypes = [ctypes.c_void_p] * 14 + numbers
    library.forward.restype = library.backward.restype = None
    return library


# Some processors advertise instructions that they cannot run: a child process is what they may kill.
_TRY = """
import ctypes, sys
library, room = ctypes.CDLL(sys.argv[1]), (ctypes.c_float * 4096)()
numbers = ctypes.c_long(1), ctypes.c_long(16), ctypes.c_double(1.0)
library.forward(*[room] * 8, *numbers)
library.backward(*[room] * 14, *numbers)
"""


def _try_in_a_child(kernel: Path) -> None:
    subprocess.run([sys.executable, "-c", _TRY, str(kernel)], check=True, capture_output=True, timeout=60)


def _compiled(command: list[str]) -> Path:
    """What a command compiles, from the machine's cache if it is there."""
    place = _place(command)
    if not place.exists():
        _compile(command)
    return place


def _command(tokens: int, qk_rank: int, v_rank: int, dtype: torch.dtype) -> list[str]:
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise OSError(f"no C++ compiler: none of {', '.join(COMPILERS)} is on the path")
    native = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
    sizes = [f"-DREAL={REALS[dtype]}", f"-DN={tokens}", f"-DR={qk_rank}", f"-DV={v_rank}"]
    return [compiler, "-O3", native, "-std=c++17", "-ffp-contract=fast", "-shared", "-fPIC", *sizes, str(SOURCE)]


def _place(command: list[str]) -> Path:
    """Where the machine keeps what a command compiles; its processor is part of the name, since homes are shared."""
    name = hashlib.sha256("\0".join([*command[:-1], processor(), SOURCE.read_text()]).encode()).hexdigest()[:24]
    return Path(user_cache_dir("headwise")) / "kernels" / f"{name}.so"


def _compile(command: list[str]) -> None:
    """Under another name first: several processes may want the same one at the same time."""
    place = _place(command)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent) as folder:
        made = Path(folder) / place.name
        subprocess.run([*command, "-o", str(made)], check=True, capture_output=True, timeout=300)
        made.replace(place)
