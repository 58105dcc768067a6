"""Functions learned from a prompt (Garg et al., "What can transformers learn in-context?"): tests depth and heads.

A prompt is x₁, f(x₁), x₂, f(x₂), … with a new f for every prompt, and the model predicts f(xᵢ) at xᵢ from what stands
before it. Each x is normal; f is linear with normal weights, linear with all but `sparsity` of them 0, a decision tree
of `tree_depth` that asks for signs and has normal leaves, or a network √(2/hidden)·Σ aⱼ·relu(wⱼ·x). As in the paper,
f(x) is a token of its own, its first number.

Error is the mean squared error over the places of the prompt (0 to points - 1 examples seen), divided by the mean of
f(x)²: dim, sparsity, 1 and dim. So predicting 0 has error exactly 1; without examples nothing is better, as f and -f
are equally likely. `error_at_K` is the error after K examples.

The default is where the paper's curriculum begins; the paper's own scale is
`in-context,dim=20,points=41,curriculum=2000` (101 points for trees and networks), shape w256-h8-L12.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from headwise.extras import extra
from headwise.models import Encoder
from headwise.models.blocks import init_linear
from headwise.models.init import INITS, begin_tables
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import Batch, Scores, Task
from headwise.tasks.stream import Draw, Stream

FIRST_DIM = 5  # the paper's curriculum: dimensions, and (points, points more at each increase) by kind
FIRST_POINTS = {"linear": (11, 2), "sparse": (11, 2), "tree": (26, 5), "relu": (26, 5)}
NEIGHBORS = 3
STRENGTHS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0, 100.0)  # of a penalty; the best on validation is taken
LEAVES = (1, 2, 4, 8, 16)  # examples in the smallest leaf of a tree; likewise
PROMPTS, SLOW_FITS, TUNING_FITS = 1024, 6400, 2000  # that classical methods are tested on, or tuned
NET_STEPS, NET_RATE = 200, 5e-3

Predictor = Callable[[Tensor, Tensor, Tensor], Tensor]  # examples' x and f(x), and the x that asks


class InContext(Task):
    name: ClassVar[str] = "in-context"
    summary: ClassVar[str] = "learn a function from examples in the prompt: tests depth and heads against least squares"
    usual_shape: ClassVar[str] = "w32-h2-L3"

    kind: Literal["linear", "sparse", "tree", "relu"] = Field(default="linear", description="of function")
    dim: int = Field(default=5, gt=0, description="numbers of an x")
    points: int = Field(default=11, gt=1, description="x in a prompt; the last is asked after points - 1 examples")
    curriculum: int = Field(default=0, ge=0, description="training steps to more dimensions and points; 0 for all now")
    sparsity: int = Field(default=3, gt=0, description="weights of a sparse function that are not 0")
    tree_depth: int = Field(default=4, gt=0, le=12, description="questions on the way to a leaf")
    hidden: int = Field(default=100, gt=0, description="units of a relu network")

    @model_validator(mode="after")
    def _check(self) -> "InContext":
        if self.kind == "sparse" and self.sparsity > self.dim:
            raise SpecError(f"{self.sparsity} weights of {self.dim} cannot be other than 0; use at most {self.dim}")
        return self

    @property
    def tokens(self) -> int:
        return 2 * self.points - 1  # the last f(x) is never an example

    @property
    def variance(self) -> int:
        """The mean of f(x)²."""
        return {"linear": self.dim, "sparse": self.sparsity, "tree": 1, "relu": self.dim}[self.kind]

    # ---- prompts ---------------------------------------------------------------------------------------------------

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        """Prompts (batch, tokens, dim) and every f(x) (batch, points).

        Tensors keep their size throughout a curriculum: later dimensions are 0 and labels of later points are NaN, not
        counted. Shorter prompts would train the same model sooner, but a run's cost would no longer be its price.
        """
        dim, points = self._stage(index if stream == "train" else None)
        draw = Draw(seed, stream, index, device)
        x = draw.normal(batch, self.points, self.dim)
        x[..., dim:] = 0
        y = self._values(draw, x, dim)
        prompts = x.new_zeros(batch, 2 * self.points, self.dim)
        prompts[:, 0::2] = x
        prompts[:, 1::2, 0] = y
        y[:, points:] = torch.nan
        return prompts[:, :-1], y

    def _stage(self, step: int | None) -> tuple[int, int]:
        """How many dimensions and points are in use at a step of training; None: beyond it, where all are."""
        if step is None or not self.curriculum:
            return self.dim, self.points
        increases = step // self.curriculum
        first, more = FIRST_POINTS[self.kind]
        return min(self.dim, FIRST_DIM + increases), min(self.points, first + more * increases)

    def _values(self, draw: Draw, x: Tensor, dim: int) -> Tensor:
        """(batch, points): a function of its own for every prompt, that asks for the first `dim` numbers."""
        batch = len(x)
        if self.kind == "tree":
            return _walk(
                draw.integers(0, dim, batch, 2**self.tree_depth - 1), draw.normal(batch, 2**self.tree_depth), x
            )
        if self.kind == "relu":
            hidden = (x @ draw.normal(batch, self.dim, self.hidden)).relu()
            return (2 / self.hidden) ** 0.5 * (hidden @ draw.normal(batch, self.hidden, 1))[..., 0]
        weights = draw.normal(batch, self.dim)
        if self.kind == "sparse":
            kept = draw.uniform(batch, dim).topk(min(self.sparsity, dim)).indices
            weights = torch.zeros_like(weights).scatter(1, kept, weights.gather(1, kept))
        return (x @ weights[..., None])[..., 0]

    # ---- model -----------------------------------------------------------------------------------------------------

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        needed = {"family": "decoder", "vocab": self.dim + 1, "tied": True, "embedding_norm": False, "softcap": 0.0}
        for name, value in needed.items():
            if getattr(options, name) != value:
                raise SpecError(f"a model of in-context prompts needs {name}={value}, not {getattr(options, name)}")
        if options.positions == "learned" and options.context < self.tokens:
            raise SpecError(f"{self.tokens} tokens do not fit a context of {options.context} learned positions")
        return _Regressor(self.dim, shape, options)

    def default_options(self) -> ModelOptions:
        """GPT-2's blocks. Reading `dim` numbers in and one out costs what a tied table of dim + 1 tokens would."""
        return preset("gpt2", vocab=self.dim + 1, context=self.tokens)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        counted = labels.isfinite()
        missed = torch.where(counted, output - labels, 0.0)
        return missed.square().sum() / (counted.sum() * self.variance)

    def scores(self, output: Tensor, labels: Tensor) -> Scores:
        return {"error": (output - labels).square() / self.variance}

    def metrics(self, scores: Scores) -> dict[str, float]:
        """The error of the whole prompt, and at a few places of it: every quarter of `dim`."""
        errors = scores["error"].double().mean(0)
        places = range(0, self.points, max(1, self.dim // 4))
        return {"error": float(errors.mean())} | {f"error_at_{k}": float(errors[k]) for k in places}

    @property
    def metric_name(self) -> str:
        return "squared error"  # over the labels' variance

    # ---- what is known ---------------------------------------------------------------------------------------------

    def trivial_error(self) -> float:
        """Of predicting 0."""
        return 1.0

    def floor(self) -> float | None:
        """Linear: examples fix the weights in the directions they span, a part k/dim of all; nothing is known of the
        rest. Least squares reaches it."""
        if self.kind != "linear":
            return None
        return sum(max(0.0, 1 - k / self.dim) for k in range(self.points)) / self.points

    def simple_baseline(self) -> tuple[str, float]:
        """Weights as one step of gradient descent from 0 has them, as long as is best for so many examples."""
        return "one gradient step", _one_step_error(self)

    def baselines(self) -> dict[str, float]:
        """Where f is not linear, least squares has no mean error near as many examples as dimensions: see ridge."""
        return {name: sum(errors) / len(errors) for name, errors in self.baselines_by_examples().items()}

    def baselines_by_examples(self) -> dict[str, list[float]]:
        """Of each classical method the error after 0, 1, … examples, as `error_at_K` is the model's."""
        slow = max(1, SLOW_FITS // self.points)
        methods: dict[str, tuple[Predictor, int]] = {
            "least squares": (_least_squares, PROMPTS),
            "ridge": (self._tuned(_ridge, STRENGTHS), PROMPTS),
            "nearest neighbours": (_nearest, PROMPTS),
            "averaging": (_averaging, PROMPTS),
        }
        if self.kind == "sparse":
            methods["lasso"] = self._tuned(_lasso, STRENGTHS), slow
        if self.kind == "tree":
            methods["greedy tree"] = self._tuned(_greedy_tree, LEAVES), slow
            methods["greedy tree on signs"] = self._tuned(lambda leaf: _on_signs(_greedy_tree(leaf)), LEAVES), slow
            methods["forest on signs"] = _on_signs(_forest()), slow
        if self.kind == "relu":
            methods["network by gradient descent"] = _network(self.hidden), slow
        return {name: self._errors(*method, "test") for name, method in methods.items()}

    def _errors(self, predict: Predictor, prompts: int, stream: Stream) -> list[float]:
        tokens, y = (tensor.double() for tensor in self.draw(0, stream, 0, prompts))
        x = tokens[:, 0::2]
        predicted = [torch.zeros_like(y[:, 0]), *(predict(x[:, :k], y[:, :k], x[:, k]) for k in range(1, self.points))]
        errors: list[float] = ((torch.stack(predicted, 1) - y).square().mean(0) / self.variance).tolist()
        return errors

    def _tuned(self, method: Callable[[Any], Predictor], settings: tuple[float, ...]) -> Predictor:
        """The method with the setting that does best on validation."""
        prompts = max(1, TUNING_FITS // self.points)
        candidates = [method(setting) for setting in settings]
        return min(candidates, key=lambda predict: sum(self._errors(predict, prompts, "validation")))


class _Regressor(nn.Module):
    """Vectors read in, a causal body, one number read out at every x.

    No biases at either end: learned positions and the last norm have them.
    """

    def __init__(self, dim: int, shape: ModelShape, options: ModelOptions) -> None:
        super().__init__()
        self.read_in = nn.Linear(dim, shape.width, bias=False)
        self.places = None
        if options.positions == "learned":
            self.places = nn.Parameter(torch.randn(options.context, shape.width) * 0.5 * shape.width**-0.5)
        self.body = Encoder(shape, options)
        self.read_out = nn.Linear(shape.width, 1, bias=False)
        if options.init in INITS:  # as transformers' GPT-2 between torch's own layers, which is what the paper trains
            begin_tables(self, options.init)
        else:
            init_linear(self.read_in)
            init_linear(self.read_out)

    def forward(self, prompts: Tensor) -> Tensor:
        """(batch, tokens, dim) to (batch, points)."""
        x = self.read_in(prompts)
        x = x if self.places is None else x + self.places[: x.shape[1]]
        numbers: Tensor = self.read_out(self.body(x))
        return numbers[:, 0::2, 0]


def _walk(questions: Tensor, leaves: Tensor, x: Tensor) -> Tensor:
    """The leaf that each x comes to: node i asks whether a coordinate is positive, then goes to 2i + 1 or 2i + 2."""
    node = torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
    while node[0, 0] < questions.shape[1]:
        coordinate = questions.gather(1, node)
        node = 2 * node + 1 + (x.gather(2, coordinate[..., None])[..., 0] > 0)
    return leaves.gather(1, node - questions.shape[1])


# ---- classical methods: a prediction for each prompt ---------------------------------------------------------------


def _least_squares(x: Tensor, y: Tensor, asking: Tensor) -> Tensor:
    """The solution of least norm, where there are many."""
    weights = torch.linalg.lstsq(x, y[..., None], driver="gelsd").solution
    return _dot(weights[..., 0], asking)


def _ridge(strength: float) -> Predictor:
    def predict(x: Tensor, y: Tensor, asking: Tensor) -> Tensor:
        gram = x.mT @ x + strength * torch.eye(x.shape[-1], dtype=x.dtype)
        return _dot(torch.linalg.solve(gram, (x.mT @ y[..., None])[..., 0]), asking)

    return predict


def _nearest(x: Tensor, y: Tensor, asking: Tensor) -> Tensor:
    distances = (x - asking[:, None]).norm(dim=-1)
    near = distances.topk(min(NEIGHBORS, y.shape[1]), largest=False).indices
    return y.gather(1, near).mean(1)


def _averaging(x: Tensor, y: Tensor, asking: Tensor) -> Tensor:
    """Weights as the mean of f(x)·x: right on average, as x has unit covariance."""
    return _dot((x * y[..., None]).mean(1), asking)


@lru_cache(maxsize=16)
def _one_step_error(task: InContext) -> float:
    errors = task._errors(_one_step(task), PROMPTS, "test")
    return sum(errors) / len(errors)


def _one_step(task: InContext) -> Predictor:
    """Averages, each scaled by what suits validation best after as many examples."""
    tokens, y = (tensor.double() for tensor in task.draw(0, "validation", 0, PROMPTS))
    x = tokens[:, 0::2]
    scales = [0.0]
    for k in range(1, task.points):
        step = _averaging(x[:, :k], y[:, :k], x[:, k])
        scales.append(float((step @ y[:, k]) / (step @ step)))
    return lambda x, y, asking: scales[y.shape[1]] * _averaging(x, y, asking)


def _dot(weights: Tensor, x: Tensor) -> Tensor:
    return (weights * x).sum(-1)


def _lasso(strength: float) -> Predictor:
    """By least angles: coordinate descent does not converge where examples are few and the penalty is weak."""
    with extra("baselines", "baselines"):
        from sklearn.linear_model import LassoLars

    return _fitted(lambda: LassoLars(alpha=strength, fit_intercept=False))


def _greedy_tree(leaf: int) -> Predictor:
    with extra("baselines", "baselines"):
        from sklearn.tree import DecisionTreeRegressor

    return _fitted(lambda: DecisionTreeRegressor(min_samples_leaf=leaf, random_state=0))


def _forest() -> Predictor:
    """In the place of the paper's XGBoost: scikit-learn's boosted trees do no better on these prompts."""
    with extra("baselines", "baselines"):
        from sklearn.ensemble import RandomForestRegressor

    return _fitted(lambda: RandomForestRegressor(n_estimators=30, random_state=0))


def _on_signs(predict: Predictor) -> Predictor:
    """The same method on the signs of x alone."""
    return lambda x, y, asking: predict(x.sign(), y, asking.sign())


def _fitted(make: Callable[[], Any]) -> Predictor:
    """One of scikit-learn's models, fitted to each prompt."""

    def predict(x: Tensor, y: Tensor, asking: Tensor) -> Tensor:
        prompts = zip(x.numpy(), y.numpy(), asking.numpy()[:, None], strict=True)
        return torch.tensor([float(make().fit(xs, ys).predict(query)[0]) for xs, ys, query in prompts]).double()

    return predict


def _network(hidden: int) -> Predictor:
    """A network of the same kind for each prompt, all trained at once with Adam."""

    def predict(x: Tensor, y: Tensor, asking: Tensor) -> Tensor:
        prompts, _, dim = x.shape
        generator = torch.Generator().manual_seed(0)
        x, y, asking = x.float(), y.float(), asking.float()
        inner = torch.randn(prompts, dim, hidden, generator=generator).requires_grad_()
        outer = torch.zeros(prompts, hidden, 1).requires_grad_()
        optimizer = torch.optim.Adam([inner, outer], lr=NET_RATE)

        def values(x: Tensor) -> Tensor:
            return (2 / hidden) ** 0.5 * ((x @ inner).relu() @ outer)[..., 0]

        for _ in range(NET_STEPS):
            optimizer.zero_grad()
            (values(x) - y).square().mean(1).sum().backward()
            optimizer.step()
        return values(asking[:, None])[:, 0].detach().double()

    return predict


TASK = InContext
