"""How weights begin: as the family's original begins them. One table for all of them.

`options.init` names a row. `unit`, `torch` and `orthogonal` are headwise's own and stand with the layers and the body;
the others are what transformers' `_init_weights` (GPT-2, Llama, Qwen3, BERT, ViT) and nanochat's `init_weights` draw.
Biases begin at 0 and the weights of norms at 1, in all of them. docs/reference/initialisation.md is the table in words.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.models.blocks import MLP, Block, Norm

Draw = Callable[[Tensor, int], object]  # a weight whose last dimension is its fan-in, in a model of so many layers


def normal(std: float) -> Draw:
    return lambda weight, depth: nn.init.normal_(weight, std=std)


def normal_by_depth(std: float) -> Draw:
    """Less for a deeper model: each block adds two outputs to the residual stream."""
    return lambda weight, depth: nn.init.normal_(weight, std=std / (2 * depth) ** 0.5)


def uniform(scale: float) -> Draw:
    """Of standard deviation scale / √fan-in."""

    def draw(weight: Tensor, depth: int) -> Tensor:
        bound = scale * (3 / weight.shape[-1]) ** 0.5
        return nn.init.uniform_(weight, -bound, bound)

    return draw


def zeros(weight: Tensor, depth: int) -> Tensor:
    return nn.init.zeros_(weight)


@dataclass(frozen=True)
class Init:
    """What each kind of weight begins as: tables of tokens and places, matrices inside blocks, the model's head."""

    table: Draw
    attention: Draw
    mlp: Draw
    output: Draw  # of attention and of the MLP: what is added to the residual stream
    head: Draw


_SAME = normal(0.02)
_USUAL = Init(_SAME, _SAME, _SAME, _SAME, _SAME)
INITS = {
    "gpt2": Init(_SAME, _SAME, _SAME, normal_by_depth(0.02), _SAME),
    "nanochat": Init(normal(0.8), uniform(1.0), uniform(0.4), zeros, normal(0.001)),
    "llama": _USUAL,
    "qwen3": _USUAL,
    "bert": _USUAL,
    "vit": _USUAL,
}


def begin_body(blocks: list[Block], init: str) -> None:
    """Draw the weights of a body's blocks again, as the named original does."""
    rules = INITS[init]
    for block in blocks:
        for module in block.modules():
            if not isinstance(module, Attention | MLP):
                continue
            inner = rules.attention if isinstance(module, Attention) else rules.mlp
            for linear in (part for part in module.modules() if isinstance(part, nn.Linear)):
                _draw(linear, rules.output if linear is module.output else inner, len(blocks))


def begin_edges(model: nn.Module, init: str) -> None:
    """The same for what a model has around its body: tables, patches, heads."""
    rules, body = INITS[init], set(model.get_submodule("body").modules())
    for module in (module for module in model.modules() if module not in body):
        if isinstance(module, nn.Linear):
            _draw(module, rules.head if module is getattr(model, "head", None) else rules.attention, 1)
    begin_tables(model, init)


def begin_tables(model: nn.Module, init: str) -> None:
    """Only the tables: of tokens, places and segments, and a class token."""
    rules, body = INITS[init], set(model.get_submodule("body").modules())
    for module in (module for module in model.modules() if module not in body):
        if not isinstance(module, nn.Linear | Norm):
            for name, parameter in module.named_parameters(recurse=False):
                if name != "bias":
                    rules.table(parameter, 1)


def _draw(linear: nn.Linear, rule: Draw, depth: int) -> None:
    rule(linear.weight, depth)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
