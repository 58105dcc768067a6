"""What is measured on a model, without changing it, its gradients or the random state.

    measure_probe("qk-rank", model, inputs)      # {"qk-rank.layer0": 11.3, ...}: one number for each attention layer

Let x be the tokens that a layer sees (after the norm, where a norm stands before it), A the outputs of its heads side
by side (tokens × H·V), and a(x) = A Oᵀ what it adds to the residual stream.

| name | what | samples |
|---|---|---|
| `qk-rank`, `vo-rank` | effective rank of a head's QᵀK and OV, of its entropy | 1 |
| `qk-stable-rank`, `vo-stable-rank` | the same as Σσ² / max σ² | 1 |
| `qk-participation-rank`, `vo-participation-rank` | the same as (Σσ²)² / Σσ⁴ | 1 |
| `qk-condition`, `vo-condition` | condition number of a head's QᵀK and OV within the rank they can have | 1 |
| `qk-identity-angle` | degrees between a head's QᵀK and the identity: 0 for a multiple of I, 180 for one of −I | 1 |
| `qk-norm` | Frobenius norm of a head's QᵀK over √width, the factor where it is a multiple of ±I | 1 |
| `input-weight-condition`, `output-weight-condition` | of the query, key and value projections; of O | 1 |
| `heads-condition` | of A | 8 |
| `centred-heads-condition` | of A without its mean over tokens | 8 |
| `block-condition`, `residual-block-condition` | of a(x); of x + a(x) | 8 |
| `jacobian-condition`, `residual-jacobian-condition` | of the derivative of a(x), of x + a(x), by x | 2 |
| `attention-entropy` | nats: 0 where a query looks at one key, log(keys) where it looks at all alike | all |
| `sharpness` | the largest weight of a query: 1 where it looks at one key | all |
| `head-overlap` | the part of their attention that two heads share: 1 for equal patterns; NaN for one head | all |

Ranks and patterns are means over heads and queries, condition numbers geometric means over heads or samples, infinite
where a matrix is singular. Padded queries do not count. Everything is computed in float64 on a copy of the layer.

Cost: the Jacobian probes are the expensive ones, seconds per layer for a thousand numbers (tokens × width) and up to a
minute beyond `spectra.EXACT_SIZE`, where the one without the residual is mostly NaN (see `jacobian_extremes`).
The rest is one forward pass and singular values of matrices no larger than tokens × H·V.

The functions of tensors in `spectra`, and those below that take attention weights, serve models of any other library.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from headwise.layers.attention import Attention
from headwise.layers.cache import KVCache
from headwise.measure.spectra import (
    Function,
    RankForm,
    condition_number,
    condition_of,
    effective_rank,
    jacobian_extremes,
    rank_of,
    singular_values,
)
from headwise.mixer import find_mixer
from headwise.spec import SpecError

__all__ = ["PROBES", "Call", "attention_entropy", "effective_rank", "head_overlap", "measure_probe", "sharpness"]

# ---- attention patterns: functions of weights (..., H, T, S) -------------------------------------------------------


def attention_entropy(weights: Tensor) -> float:
    """Mean over heads and queries, in nats."""
    return torch.special.entr(weights).sum(-1).mean().item()


def sharpness(weights: Tensor) -> float:
    """The largest weight, mean over heads and queries."""
    return weights.amax(-1).mean().item()


def head_overlap(weights: Tensor) -> float:
    """Attention that two heads have in common, Σ min(a, b) over keys: mean over pairs of heads and queries."""
    others = range(1, weights.shape[-3])
    shared = [torch.minimum(weights, weights.roll(k, dims=-3)).sum(-1).mean().item() for k in others]
    return sum(shared) / len(shared) if shared else math.nan


# ---- one call of a layer -------------------------------------------------------------------------------------------


class Call:
    """One call of an attention layer, repeated on a copy: in float64, by the plain path, without dropout.

    `given` are the arguments of the layer's forward by name; a cache among them is used up.
    """

    def __init__(self, layer: Attention, given: dict[str, Any]) -> None:
        self.layer = copy.deepcopy(layer).to("cpu", torch.float64).eval().requires_grad_(False)
        self.layer.path = "plain"
        self.given = given

    @cached_property
    def _results(self) -> tuple[Tensor, Tensor, Tensor]:
        heads: list[Tensor] = []
        hook = self.layer.output.register_forward_pre_hook(lambda _, inputs: heads.append(inputs[0]))
        output, weights = self.layer(**self.given, need_weights=True)
        hook.remove()
        return heads[0], output, weights

    @cached_property
    def _real(self) -> Tensor:
        """(B, T): which queries are tokens rather than padding."""
        x, padding = self.given["x"], self.given.get("padding")
        if padding is None or self.given.get("memory") is not None:
            return torch.ones(x.shape[:2], dtype=torch.bool)
        return padding[:, -x.shape[1] :].expand(x.shape[:2])

    @property
    def weights(self) -> Tensor:
        """(H, Q, S): attention of every query that is no padding."""
        return self._results[2].movedim(1, 0)[:, self._real]

    def matrices(self, part: str) -> list[Tensor]:
        """Per sample, one row per token: `tokens` x, `heads` side by side, `output` a(x) or `residual` x + a(x)."""
        heads, output, _ = self._results
        x = self.given["x"]
        matrices = {"tokens": x, "heads": heads, "output": output, "residual": x + output}[part]
        return [sample[real] for sample, real in zip(matrices, self._real, strict=True)]

    def functions(self, residual: bool = False) -> Iterator[tuple[Function, Tensor]]:
        """For each sample a(x), or x + a(x), as a function of its tokens, and the tokens it saw."""
        if self.given.get("cache") is not None:
            raise SpecError("a cache keeps no derivatives: measure a Jacobian on a call without one")
        same = [name for name in ("x", "memory", "values") if self.given.get(name) is self.given["x"]]
        for i, real in enumerate(self._real):
            given = {name: _sample(name, value, i) for name, value in self.given.items()}
            places = real.nonzero().flatten()

            def function(tokens: Tensor, given: dict[str, Any] = given, places: Tensor = places) -> Tensor:
                x = given["x"].index_copy(1, places, tokens[None])
                output = self.layer(**{**given, **dict.fromkeys(same, x)})[0, places]
                return output + tokens if residual else output

            yield function, given["x"][0, places]


_WITH_BATCH = {"x": 3, "memory": 3, "values": 3, "padding": 2, "mask": 4, "pair_bias": 4, "positions": 2}


def _sample(name: str, value: Any, i: int) -> Any:
    """The part of an argument that concerns sample i; what is the same for all samples has fewer dimensions, or one."""
    varies = isinstance(value, Tensor) and value.dim() == _WITH_BATCH[name] and value.shape[0] > 1
    return value[i : i + 1] if varies else value


def _record(seen: dict[nn.Module, dict[str, Any]], layer: nn.Module, args: Any, options: Any) -> None:
    """A hook: the arguments of a call by name, as they are now, in float64; one tensor given twice stays one tensor."""
    given = inspect.signature(layer.forward).bind(*args, **options).arguments
    given.pop("need_weights", None)
    copies: dict[Any, Any] = {}
    for name, value in given.items():
        if isinstance(value, Tensor):
            place = (value.data_ptr(), value.shape, value.stride())
            kind = torch.float64 if value.is_floating_point() else value.dtype
            given[name] = copies.setdefault(place, value.detach().to("cpu", kind, copy=True))
        elif isinstance(value, KVCache):
            given[name] = copy.deepcopy(value)
            given[name].stored = tuple(t.to("cpu", torch.float64) for t in value.stored)
    seen[layer] = given


# ---- the probes ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """A number of one call, and how many samples the model is run on for it (None for all that are given)."""

    of: Callable[[Call], float]
    samples: int | None = None


def _typical(conditions: Tensor) -> float:
    """The geometric mean: condition numbers differ by factors."""
    return float(conditions.log().mean().exp())


def _head_values(call: Call, pair: str) -> Tensor:
    """(H, rank): singular values of each head's QᵀK or OV."""
    query, key, value, output = call.layer.head_weights()
    return singular_values(query, key) if pair == "qk" else singular_values(output.mT, value)


def _rank(pair: str, form: RankForm) -> Probe:
    return Probe(lambda call: float(rank_of(_head_values(call, pair), form).mean()), samples=1)


def _head_condition(pair: str) -> Probe:
    return Probe(lambda call: _typical(condition_of(_head_values(call, pair))), samples=1)


def _qk_norms(call: Call) -> Tensor:
    """(H): Frobenius norms."""
    return _head_values(call, "qk").square().sum(-1).sqrt()


def _identity_angle(call: Call) -> float:
    """Mean over heads: the cosine is trace(QᵀK) over both norms. A head of rank r gets no nearer than √(r / width)."""
    query, key, _, _ = call.layer.head_weights()
    cosines = (query * key).sum((-1, -2)) / (_qk_norms(call) * query.shape[-1] ** 0.5)
    return float(cosines.clamp(-1, 1).acos().rad2deg().mean())


def _qk_norm(call: Call) -> float:
    return float(_qk_norms(call).mean()) / call.layer.shape.width**0.5


def _input_weights(call: Call) -> float:
    return _typical(torch.stack([condition_number(weight) for weight, _ in call.layer.input_parts()]))


def _output_weight(call: Call) -> float:
    return float(condition_number(call.layer.output.weight))


def _matrix_condition(part: str, centred: bool = False) -> Probe:
    def of(call: Call) -> float:
        return _typical(torch.stack([condition_number(m, centred=centred) for m in call.matrices(part)]))

    return Probe(of, samples=8)


def _jacobian_condition(residual: bool) -> Probe:
    def of(call: Call) -> float:
        conditions = [jacobian_extremes(function, x).condition for function, x in call.functions(residual)]
        return _typical(torch.tensor(conditions, dtype=torch.float64))

    return Probe(of, samples=2)


PROBES: dict[str, Probe] = {
    "qk-rank": _rank("qk", "entropy"),
    "vo-rank": _rank("vo", "entropy"),
    "qk-stable-rank": _rank("qk", "stable"),
    "vo-stable-rank": _rank("vo", "stable"),
    "qk-participation-rank": _rank("qk", "participation"),
    "vo-participation-rank": _rank("vo", "participation"),
    "qk-condition": _head_condition("qk"),
    "vo-condition": _head_condition("vo"),
    "qk-identity-angle": Probe(_identity_angle, samples=1),
    "qk-norm": Probe(_qk_norm, samples=1),
    "input-weight-condition": Probe(_input_weights, samples=1),
    "output-weight-condition": Probe(_output_weight, samples=1),
    "heads-condition": _matrix_condition("heads"),
    "centred-heads-condition": _matrix_condition("heads", centred=True),
    "block-condition": _matrix_condition("output"),
    "residual-block-condition": _matrix_condition("residual"),
    "jacobian-condition": _jacobian_condition(residual=False),
    "residual-jacobian-condition": _jacobian_condition(residual=True),
    "attention-entropy": Probe(lambda call: attention_entropy(call.weights)),
    "sharpness": Probe(lambda call: sharpness(call.weights)),
    "head-overlap": Probe(lambda call: head_overlap(call.weights)),
}


@torch.no_grad()
def measure_probe(name: str, model: nn.Module, inputs: Tensor) -> dict[str, float]:
    """One number for each attention layer that the model calls for these inputs (its last call, if there are several).

    The first samples of the inputs are enough for most probes; see the table above.
    """
    if name not in PROBES:
        raise SpecError(f"no probe '{name}'; there are {', '.join(PROBES)}")
    probe = PROBES[name]
    every = [module for module in model.modules() if isinstance(module, Attention)]
    layers = [layer for layer in every if layer.mixer and name in find_mixer(layer.mixer).probes]
    if every and not layers:
        there = ", ".join(dict.fromkeys(layer.mixer or type(layer).__name__ for layer in every))
        raise SpecError(f"the probe '{name}' says nothing of the mixer {there}; leave it out")
    seen: dict[nn.Module, dict[str, Any]] = {}
    with _undisturbed(model):
        hooks = [layer.register_forward_pre_hook(partial(_record, seen), with_kwargs=True) for layer in layers]
        try:
            model.eval()
            model(inputs[: probe.samples])
        finally:
            for hook in hooks:
                hook.remove()
        called = [(i, layer) for i, layer in enumerate(every) if layer in seen]
        return {f"{name}.layer{i}": probe.of(Call(layer, seen[layer])) for i, layer in called}


@contextmanager
def _undisturbed(model: nn.Module) -> Iterator[None]:
    """Afterwards every module is in the mode it was in, and random numbers go on as if nothing had been drawn."""
    modes = [(module, module.training) for module in model.modules()]
    cuda = sorted({p.device.index for p in model.parameters() if p.is_cuda})
    with torch.random.fork_rng(devices=cuda):
        try:
            yield
        finally:
            for module, training in modes:
                module.training = training
