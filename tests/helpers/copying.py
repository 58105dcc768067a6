"""What every peer test needs: a peer's weights under headwise's names, and equality of outputs and gradients.

A translation takes the peer's tensors by name and gives headwise's by name. It only joins, transposes and reorders, so
that one function carries both weights and gradients. Loading is strict: no weight of either side is left out.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.shape import AttentionShape

Tensors = dict[str, Tensor]
Translation = Callable[[Tensors], Tensors]

EXACT = 1e-10  # where the peer computes in float64 throughout
SINGLE = 1e-5  # where it computes norms, softmax or rotary tables in float32


# ---- equality ------------------------------------------------------------------------------------------------------


def same(actual: Tensor, expected: Tensor, tolerance: float, what: str = "output") -> None:
    """No number differs by more than `tolerance` times the largest one expected, and none is NaN.

    Less than 0.01 counts as 0.01: the gradient of a key's bias is 0 but for rounding, for softmax does not see it.
    """
    assert actual.shape == expected.shape, what
    assert actual.dtype == expected.dtype, what
    scale = max(expected.abs().max().item(), 0.01)
    gap = (actual - expected).abs().max().item()
    assert gap <= tolerance * scale, f"{what}: differs by {gap:.2e} where the largest number is {scale:.2e}"


def hold_equal(
    ours: nn.Module,
    peer: nn.Module,
    translate: Translation,
    inputs: Sequence[Tensor],
    tolerance: float,
    *,
    run: Callable[..., Tensor] | None = None,
    run_peer: Callable[..., Tensor] | None = None,
    translate_weights: Translation | None = None,
) -> None:
    """With the peer's weights: the same output, and the same gradients of every input and every weight."""
    load(ours, peer, translate_weights or translate)
    mine, theirs = _leaves(inputs), _leaves(inputs)
    output, expected = (run or ours)(*mine), (run_peer or peer)(*theirs)
    same(output, expected, tolerance)
    direction = torch.randn_like(expected)
    output.backward(direction)
    expected.backward(direction)
    for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
        if a.is_floating_point():
            same(a.grad, b.grad, tolerance, f"gradient of input {number}")
    actual, wanted = named(ours, gradients=True), translate(named(peer, gradients=True))
    assert actual.keys() == wanted.keys()
    for name, gradient in actual.items():
        same(gradient, wanted[name], tolerance, f"gradient of {name}")


def _leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]


# ---- copying -------------------------------------------------------------------------------------------------------


def scrambled(peer: nn.Module, dtype: torch.dtype = torch.float32) -> Any:
    """The peer ready to compare: no dropout, biases not 0, norms not 1, and attention far from uniform."""
    with torch.no_grad():
        for parameter in peer.parameters():
            if parameter.dim() < 2:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.normal_(std=parameter.shape[-1] ** -0.5)
    return peer.to(dtype).eval()


def load(ours: nn.Module, peer: nn.Module, translate: Translation) -> None:
    ours.load_state_dict(translate(named(peer)))


def named(module: nn.Module, gradients: bool = False) -> Tensors:
    return {name: p.grad if gradients else p.detach() for name, p in module.named_parameters()}


def take(model: nn.Module, path: str) -> nn.Module:
    """The model with every attention of it on the given path."""
    for module in model.modules():
        if isinstance(module, Attention):
            module.path = path
    return model


def within(tensors: Tensors, prefix: str) -> Tensors:
    """The part under a prefix, by the rest of its name."""
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def under(prefix: str, tensors: Tensors) -> Tensors:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def each_layer(tensors: Tensors, prefix: str) -> Iterator[tuple[str, Tensors]]:
    """The prefix of each of headwise's blocks, and the peer's layer that belongs there."""
    numbers = {int(name.removeprefix(prefix).split(".")[0]) for name in tensors if name.startswith(prefix)}
    for number in sorted(numbers):
        yield f"body.blocks.{number}.", within(tensors, f"{prefix}{number}.")


def joined(tensors: Tensors, names: Sequence[str], target: str) -> Tensors:
    """Several linear layers as the one that computes them all: weights and, where they have them, biases."""
    kinds = [kind for kind in ("weight", "bias") if f"{names[0]}.{kind}" in tensors]
    return {f"{target}.{kind}": torch.cat([tensors[f"{name}.{kind}"] for name in names]) for kind in kinds}


# ---- Llama and its kin: Qwen3, Gemma3, NanoChat ----------------------------------------------------------------------


def llama_attention(tensors: Tensors) -> Tensors:
    ours = joined(tensors, ("q_proj", "k_proj", "v_proj"), "input") | joined(tensors, ("o_proj",), "output")
    norms = {"q_norm": "query_norm", "k_norm": "key_norm"}
    return ours | {f"{ours}.weight": tensors[f"{n}.weight"] for n, ours in norms.items() if f"{n}.weight" in tensors}


def llama_model(tensors: Tensors) -> Tensors:
    """A causal language model, with a table of its own for the output or without."""
    ours = {"embedding.weight": tensors["model.embed_tokens.weight"]}
    ours |= {"body.final_norm.weight": tensors["model.norm.weight"]}
    ours |= joined(tensors, ("lm_head",), "head") if "lm_head.weight" in tensors else {}
    for block, layer in each_layer(tensors, "model.layers."):
        ours |= under(block, llama_layer(layer))
    return ours


def llama_layer(tensors: Tensors) -> Tensors:
    order = ("input", "post_attention", "pre_feedforward", "post_feedforward")  # Gemma3 has all four
    norms = [tensors[f"{name}_layernorm.weight"] for name in order if f"{name}_layernorm.weight" in tensors]
    return {
        **under("attention.", llama_attention(within(tensors, "self_attn."))),
        **joined(tensors, ("mlp.gate_proj", "mlp.up_proj"), "mlp.input"),
        **joined(tensors, ("mlp.down_proj",), "mlp.output"),
        **{f"norms.{number}.weight": norm for number, norm in enumerate(norms)},
    }


def shape_of(config: Any, **changes: int) -> AttentionShape:
    """The attention of a transformers config, as headwise writes it."""
    sizes = {
        "width": config.hidden_size,
        "heads": config.num_attention_heads,
        "qk_rank": config.head_dim,
        "kv_heads": config.num_key_value_heads,
    }
    return AttentionShape(**{**sizes, **changes})


def cache_bytes(cache: Any) -> int:
    """What a transformers cache really stores."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
