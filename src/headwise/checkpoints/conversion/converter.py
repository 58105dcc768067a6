"""A loaded model that is to be converted: its heads, its text, and the ways in which budgets can be met."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints import reader_of
from headwise.checkpoints.conversion.allocation import Sensitivity, allocate, sensitivities
from headwise.checkpoints.conversion.fitting import FittedLayer, convert_blind, convert_fitted
from headwise.checkpoints.conversion.hosted import with_code
from headwise.checkpoints.conversion.importance import Importance, head_rows, head_scores
from headwise.checkpoints.conversion.native import new_model
from headwise.checkpoints.conversion.result import Tried
from headwise.checkpoints.conversion.target import Target, native_or_hosted, read_target, rotary_part
from headwise.checkpoints.conversion.text import Blocks, block_losses, read_blocks
from headwise.checkpoints.conversion.unfinished import Unfinished
from headwise.checkpoints.files import open_weights
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.on_text import load_model
from headwise.checkpoints.reader import ProjectionReader, Reader
from headwise.checkpoints.swap.layer import InMemory
from headwise.options import PLAIN
from headwise.shape import AttentionShape, ModelShape
from headwise.spec import SpecError

CHOICE = 32  # blocks of training text that ways to meet a budget are compared on
LADDER = (0.75, 0.5, 0.375, 0.25, 0.125)  # of the cache, tried in turn for a bound on the loss
Layers = Callable[[Iterable[int]], Iterable[int]]


def _sayable(model: Any, reader: Reader) -> bool:
    """Whether it is a decoder whose configuration counts key/value heads, with attention where conversion looks."""
    layers = getattr(model.base_model, "layers", [])
    own = all(hasattr(getattr(layer, "self_attn", None), "scaling") for layer in layers)
    return bool(len(layers)) and own and reader.is_causal(0) and hasattr(model.config, "num_key_value_heads")


class Converter:
    """A loaded model, its heads, and the text."""

    def __init__(
        self,
        source: str | Path,
        data: str | Path | None,
        watch: Layers,
        steps: int,
        unfinished: Unfinished | None = None,
    ) -> None:
        found = open_weights(source)
        self.folder = found.path
        if "shape" in found.config:
            mixer = found.config.get("options", {}).get("mixer", PLAIN)
            raise SpecError(
                f"'{source}' is a model of headwise's own, with the mixer '{mixer}': convert knows transformers' own "
                "models, and of mixers their attention, windows and sinks"
            )
        if not self.folder.is_dir():
            raise SpecError(f"'{source}' is a file: give the folder with its config.json and tokenizer")
        self.tokenizer, self.model = load_model(self.folder, None, bare=data is None)
        weights = InMemory(self.model, self.model.config.to_dict())
        reader = reader_of(weights)(weights)
        if not isinstance(reader, ProjectionReader) or not _sayable(self.model, reader):
            raise SpecError(
                f"'{source}' is of family {reader.family}, whose configuration cannot say other shapes: conversion "
                "knows Llama and other decoders with key/value heads; headwise.swap and headwise truncate know more"
            )
        self.reader = reader
        self.heads: list[AttentionHeads] = [reader.heads(number) for number in range(len(reader.layers))]
        self.mlps = [reader.mlp(layer) for layer in reader.layers]
        longest = int(self.model.config.max_position_embeddings)
        self.blocks: Blocks | None = None if data is None else read_blocks(self.tokenizer, data, longest)
        self.watch, self.steps = watch, steps
        self.unfinished, self.ways = unfinished, count()
        self.importance: list[Importance] = []

    @property
    def shape(self) -> AttentionShape:
        return self.heads[0].shape

    @property
    def choice(self) -> Tensor:
        assert self.blocks is not None
        return self.blocks.training[1 :: max(len(self.blocks.training) // CHOICE, 1)][:CHOICE]

    @cached_property
    def scores(self) -> Tensor:
        """(layers, heads): what each head is worth."""
        scores = head_scores(self.model, self.choice, self.shape.heads)
        self.importance += head_rows(scores)
        return scores

    def described(self, target: Target) -> str:
        return str(ModelShape.of(list(target.shapes), [self.mlps[i] for i in target.layers]))

    def make(self, target: Target) -> tuple[Any, list[FittedLayer]]:
        with torch.no_grad():
            made = with_code(self.model, target) if target.each else new_model(self.model, target)
        if self.blocks is None:
            convert_blind(self.model, made, self.reader, target)
            return made, []
        fitted = convert_fitted(
            self.model,
            made,
            self.reader,
            target,
            self.blocks.calibration,
            self.steps,
            self.watch,
            self.unfinished,
            next(self.ways),
            self.scores if target.attention.heads < self.shape.heads else None,
        )
        return made, fitted

    def target(self, to: str) -> Target:
        shape, depth = read_target(to, self.shape, len(self.heads))
        target = Target(shape, tuple(range(depth)))
        native_or_hosted(target, self.model.config, self.heads[0])  # refused before what stays is measured
        return native_or_hosted(replace(target, layers=self.kept(depth)), self.model.config, self.heads[0])

    def kept(self, depth: int) -> tuple[int, ...]:
        """The layers that stay: one after the other the one goes whose absence costs least."""
        layers = list(range(len(self.heads)))
        if depth == len(layers):
            return tuple(layers)
        if self.blocks is None:
            raise SpecError("which layers to drop is measured: give --data TEXT")
        modules, base = self.model.base_model.layers, float(block_losses(self.model, self.choice).mean())
        try:
            while len(layers) > depth:
                losses = {}
                for one in layers:
                    stay = [modules[i] for i in layers if i != one]
                    self.model.base_model.layers = torch.nn.ModuleList(stay)
                    losses[one] = float(block_losses(self.model, self.choice).mean())
                if len(layers) == len(modules):
                    self.importance += [Importance(one, None, loss / base - 1) for one, loss in losses.items()]
                layers.remove(min(losses, key=lambda one: losses[one]))
        finally:
            self.model.base_model.layers = modules
        return tuple(layers)

    # ---- budgets -------------------------------------------------------------------------------------------------

    def best(self, targets: list[Target]) -> tuple[Target, Any, list[FittedLayer], list[Tried]]:
        """Of several ways, the one that scores best on training text that it was not fitted to."""
        made = []
        for target in targets:
            model, layers = self.make(target)
            loss = float("nan") if self.blocks is None else float(block_losses(model, self.choice).mean())
            made.append((loss, target, model, layers))
        full = self.shape.cached_per_token * len(self.heads)
        tried = [Tried(self.described(target), target.cached / full, loss) for loss, target, _, _ in made]
        _, target, model, layers = min(made, key=lambda one: one[0]) if self.blocks is not None else made[0]
        return target, model, layers, tried

    def within_kv(self, share: float) -> list[Target]:
        """The largest of each kind that keeps no more than this share of the cache."""
        if not 0 < share <= 1:
            raise SpecError(f"--kv is {share:.0%}; it is a share of the cache, above 0 and at most 100 %")
        old, layers = self.shape, tuple(range(len(self.heads)))
        found = [g for g in range(1, old.kv_heads + 1) if old.kv_heads % g == 0 and g <= share * old.kv_heads]
        texts = [f"g{found[-1]}"] if found else []
        part = rotary_part(old.qk_rank)
        latent = int(share * old.cached_per_token) - part
        if latent >= 2 and part < old.qk_rank:
            texts += [f"c{latent}-p{part}"]
        rank = int(share * old.qk_rank) // 2 * 2
        if rank >= 2:
            texts += [f"r{rank}"]
        targets = []
        for text in texts if self.blocks is not None else texts[:1]:
            with suppress(SpecError):  # of some heads a part turns, which not every rank can share out
                target = Target(read_target(text, old, len(self.heads))[0], layers)
                if not native_or_hosted(target, self.model.config, self.heads[0]).each:
                    targets.append(target)
        if not targets:
            raise SpecError(
                f"no shape that {self.model.config.model_type} can say keeps {share:.0%} of the cache or less"
            )
        return targets

    def per_layer(self, share: float) -> tuple[Target, list[Sensitivity]]:
        """As many key/value heads in each layer as cost least by what was measured, within this share of the cache."""
        if self.blocks is None:
            raise SpecError("what each layer needs is measured: give --per-layer with --data TEXT")
        if not 0 < share <= 1:
            raise SpecError(f"--kv is {share:.0%}; it is a share of the cache, above 0 and at most 100 %")
        old, depth = self.shape, len(self.heads)
        found = sensitivities(self.model, self.reader, self.blocks.calibration, self.choice, self.watch)
        counts = allocate(found, old.kv_heads, depth, int(share * old.kv_heads * depth))
        if not counts:
            raise SpecError(f"one key/value head in each of {depth} layers is more than {share:.0%} of the cache")
        shapes = tuple(one.shape.replace(kv_heads=count) for one, count in zip(self.heads, counts, strict=True))
        if len(set(shapes)) == 1:
            return Target(shapes[0], tuple(range(depth))), found
        return Target(old, tuple(range(depth)), shapes), found

    def within_params(self, share: float) -> list[Target]:
        """Fewer layers, or fewer heads."""
        if self.blocks is None:
            raise SpecError("what to drop for --params is measured: give --data TEXT")
        total = sum(p.numel() for p in self.model.parameters())
        layers = self.model.base_model.layers
        each, attention = (sum(p.numel() for p in part.parameters()) for part in (layers[0], layers[0].self_attn))
        over, old, depth = total - share * total, self.shape, len(layers)
        targets = []
        dropped = -(-over // each)
        if dropped < depth:
            targets.append(Target(old, self.kept(depth - int(dropped))))
        for heads in range(old.heads - 1, 0, -1):
            whole = heads % old.kv_heads == 0 or heads % old.group == 0
            if whole and depth * attention * (1 - heads / old.heads) >= over:
                targets.append(Target(read_target(f"h{heads}", old, depth)[0], tuple(range(depth))))
                break
        if not targets:
            raise SpecError(
                f"neither fewer layers nor fewer heads alone bring the model to {share:.0%} of its parameters"
            )
        return targets

    def within_loss(self, bound: float) -> tuple[Target, Any, list[FittedLayer], list[Tried]]:
        """The smallest cache whose loss, before healing, is no more than this much above the original's."""
        if self.blocks is None:
            raise SpecError("--loss is measured: give --data TEXT")
        base = float(block_losses(self.model, self.choice).mean())
        taken, tried = None, []
        for share in LADDER:
            try:
                target, model, layers, ways = self.best(self.within_kv(share))
            except SpecError:
                continue
            tried += ways
            if min(way.loss for way in ways) > base * (1 + bound):
                break
            taken = target, model, layers
        if taken is None:
            least = min(way.loss for way in tried) / base - 1
            raise SpecError(f"no smaller cache stays within {bound:+.1%}: the best at {LADDER[0]:.0%} has {least:+.1%}")
        return *taken, tried
