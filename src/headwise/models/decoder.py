"""The decoder: tokens in, next-token logits out. The nanochat, GPT-2 and Llama blocks are its options (`PRESETS`)."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from headwise.layers.cache import KVCache
from headwise.models.blocks import CrossEntropy, counted, init_linear, make_embedding, make_norm
from headwise.models.encoder import Encoder
from headwise.models.init import INITS, begin_edges
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.spec import SpecError


class Decoder(nn.Module):
    """A causal language model.

    model = build("w256-h4-L4", preset("nanochat", vocab=256))
    tokens = model.generate(prompt, 100, temperature=0.8)
    """

    def __init__(self, shape: ModelShape, options: ModelOptions, **factory: Any) -> None:
        super().__init__()
        self.shape, self.options = shape, options
        width = shape.width
        # Tied, the table is also the output: 1/√width keeps its logits near unit variance.
        self.embedding = make_embedding(options.vocab, width, width**-0.5 if options.tied else 1.0, **factory)
        self.places = None
        if options.positions == "learned":
            self.places = make_embedding(options.context, width, 0.5 * width**-0.5, **factory)
        self.embedding_norm = make_norm(options, width, **factory) if options.embedding_norm else None
        self.body = Encoder(shape, options, **factory)
        self.head = None
        if not options.tied:
            self.head = nn.Linear(width, options.vocab, bias=False, **factory)
            init_linear(self.head)
        self.cross_entropy = CrossEntropy(options.softcap)
        if options.init in INITS:
            begin_edges(self, options.init)

    def forward(self, tokens: Tensor, caches: list[KVCache] | None = None, padding: Tensor | None = None) -> Tensor:
        """(batch, tokens) of token numbers to (batch, tokens, vocab) of logits.

        `padding` (batch, tokens, those in the caches too) is true for real tokens; their positions count them alone.
        """
        return self.cross_entropy.capped(nn.functional.linear(self.vectors(tokens, caches, padding), self.table))

    def token_loss(self, tokens: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        """Σ weight · cross-entropy of (batch, tokens); labels of weight 0 may be anything."""
        labels, weights, x = counted(labels, weights, self.vectors(tokens))
        return cast(Tensor, self.cross_entropy(x, self.table, None, labels, weights))

    @property
    def table(self) -> Tensor:
        """The output projection."""
        return self.embedding.weight if self.head is None else self.head.weight

    def vectors(self, tokens: Tensor, caches: list[KVCache] | None = None, padding: Tensor | None = None) -> Tensor:
        """What logits are made of: (batch, tokens, width)."""
        start = caches[0].length if caches else 0
        positions = None
        if padding is not None:
            positions = (padding.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :]
        x = self.embedding(tokens)
        x = x if self.options.embedding_scale == 1.0 else x * self.options.embedding_scale
        if self.places is not None:
            self._check_length(start + tokens.shape[1])
            there = torch.arange(start, start + tokens.shape[1], device=tokens.device)
            x = x + self.places(there if positions is None else positions)
        x = x if self.embedding_norm is None else self.embedding_norm(x)
        return cast(Tensor, self.body(x, caches=caches, padding=padding, positions=positions))

    def new_caches(self, capacity: int = 0) -> list[KVCache]:
        """Empty caches, one per layer."""
        return [KVCache(capacity) for _ in range(self.shape.depth)]

    @torch.no_grad()
    def generate(
        self,
        tokens: Tensor,
        new: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The tokens with `new` more: the likeliest each time (temperature 0), or drawn at that temperature."""
        if temperature < 0 or (top_k is not None and top_k < 1):
            raise SpecError(f"temperature must be at least 0 and top_k at least 1, not {temperature} and {top_k}")
        caches = self.new_caches(tokens.shape[1] + new)
        latest = tokens
        for _ in range(new):
            logits = self(latest, caches)[:, -1]
            latest = _choose(logits, temperature, top_k, generator)
            tokens = torch.cat([tokens, latest], dim=1)
        return tokens

    def _check_length(self, length: int) -> None:
        if length > self.options.context:
            raise SpecError(f"{length} tokens do not fit a context of {self.options.context} learned positions")


def _choose(logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    return torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
