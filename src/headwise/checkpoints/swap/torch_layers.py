"""torch's own: every nn.MultiheadAttention in a model, so nn.TransformerEncoderLayer and its kin."""

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from headwise.checkpoints.readers.torch_layers import TorchReader
from headwise.checkpoints.swap.carry import Carried
from headwise.checkpoints.swap.layer import AttentionPlace, HostAttention, InMemory
from headwise.layers.multihead import MultiheadAttention
from headwise.shape import AttentionShape
from headwise.spec import SpecError

SERVED = "nn.TransformerEncoderLayer (any nn.MultiheadAttention)"


def places(model: nn.Module) -> list[AttentionPlace]:
    return [
        _place(model, name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.MultiheadAttention)
    ]


def _place(model: nn.Module, name: str, module: nn.MultiheadAttention) -> "_TorchPlace":
    if not name:
        raise SpecError("give the model around an nn.MultiheadAttention: a layer cannot be replaced in itself")
    if not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        raise SpecError(
            f"'{name}' has keys or values of another width, or tokens of its own (kdim, vdim, add_bias_kv, "
            "add_zero_attn), which a swap does not carry over"
        )
    reader = TorchReader(InMemory(module, {}), module.num_heads)
    weight = module.in_proj_weight
    factory: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
    return _TorchPlace(name, module, reader.heads(0), dropout=module.dropout, factory=factory, model=model)


@dataclass
class _TorchPlace(AttentionPlace):
    model: Any = None

    def build(self, shape: AttentionShape, carried: Carried | None) -> HostAttention:
        if shape.kv_latent or shape.q_latent:
            raise SpecError(f"{shape}: nn.MultiheadAttention has no latent; leave c and q out")
        return super().build(shape, carried)

    def sees(self, args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
        query, key = (options.get(name, args[i] if len(args) > i else None) for i, name in enumerate(("query", "key")))
        if query is not key:
            raise SpecError(f"'{self.name}' attends to a memory, where data does not say what to keep: leave data out")
        assert isinstance(query, Tensor)
        return query if self.module.batch_first else query.transpose(0, -2)

    def original(self, x: Tensor, extra: Tensor | None) -> Tensor:
        module = copy.deepcopy(self.module).to(x.dtype).eval()
        x = x if module.batch_first else x.transpose(0, 1)
        output: Tensor = module(x, x, x, need_weights=False)[0]
        return output if module.batch_first else output.transpose(0, 1)

    def put(self, layer: HostAttention, carried: Carried | None) -> None:
        shape = layer.shape
        outer = MultiheadAttention(
            shape.width,
            shape.heads,
            dropout=self.dropout,
            bias=layer.input.bias is not None,
            batch_first=self.module.batch_first,
            qk_rank=shape.qk_rank,
            v_rank=shape.v_rank,
            kv_heads=shape.kv_heads,
            **self.factory,
        )
        if carried is not None:
            outer.attention.load_state_dict(layer.state_dict())
        outer.train(self.module.training)
        parent, _, last = self.name.rpartition(".")
        setattr(self.model.get_submodule(parent), last, outer)
