"""BERT: tokens in; hidden states, masked-token logits or class logits out."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.models.blocks import ACTIVATIONS, CrossEntropy, counted, init_linear, make_embedding, make_norm
from headwise.models.encoder import Encoder
from headwise.models.init import INITS, begin_edges
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError

_CARRIED = ("body.", "places.", "embedding_norm.")


class Bert(nn.Module):
    """`options.head` is what comes out: hidden states ('none'), logits per token ('mlm') or per text ('classes')."""

    def __init__(self, shape: ModelShape, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        self.shape, self.options = shape, options
        width, bias = shape.width, options.bias == "all"
        self.embedding = make_embedding(options.vocab, width, width**-0.5, **factory)
        learned = options.positions == "learned"
        self.places = make_embedding(options.context, width, 0.5 * width**-0.5, **factory) if learned else None
        self.segments = make_embedding(options.segments, width, 0.02, **factory) if options.segments else None
        self.embedding_norm = make_norm(options, width, **factory) if options.embedding_norm else None
        self.body = Encoder(shape, options, **factory)
        self.pooler = nn.Linear(width, width, bias=bias, **factory) if options.pooler else None
        self.masked_head = _MaskedHead(options, width, **factory) if options.head == "mlm" else None
        self.head = nn.Linear(width, options.classes, bias=bias, **factory) if options.head == "classes" else None
        for linear in (self.pooler, self.head):
            if linear is not None:
                init_linear(linear)
        if options.init in INITS:
            begin_edges(self, options.init)

    def forward(self, tokens: Tensor, segments: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        """(batch, tokens) of token numbers; `padding` (batch, tokens) is true for real tokens."""
        x = self.vectors(tokens, segments, padding)
        if self.masked_head is not None:
            return self.masked_head(x, self.embedding.weight)
        return x if self.head is None else self.head(self.pooled(x))

    def token_loss(self, tokens: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Σ weight · cross-entropy of (batch, tokens), with head `mlm`; labels of weight 0 may be anything."""
        assert self.masked_head is not None
        labels, weights, x = counted(labels, weights, self.vectors(tokens))
        return self.masked_head.loss(x, self.embedding.weight, labels, weights)

    def vectors(self, tokens: Tensor, segments: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        """The body's output: (batch, tokens, width)."""
        x = self.embedding(tokens)
        if self.places is not None:
            x = x + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return cast(Tensor, self.body(x, padding=padding))

    @torch.no_grad()
    def begin_with(self, weights: dict[str, Tensor], rows: slice, theirs: slice) -> None:
        """Take body, positions and embedding norm from another Bert's state, and rows of the table from its rows.

        Segments, pooler and head stay as they are.
        """
        own = self.state_dict()
        for name, tensor in own.items():
            if name.startswith(_CARRIED):
                before = weights.get(name)
                if before is None or before.shape != tensor.shape:
                    has = "none" if before is None else tuple(before.shape)
                    raise SpecError(
                        f"the pre-trained model's {name} is {has}, and this run needs {tuple(tensor.shape)}: shape, "
                        "options and context (the task's length) must be the same in both"
                    )
                tensor.copy_(before)
        own["embedding.weight"][rows] = weights["embedding.weight"][theirs]

    def pooled(self, x: Tensor) -> Tensor:
        """The first token's vector, through the pooler where there is one."""
        return x[:, 0] if self.pooler is None else torch.tanh(self.pooler(x[:, 0]))


class _MaskedHead(nn.Module):
    """A dense layer, a norm, and the embedding table again (or a table of its own)."""

    def __init__(self, options: ModelOptions, width: int, **factory: Any) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width, bias=options.bias == "all", **factory)
        self.activation = options.activation
        self.norm = make_norm(options, width, **factory)
        self.table = None if options.tied else nn.Parameter(torch.empty(options.vocab, width, **factory))
        self.bias = nn.Parameter(torch.zeros(options.vocab, **factory)) if options.bias == "all" else None
        self.cross_entropy = CrossEntropy(0.0)
        init_linear(self.dense)
        if self.table is not None:
            nn.init.normal_(self.table, std=width**-0.5)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return nn.functional.linear(self._transformed(x), embedding if self.table is None else self.table, self.bias)

    def loss(self, x: Tensor, embedding: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        table = embedding if self.table is None else self.table
        return cast(Tensor, self.cross_entropy(self._transformed(x), table, self.bias, labels, weights))

    def _transformed(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.norm(ACTIVATIONS[self.activation](self.dense(x))))
