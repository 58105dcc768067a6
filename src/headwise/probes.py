"""What is measured on a model, without changing it or the random state.

    measure("qk-rank", model, inputs)      # {"qk-rank.layer0": 11.3, ...}: a mean over the heads of each layer

Each probe is a plain function of an attention layer and the tokens it sees, so it runs on any headwise model.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from headwise.attention import Attention
from headwise.spec import SpecError

Probe = Callable[[Attention, Tensor], float]


def effective_rank(matrices: Tensor) -> Tensor:
    """The exponential of the entropy of the singular values, for each matrix: 1 for rank one, n for n equal ones."""
    values = torch.linalg.svdvals(matrices)
    parts = values / values.sum(-1, keepdim=True)
    return torch.special.entr(parts).sum(-1).exp()


def _qk_rank(layer: Attention, tokens: Tensor) -> float:
    return float(effective_rank(layer.qk_matrices()).mean())


def _vo_rank(layer: Attention, tokens: Tensor) -> float:
    return float(effective_rank(layer.vo_matrices()).mean())


def _attention_entropy(layer: Attention, tokens: Tensor) -> float:
    """Nats: 0 where every query looks at one key, log(keys) where it looks at all alike."""
    found = layer(tokens, need_weights=True)
    assert isinstance(found, tuple)
    return float(torch.special.entr(found[1]).sum(-1).mean())


PROBES: dict[str, Probe] = {"qk-rank": _qk_rank, "vo-rank": _vo_rank, "attention-entropy": _attention_entropy}


@torch.no_grad()
def measure(name: str, model: nn.Module, inputs: Tensor) -> dict[str, float]:
    """One number for each attention layer of the model, with the tokens it sees for these inputs."""
    if name not in PROBES:
        raise SpecError(f"no probe '{name}'; there are {', '.join(PROBES)}")
    layers = [module for module in model.modules() if isinstance(module, Attention)]
    seen: dict[Attention, Tensor] = {}
    hooks = [layer.register_forward_pre_hook(lambda module, given: seen.update({module: given[0]})) for layer in layers]
    training, random = model.training, torch.get_rng_state()
    try:
        model.eval()
        model(inputs)
    finally:
        for hook in hooks:
            hook.remove()
    found = {f"{name}.layer{i}": PROBES[name](layer, seen[layer]) for i, layer in enumerate(layers)}
    model.train(training)
    torch.set_rng_state(random)
    return found
