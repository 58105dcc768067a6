"""The one attention layer, for every shape.

    layer = Attention(AttentionShape.parse("w512-h4-r128-v64-g2"), causal=True)
    y = layer(x)                                   # x and y: (batch, tokens, width)

Letters: B batch, T queries, S keys, W width, H heads, G key/value heads, R qk_rank, V v_rank, C kv_latent, P rope_rank.

Three paths compute the same thing and tests hold them equal: `fast` (one fused input projection and
`scaled_dot_product_attention`, which picks the kernel), `generated` (the same, but through a compiled kernel where the
layer's `kernel` says that there is one) and `plain` (a few lines of matrix products). Only the plain path has
forward-mode and double derivatives, vmap on every kernel, attention weights and hardmax.

With a latent (MLA) keys and values are expanded from it; from a cache, heads attend to the latent itself, with the
expansion absorbed into queries and outputs, whenever that is fewer operations. A latent always passes an RMS norm, as
DeepSeek's does. With `qk_norm` so do the queries of each head and the shared rotary key; expanded keys do not, since
then the latent could not be attended to as it is.

Initialisation: every weight is normal with variance 1 / fan-in. For inputs of unit variance the logits q·k/√R have
variance 1, and the output has the same variance, whatever H, R, V and G are.
"""

import math
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from headwise.layers.cache import KVCache
from headwise.layers.cpu.compiled import AttentionSize, StripSize
from headwise.layers.cpu.linear import product
from headwise.layers.cpu.strips import Between, StripAttention, StripHeads, strip_size
from headwise.layers.cpu.tiled import TiledAttention, attention_size, merge, served
from headwise.layers.functional import angles, distance, fast_attention, join, plain_attention, turn, weight_of
from headwise.layers.paths import Path, Pathed
from headwise.options import RopeScaling
from headwise.shape import AttentionShape
from headwise.spec import SpecError

Angles = tuple[Tensor, Tensor] | None
QKNorm = Literal["none", "rms", "rms-plain"]


class Attention(Pathed):
    """Multi-head attention of any shape; see the module's first lines, and `docs/reference/layer.md` for every option.

    `mask` is true where a query may look (or a number added to the logits), of a shape that broadcasts to (B, H, T, S);
    `padding` (B, S) is true for real keys. A query that may look nowhere gets 0.
    """

    mixer = "attention"  # what takes its place in a block has another name

    def __init__(
        self,
        shape: AttentionShape,
        *,
        causal: bool = False,
        window: int | None = None,
        rope_base: float | None = None,
        rope_scaling: RopeScaling | str | None = None,
        qk_norm: QKNorm = "none",
        norm_eps: float = 1e-6,
        logit_scale: bool = False,
        softcap: float = 0.0,
        inverse_temperature: float = 1.0,
        hardmax: bool = False,
        input_bias: bool = False,
        output_bias: bool = False,
        dropout: float = 0.0,
        output_scale: float = 1.0,
        key_width: int | None = None,
        value_width: int | None = None,
        path: Path = "fast",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(path)
        _check_options(shape, window, dropout, softcap, path, value_width)
        self.shape = shape
        self.causal, self.window, self.rope_base = causal, window, rope_base
        self.rope_scaling = RopeScaling.parse(rope_scaling) if isinstance(rope_scaling, str) else rope_scaling
        self.inverse_temperature, self.hardmax = inverse_temperature, hardmax
        self.dropout, self.output_scale, self.softcap = dropout, output_scale, softcap
        factory: dict[str, Any] = {"device": device, "dtype": dtype}

        self.sections = shape.input_rows
        widths = (shape.width, key_width or shape.width, value_width or shape.width)[: len(self.sections)]
        self.fused = len(set(widths)) == 1
        if self.fused:
            self.input = nn.Linear(shape.width, sum(self.sections), bias=input_bias, **factory)
        else:
            self.inputs = nn.ModuleList(
                nn.Linear(width, size, bias=input_bias, **factory)
                for width, size in zip(widths, self.sections, strict=True)
            )
        if shape.q_latent:
            self.query_latent_norm = nn.RMSNorm(shape.q_latent, norm_eps, **factory)
            self.query_up = nn.Linear(shape.q_latent, shape.heads * shape.qk_rank, bias=False, **factory)
        if shape.kv_latent:
            self.kv_latent_norm = nn.RMSNorm(shape.kv_latent, norm_eps, **factory)
            expanded = shape.kv_heads * (shape.content_rank + shape.v_rank)
            self.kv_up = nn.Linear(shape.kv_latent, expanded, bias=False, **factory)
        affine = qk_norm == "rms"
        self.query_norm, self.key_norm = (
            nn.RMSNorm(size, norm_eps, elementwise_affine=affine, **factory) if qk_norm != "none" and size else None
            for size in (shape.qk_rank, shape.rope_rank if shape.kv_latent else shape.qk_rank)
        )
        self.logit_scale = nn.Parameter(torch.empty(shape.heads, **factory)) if logit_scale else None
        self.output = nn.Linear(shape.heads * shape.v_rank, shape.width, bias=output_bias, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Logits and outputs of equal variance for every shape (see the module's first lines)."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.RMSNorm):
                module.reset_parameters()
        if self.logit_scale is not None:
            nn.init.ones_(self.logit_scale)

    # ---- forward -----------------------------------------------------------------------------------------------

    def forward(
        self,
        x: Tensor,
        memory: Tensor | None = None,
        values: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        padding: Tensor | None = None,
        pair_bias: Tensor | None = None,
        positions: Tensor | None = None,
        cache: KVCache | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Attend from x to `memory` (to x itself by default), reading `values` (the memory by default).

        With `need_weights` the attention weights (B, H, T, S) come second, through the plain path.
        """
        given = (memory, values, mask, pair_bias, cache, None if self.rope_base is None else positions)
        size = self._kernel(x, padding) if all(one is None for one in given) and not need_weights else None
        if size is not None and not self._latent:
            return self._by_kernel(x, padding, size)
        start = cache.length if cache else 0
        if cache and not start and self.causal:
            cache.window = self.window  # what no later token can see need not be kept
        query, key, *value = self._project(x, memory, values)
        angles = self._angles(x, positions, start)
        queries = self._queries(query, angles)
        angles = angles if memory is None else self._angles(memory, None, start)
        value_up = None
        if self.shape.kv_latent:
            queries, keys, values, value_up = self._from_latent(queries, key, angles, cache)
        else:
            keys, values = self._keys_values(key, value[0], angles, cache)
        if cache and cache.dropped:
            start -= cache.dropped
            mask, padding, pair_bias = (
                None if m is None else m[..., cache.dropped :] for m in (mask, padding, pair_bias)
            )
        if isinstance(size, StripSize):
            qkv = torch.cat([part.transpose(1, 2).flatten(2) for part in (queries, keys, values)], dim=-1)
            between = Between(size, self.shape.heads, self.shape.kv_heads, self._scale, self.causal)
            return self._scaled(self._times(self.output, StripHeads.apply(qkv, padding, between)))
        allowed = self._allowed(queries, keys, start, mask, padding)
        bias = _sum(None if mask is None or mask.dtype == torch.bool else mask, pair_bias)
        heads, weights = self._attend(queries, keys, values, allowed, bias, start, need_weights)
        heads = heads if value_up is None else heads @ value_up.mT
        output = self._scaled(self._times(self.output, self._joined(heads, x)))
        return (output, weights) if need_weights and weights is not None else output

    def _joined(self, heads: Tensor, x: Tensor) -> Tensor:
        """What the heads found, side by side: (B, T, H·V)."""
        return heads.transpose(1, 2).flatten(2)

    def _times(self, weights: nn.Linear, x: Tensor) -> Tensor:
        output: Tensor = product(x, weights.weight, weights.bias) if self.path == "generated" else weights(x)
        return output

    def _scaled(self, output: Tensor) -> Tensor:
        return output if self.output_scale == 1.0 else output * self.output_scale

    def _project(self, x: Tensor, memory: Tensor | None, values: Tensor | None) -> list[Tensor]:
        """Queries, keys and values (or their latents), one product where they read the same tokens."""
        if self.shape.kv_latent and values is not None:
            raise SpecError("keys and values share one latent here, so they read one memory: leave `values` out")
        if self.fused and memory is None and values is None:
            return list(self._times(self.input, x).split(self.sections, dim=-1))
        memory = x if memory is None else memory
        sources = (x, memory, memory if values is None else values)
        return [F.linear(s, w, b) for s, (w, b) in zip(sources, self.input_parts(), strict=False)]

    def input_parts(self) -> list[tuple[Tensor, Tensor | None]]:
        """Weight and bias of queries, of keys and of values; with a latent, of queries and of the latent."""
        if not self.fused:
            return [(part.weight, part.bias) for part in cast(list[nn.Linear], self.inputs)]
        weights = self.input.weight.split(self.sections)
        biases = self.input.bias.split(self.sections) if self.input.bias is not None else [None] * len(weights)
        return list(zip(weights, biases, strict=True))

    def _queries(self, query: Tensor, angles: Angles) -> Tensor:
        if self.shape.q_latent:
            query = self._times(self.query_up, self.query_latent_norm(query))
        query = _split_heads(query, self.shape.heads)
        query = query if self.query_norm is None else self.query_norm(query)
        if self.logit_scale is not None:
            query = query * self.logit_scale[:, None, None]
        return self._rotate(query, angles)

    def _keys_values(self, key: Tensor, value: Tensor, angles: Angles, cache: KVCache | None) -> tuple[Tensor, ...]:
        keys, values = _split_heads(key, self.shape.kv_heads), _split_heads(value, self.shape.kv_heads)
        keys = keys if self.key_norm is None else self.key_norm(keys)
        keys = self._rotate(keys, angles)
        return cache.append(keys, values) if cache else (keys, values)

    def _angles(self, tokens: Tensor, positions: Tensor | None, start: int) -> Angles:
        """Rotation angles for queries and keys of these tokens, as cosines and sines."""
        if self.rope_base is None or not self.shape.rotated:
            return None
        if positions is None:
            positions = torch.arange(start, start + tokens.shape[-2], device=tokens.device)
        return angles(positions, self.shape.rotated, self.rope_base, tokens.dtype, self.rope_scaling)

    def _rotate(self, heads: Tensor, angles: Angles) -> Tensor:
        """Rotary embedding of the first `rotated` dimensions; the rest pass."""
        return heads if angles is None else turn(heads, *angles)

    # ---- the latent (MLA) --------------------------------------------------------------------------------------

    def _from_latent(
        self, queries: Tensor, key: Tensor, angles: Angles, cache: KVCache | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Queries, keys and values: expanded from the latent, or the latent itself where that costs less.

        In the second case what expands the heads' outputs comes last.
        """
        latent, rope_key = key.split([self.shape.kv_latent, self.shape.rope_rank], dim=-1)
        latent = self.kv_latent_norm(latent)
        rope_key = rope_key if self.key_norm is None else self.key_norm(rope_key)
        rope_key = self._rotate(rope_key.unsqueeze(1), angles).squeeze(1)
        if cache:
            latent, rope_key = cache.append(latent, rope_key)
        if cache and self.shape.absorbs(queries.shape[-2], latent.shape[-2]):
            return self._absorbed(queries, latent, rope_key)
        return self._expanded(queries, latent, rope_key)

    def _expanded(self, queries: Tensor, latent: Tensor, rope_key: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        shape = self.shape
        up = _split_heads(self._times(self.kv_up, latent), shape.kv_heads)
        content, values = up.split([shape.content_rank, shape.v_rank], dim=-1)
        shared = rope_key.unsqueeze(1).expand(-1, shape.kv_heads, -1, -1)
        return queries, torch.cat([shared, content], dim=-1), values, None

    def _absorbed(self, queries: Tensor, latent: Tensor, rope_key: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """One shared head whose keys are (rotary key, latent) and whose values are the latent."""
        key_up, value_up = self._latent_up()
        rope, content = queries.split([self.shape.rope_rank, self.shape.content_rank], dim=-1)
        queries = torch.cat([rope, content @ key_up], dim=-1)
        keys = torch.cat([rope_key, latent], dim=-1).unsqueeze(1)
        return queries, keys, latent.unsqueeze(1), value_up

    def _latent_up(self) -> tuple[Tensor, Tensor]:
        """What expands the latent for each query head: (H, R-P, C) and (H, V, C)."""
        shape = self.shape
        up = weight_of(self.kv_up).unflatten(0, (shape.kv_heads, -1)).repeat_interleave(shape.group, dim=0)
        key_up, value_up = up.split([shape.content_rank, shape.v_rank], dim=1)
        return key_up, value_up

    # ---- masks and the product itself --------------------------------------------------------------------------

    def _allowed(
        self, queries: Tensor, keys: Tensor, start: int, mask: Tensor | None, padding: Tensor | None
    ) -> Tensor | None:
        """Where a query may look by the masks given and by distance; None where only the causal rule can say no."""
        allowed = mask if mask is not None and mask.dtype == torch.bool else None
        if padding is not None:
            allowed = _both(allowed, padding[:, None, None, :])
        if self.window is not None:
            allowed = _both(allowed, distance(queries, keys, start).abs() < self.window)
        return allowed

    def _attend(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        allowed: Tensor | None,
        bias: Tensor | None,
        start: int,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        scale, dropout = self._scale, self.dropout if self.training else 0.0
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        plain = self.path == "plain" or self.hardmax or need_weights or self.softcap > 0
        by_kernel = False
        if self.causal and start + 1 < keys.shape[-2]:  # else the only query is the last token, which sees everything
            alone = not plain and allowed is None and bias is None
            if alone and queries.shape[-2] == keys.shape[-2]:  # a branch: compiled, sizes are symbols, but this is not
                by_kernel = True
            else:
                allowed = _both(allowed, distance(queries, keys, start) >= 0)
        if plain:
            return plain_attention(queries, keys, values, scale, allowed, bias, dropout, self.hardmax, self.softcap)
        return fast_attention(queries, keys, values, scale, join(allowed, bias, values.dtype), by_kernel, dropout), None

    # ---- compiled kernels --------------------------------------------------------------------------------------

    def kernel(self, tokens: int, dtype: torch.dtype = torch.float32) -> AttentionSize | StripSize | None:
        """One for short sequences where attention is a softmax of products and nothing else, and one for the rest.

        With latents, the second serves for heads alone. There is none for windows, hardmax and dropout.
        """
        ruled = self.causal or self.query_norm is not None or self.logit_scale is not None or self.rope_base is not None
        short = attention_size(self.shape, tokens, dtype) if self._served and not ruled else None
        return short or self._strips(dtype)

    def _strips(self, dtype: torch.dtype) -> StripSize | None:
        return strip_size(self.shape, dtype) if self._served else None

    @property
    def _served(self) -> bool:
        """Whether kernels know all that the layer does."""
        dropped = self.dropout and self.training
        known = all(norm is None or type(norm) is nn.RMSNorm for norm in (self.query_norm, self.key_norm))
        return self.fused and known and self.window is None and not (self.hardmax or dropped or self.softcap)

    def _kernel(self, x: Tensor, padding: Tensor | None = None) -> AttentionSize | StripSize | None:
        """The compiled kernel for such tokens, if there is one and the path is to use it."""
        if self.path != "generated" or x.dim() != 3:
            return None
        if padding is not None and (padding.dtype != torch.bool or padding.shape != x.shape[:2]):
            return None
        size = self.kernel(x.shape[1], x.dtype) if padding is None else self._strips(x.dtype)
        return size if size and served(x, self.input.weight, self.shape.width, size) else None

    def _by_kernel(self, x: Tensor, padding: Tensor | None, size: AttentionSize | StripSize) -> Tensor:
        if isinstance(size, AttentionSize):
            made, sums = self.prepared.get(self._merged if size.merged else self._factored)
            output: Tensor = TiledAttention.apply(x, *made, size, self.shape.heads, self._scale, sums)
            return output
        norms = self.query_norm, self.key_norm
        learned = *(None if norm is None else norm.weight for norm in norms), self.logit_scale
        weights = self.input.weight, self.input.bias, self.output.weight, self.output.bias
        output = StripAttention.apply(x, *weights, *learned, padding, self._between(size))
        return self._scaled(output)

    def _between(self, size: StripSize) -> Between:
        eps = None if self.query_norm is None else self.query_norm.eps
        torchs = torch.finfo(self.input.weight.dtype).eps  # what a norm without its own takes
        return Between(
            size,
            self.shape.heads,
            self.shape.kv_heads,
            self._scale,
            self.causal,
            -1.0 if self.query_norm is None else torchs if eps is None else eps,
            0 if self.rope_base is None else self.shape.rotated,
            self.rope_base or 0.0,
            self.rope_scaling,
        )

    @property
    def _latent(self) -> bool:
        return bool(self.shape.kv_latent or self.shape.q_latent)

    @property
    def _scale(self) -> float:
        return self.inverse_temperature / math.sqrt(self.shape.qk_rank)

    def _factored(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        output, bias = self._scaled(self.output.weight.mT).contiguous(), self.output.bias
        constant = self.output.weight.new_zeros(self.shape.width) if bias is None else self._scaled(bias)
        return self.input.weight.contiguous(), self._input_bias(), output, constant

    def _merged(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        parts = self._input_bias().split(self.sections)
        query_bias, _, value_bias = (part.unflatten(0, (self.shape.heads, -1)) for part in parts)
        weight, bias, output, constant = merge(*self.head_weights(), query_bias, value_bias)
        return weight, bias, output, constant if self.output.bias is None else constant + self._scaled(self.output.bias)

    def _input_bias(self) -> Tensor:
        bias: Tensor | None = self.input.bias
        return self.input.weight.new_zeros(sum(self.sections)) if bias is None else bias

    # ---- heads as matrices -------------------------------------------------------------------------------------

    def head_weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Per query head, without norms, biases and rotation: (H, R, W), (H, R, W), (H, V, W) and (H, W, V)."""
        shape = self.shape
        query, key, *value = (weight for weight, _ in self.input_parts())
        if shape.q_latent:
            query = self.query_up.weight @ query
        query = query.unflatten(0, (shape.heads, -1))
        output = self.output.weight.unflatten(1, (shape.heads, -1)).movedim(1, 0) * self.output_scale
        if shape.kv_latent:
            latent, rope_key = key.split([shape.kv_latent, shape.rope_rank])
            key_up, value_up = self._latent_up()
            shared = rope_key.expand(shape.heads, -1, -1)
            return query, torch.cat([shared, key_up @ latent], dim=1), value_up @ latent, output
        keys, values = (part.unflatten(0, (shape.kv_heads, -1)) for part in (key, *value))
        return query, keys.repeat_interleave(shape.group, 0), values.repeat_interleave(shape.group, 0), output

    def qk_matrices(self) -> Tensor:
        """(H, W, W): the logit of tokens x and z in head h is xᵀ M_h z · inverse_temperature / √R."""
        query, key, _, _ = self.head_weights()
        return query.mT @ key

    def vo_matrices(self) -> Tensor:
        """(H, W, W): attending wholly to token z, head h adds P_h z to the output."""
        _, _, value, output = self.head_weights()
        return output @ value

    def extra_repr(self) -> str:
        return str(self.shape)


def _split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _both(a: Tensor | None, b: Tensor) -> Tensor:
    return b if a is None else a & b


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return a if b is None else b
    return a + b


def _check_options(
    shape: AttentionShape, window: int | None, dropout: float, softcap: float, path: str, value_width: int | None
) -> None:
    if shape.kv_latent and value_width is not None:
        raise SpecError(f"{shape}: values are read from the latent, so they have no width of their own")
    if window is not None and window < 1:
        raise SpecError(f"window is {window}, but a token sees at least itself: use 1 or more, or None for all")
    if not 0.0 <= dropout < 1.0:
        raise SpecError(f"dropout is {dropout}, but must be at least 0 and below 1")
    if softcap < 0:
        raise SpecError(f"softcap is {softcap}; it is above 0, or 0 for none")
    if path not in get_args(Path):
        raise SpecError(f"path is '{path}', but must be one of {', '.join(get_args(Path))}")
