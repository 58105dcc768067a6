"""A smaller model you can load: the attention of a checkpoint in another shape, with what it costs.

    done = headwise.convert("path", to="g2", data="my.txt", out="smaller", heal="30m")
    done.converted.change, done.healed.change, done.kv          # relative losses on held-out text; share of the cache

`to` is a shape (g2, c256-p32, r16, h4, L6), or there is a budget: kv, params or loss. Every way that the family's own
configuration can say and that meets a budget is converted, and the one that scores best is taken. The folder is
transformers' own: losses are of the folder loaded back. Without text heads are joined by their weights alone.
"""

import copy
import json
import math
import re
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints import open_checkpoint, reader_of
from headwise.checkpoints.conversion.fitting import STEPS, FittedLayer, convert_blind, convert_fitted
from headwise.checkpoints.conversion.healing import STATE
from headwise.checkpoints.conversion.healing import heal as train_to_agree
from headwise.checkpoints.conversion.native import Target, new_model, read_target, rotary_part
from headwise.checkpoints.conversion.result import Conversion, Frontier, Tried
from headwise.checkpoints.conversion.text import Blocks, Change, block_losses, change_of, read_blocks
from headwise.checkpoints.files import check_new, llama2c_sizes, open_weights
from headwise.checkpoints.heads import AttentionHeads
from headwise.checkpoints.llama2c import write_llama2c
from headwise.checkpoints.on_text import load_model
from headwise.checkpoints.swap.layer import InMemory
from headwise.comparison.question import read_budget
from headwise.cost import cached_per_token
from headwise.shape import AttentionShape, ModelShape
from headwise.spec import SpecError

CHOICE = 32  # blocks of training text that ways to meet a budget are compared on
LADDER = (0.75, 0.5, 0.375, 0.25, 0.125)  # of the cache, tried in turn for a bound on the loss
REQUEST = "request.json"
Layers = Callable[[Iterable[int]], Iterable[int]]


class _Converter:
    """A loaded model, its heads, and the text."""

    def __init__(self, source: str | Path, data: str | Path | None, watch: Layers, steps: int) -> None:
        self.folder = open_weights(source).path
        if not self.folder.is_dir():
            raise SpecError(f"'{source}' is a file: give the folder with its config.json and tokenizer")
        self.tokenizer, self.model = load_model(self.folder, None)
        weights = InMemory(self.model, self.model.config.to_dict())
        reader = reader_of(weights)(weights)
        if reader.family != "llama" or not hasattr(self.model.base_model, "layers"):
            raise SpecError(
                f"'{source}' is of family {reader.family}: conversion knows Llama, Mistral, Qwen and Gemma, whose own "
                "configuration can say other shapes; headwise.swap and headwise truncate know more families"
            )
        self.heads: list[AttentionHeads] = [reader.heads(number) for number in range(len(reader.layers))]
        self.mlps = [reader.mlp(layer) for layer in reader.layers]
        longest = int(self.model.config.max_position_embeddings)
        self.blocks: Blocks | None = None if data is None else read_blocks(self.tokenizer, data, longest)
        self.watch, self.steps = watch, steps

    @property
    def shape(self) -> AttentionShape:
        return self.heads[0].shape

    @property
    def choice(self) -> Tensor:
        assert self.blocks is not None
        return self.blocks.training[1 :: max(len(self.blocks.training) // CHOICE, 1)][:CHOICE]

    def described(self, target: Target) -> str:
        shapes = [target.attention] * len(target.layers)
        return str(ModelShape.of(shapes, [self.mlps[i] for i in target.layers]))

    def make(self, target: Target) -> tuple[Any, list[FittedLayer]]:
        with torch.no_grad():
            made = new_model(self.model, target, self.heads[0])
        if self.blocks is None:
            convert_blind(self.model, made, self.heads, target)
            return made, []
        fitted = convert_fitted(self.model, made, self.heads, target, self.blocks.calibration, self.steps, self.watch)
        return made, fitted

    def target(self, to: str) -> Target:
        shape, depth = read_target(to, self.shape, len(self.heads))
        return Target(shape, self.kept(depth))

    def kept(self, depth: int) -> tuple[int, ...]:
        """The layers that stay: one after the other the one goes whose absence costs least."""
        layers = list(range(len(self.heads)))
        if depth == len(layers):
            return tuple(layers)
        if self.blocks is None:
            raise SpecError("which layers to drop is measured: give --data TEXT")
        modules = self.model.base_model.layers
        try:
            while len(layers) > depth:
                losses = {}
                for one in layers:
                    stay = [modules[i] for i in layers if i != one]
                    self.model.base_model.layers = torch.nn.ModuleList(stay)
                    losses[one] = float(block_losses(self.model, self.choice).mean())
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
        if (
            latent >= 2
            and part < old.qk_rank
            and self.model.config.model_type in ("llama", "mistral", "qwen2", "qwen3")
        ):
            texts += [f"c{latent}-p{part}"]
        rank = int(share * old.qk_rank) // 2 * 2
        if rank >= 2 and old.qk_rank % rank == 0:
            texts += [f"r{rank}"]
        targets = []
        for text in texts if self.blocks is not None else texts[:1]:
            shape, _ = read_target(text, old, len(self.heads))
            targets.append(Target(shape, layers))
        if not targets:
            raise SpecError(
                f"no shape that {self.model.config.model_type} can say keeps {share:.0%} of the cache or less"
            )
        return targets

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


def convert(
    source: str | Path,
    to: str | None = None,
    *,
    out: str | Path,
    kv: float | None = None,
    params: float | None = None,
    loss: float | None = None,
    data: str | Path | None = None,
    heal: float | str | None = None,
    tokenizer: str | Path | None = None,
    steps: int | None = None,
    watch: Layers | None = None,
    progress: Callable[[float, float], None] | None = None,
) -> Conversion:
    """Write a smaller model to a new folder; see the module's first lines.

    One of `to`, `kv`, `params` (shares, 0.25) and `loss` (0.01 is +1 %) says what it shall be. `steps` are of each
    layer's fit. `heal` is seconds, or '30m': so long it is trained to say what the original says. Interrupted, healing
    continues with the same call. A model of llama2.c, with its `tokenizer`, is written as a Llama, without a target.
    """
    folder = Path(out)
    asked = {"to": to, "kv": kv, "params": params, "loss": loss}
    if Path(source).is_file() and llama2c_sizes(Path(source)):
        if any(value is not None for value in asked.values()):
            raise SpecError(
                f"'{source}' is a model of llama2.c: convert it to a folder first, without --to and budgets"
            )
        return _from_llama2c(source, folder, tokenizer)
    if sum(value is not None for value in asked.values()) != 1:
        raise SpecError("give one of --to SHAPE, --kv 50%, --params 70% and --loss +1%: what the model shall become")
    steps = STEPS if steps is None else steps
    seconds = read_budget(heal) if isinstance(heal, str) else heal
    if seconds is not None and data is None:
        raise SpecError("--heal trains on text: give --data TEXT")
    request = {"source": str(source), **asked, "data": None if data is None else str(data), "heal": seconds}
    request |= {"steps": steps}
    going_on = (folder / REQUEST).exists() and json.loads((folder / REQUEST).read_text())["request"] == request
    if not going_on:
        check_new(folder)
    work = _Converter(source, data, watch or iter, steps)
    if going_on:
        done, made = _continued(folder)
    else:
        done, made = _converted(work, asked, str(source), folder)
    if seconds is not None:
        if not going_on:
            (folder / REQUEST).write_text(json.dumps({"request": request, "done": done.as_dict()}))
        done = _healed(work, done, made, seconds, folder, progress)
    (folder / "README.md").write_text(done.card())
    (folder / "conversion.json").write_text(done.to_json())
    return done


def _from_llama2c(source: str | Path, folder: Path, tokenizer: str | Path | None) -> Conversion:
    """The same model as a Llama of transformers."""
    write_llama2c(source, folder, tokenizer)
    opened = open_checkpoint(folder)
    shape = opened.shape_of([opened.heads(i).shape for i in range(len(opened.layers))])
    count = sum(math.prod(size) for size in opened.weights.shapes.values())
    cache = 4 * cached_per_token(shape)
    return Conversion(str(source), folder, "LlamaForCausalLM", str(shape), str(shape), count, count, cache, cache)


def frontier(source: str | Path, shares: list[float], *, out: str | Path, **options: Any) -> Frontier:
    """One conversion for each share of the cache, each in a folder of its own."""
    folder = Path(out)
    if not shares:
        raise SpecError("give --kv one share or more, such as 75%,50%,25%")
    return Frontier(
        tuple(convert(source, kv=one, out=folder / f"kv-{one:.0%}".rstrip("%"), **options) for one in shares)
    )


def _converted(work: _Converter, asked: dict[str, Any], source: str, folder: Path) -> tuple[Conversion, Any]:
    tried: list[Tried] = []
    if asked["to"] is not None:
        target = work.target(asked["to"])
        made, layers = work.make(target)
    elif asked["kv"] is not None:
        target, made, layers, tried = work.best(work.within_kv(asked["kv"]))
    elif asked["params"] is not None:
        target, made, layers, tried = work.best(work.within_params(asked["params"]))
    else:
        target, made, layers, tried = work.within_loss(asked["loss"])
    _write(work, made, folder)
    full = Target(work.shape, tuple(range(len(work.heads))))
    size = torch.finfo(_dtype(work)).bits // 8
    done = Conversion(
        source=source,
        out=folder,
        architecture=type(made).__name__,
        before=work.described(full),
        after=work.described(target),
        parameters_before=sum(p.numel() for p in work.model.parameters()),
        parameters_after=sum(p.numel() for p in made.parameters()),
        kv_bytes_before=full.cached * size,
        kv_bytes_after=target.cached * size,
        layers=tuple(layers),
        dropped=tuple(i for i in full.layers if i not in target.layers),
        tried=tuple(tried),
    )
    back = _loaded_back(made, folder)
    if work.blocks is None:
        return done, made
    before = block_losses(work.model, work.blocks.held)
    return replace(
        done,
        tokens=work.blocks.held[:, 1:].numel(),
        loss_before=float(before.mean()),
        converted=change_of(block_losses(back, work.blocks.held), before),
        decode_before=decode_milliseconds(work.model, work.blocks.held),
        decode_after=decode_milliseconds(back, work.blocks.held),
    ), made


def _healed(
    work: _Converter,
    done: Conversion,
    made: Any,
    seconds: float,
    folder: Path,
    progress: Callable[[float, float], None] | None,
) -> Conversion:
    assert work.blocks is not None
    healing = train_to_agree(work.model, made, work.blocks.training, seconds, folder, progress)
    _write(work, made, folder)
    back = _loaded_back(made, folder)
    before = block_losses(work.model, work.blocks.held)
    for file in (STATE, REQUEST):
        (folder / file).unlink(missing_ok=True)
    return replace(done, healing=healing, healed=change_of(block_losses(back, work.blocks.held), before))


def _continued(folder: Path) -> tuple[Conversion, Any]:
    """What an interrupted healing had begun with."""
    facts = json.loads((folder / REQUEST).read_text())["done"]
    facts.pop("kv")
    facts |= {"out": Path(facts["out"]), "converted": Change(**facts["converted"])}
    facts |= {"layers": tuple(FittedLayer(**one) for one in facts["layers"])}
    facts |= {"tried": tuple(Tried(**one) for one in facts["tried"]), "dropped": tuple(facts["dropped"])}
    _, made = load_model(folder, None)
    return Conversion(**facts), made


def _dtype(work: _Converter) -> torch.dtype:
    stored = json.loads((work.folder / "config.json").read_text())
    found = getattr(torch, str(stored.get("dtype") or stored.get("torch_dtype") or "float32"))
    assert isinstance(found, torch.dtype)
    return found


def _write(work: _Converter, made: Any, folder: Path) -> None:
    """In the precision of the original, with its tokenizer."""
    made.generation_config = work.model.generation_config
    copy.deepcopy(made).to(_dtype(work)).save_pretrained(folder)
    work.tokenizer.save_pretrained(folder)


def _loaded_back(made: Any, folder: Path) -> Any:
    """The folder as transformers loads it, every tensor of the size that was written."""
    _, back = load_model(folder, None)
    sizes, real = ({name: tuple(t.shape) for name, t in one.state_dict().items()} for one in (made, back))
    if type(back) is not type(made) or sizes != real:
        raise SpecError(f"'{folder}' loads as something else than was written: {type(back).__name__}")
    return back


@torch.no_grad()
def decode_milliseconds(model: Any, blocks: Tensor, prompt: int = 64, tokens: int = 16) -> float:
    """Of one token after a prompt, with a cache: the median of a few, on this machine."""
    given = blocks[:1, :prompt]
    past = model(given, use_cache=True).past_key_values
    times = []
    for _ in range(tokens):
        start = time.perf_counter()
        past = model(given[:, -1:], past_key_values=past, use_cache=True).past_key_values
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def read_share(text: str, option: str) -> float:
    """'25%' or '0.25'; '+1%' for a loss."""
    found = re.fullmatch(r"\+?(\d+(?:\.\d+)?)\s*(%?)", text.strip())
    if not found:
        raise SpecError(f"{option} is '{text}'; it is a share such as 25% or 0.25")
    return float(found[1]) / (100 if found[2] else 1)
