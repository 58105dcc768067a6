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
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from headwise.checkpoints import open_checkpoint
from headwise.checkpoints.conversion import streaming
from headwise.checkpoints.conversion.allocation import Sensitivity
from headwise.checkpoints.conversion.coded import convert_coded, needs_code
from headwise.checkpoints.conversion.converter import Converter, Layers
from headwise.checkpoints.conversion.fitting import STEPS
from headwise.checkpoints.conversion.healing import Amount
from headwise.checkpoints.conversion.healing import heal as train_to_agree
from headwise.checkpoints.conversion.result import Conversion, Frontier, Tried
from headwise.checkpoints.conversion.target import Target
from headwise.checkpoints.conversion.text import block_losses, change_of
from headwise.checkpoints.conversion.unfinished import Unfinished
from headwise.checkpoints.files import write_gguf
from headwise.checkpoints.foreign import GGUF, llama2c_sizes
from headwise.checkpoints.llama2c import write_llama2c
from headwise.checkpoints.on_text import load_model
from headwise.cost import cached_per_token
from headwise.spec import SpecError
from headwise.sweep.tracking import Log, open_log

DONE = "conversion.json"


def convert(
    source: str | Path,
    to: str | None = None,
    *,
    out: str | Path,
    kv: float | None = None,
    params: float | None = None,
    loss: float | None = None,
    per_layer: bool = False,
    data: str | Path | None = None,
    heal: float | str | None = None,
    tokenizer: str | Path | None = None,
    steps: int | None = None,
    watch: Layers | None = None,
    progress: Callable[[float, float], None] | None = None,
    track: str = "",
    go_on: bool = False,
) -> Conversion:
    """Write a smaller model to a new folder; see the module's first lines.

    One of `to`, `kv`, `params` (shares, 0.25) and `loss` (0.01 is +1 %) says what it shall be. With `per_layer` the
    budget `kv` is shared out by what layers were measured to need; that folder has code that imports headwise. `steps`
    are of each layer's fit. `heal` is seconds, '30m' or '300 steps': so long it is trained to say what the original
    says, and `track` (tensorboard, wandb) shows it. Interrupted, the same call continues after the last layer or step;
    with `go_on` a folder that the same call has finished is read and not refused. A model of llama2.c, with its
    `tokenizer`, and one in a GGUF file are written as folders, without a target.
    """
    folder = Path(out)
    asked = {"to": to, "kv": kv, "params": params, "loss": loss}
    if Path(source).is_file() and (Path(source).suffix == GGUF or llama2c_sizes(Path(source))):
        if any(value is not None for value in asked.values()):
            raise SpecError(f"'{source}' is one file: convert it to a folder first, without --to and budgets")
        return _from_file(Path(source), folder, tokenizer)
    if sum(value is not None for value in asked.values()) != 1:
        raise SpecError("give one of --to SHAPE, --kv 50%, --params 70% and --loss +1%: what the model shall become")
    if per_layer and (kv is None or data is None):
        raise SpecError("--per-layer shares out a budget by what layers were measured to need: give --kv and --data")
    steps = STEPS if steps is None else steps
    amount = None if heal is None else Amount.read(heal)
    if amount is not None and data is None:
        raise SpecError("--heal trains on text: give --data TEXT")
    if amount is None and track:
        raise SpecError("--track shows how healing goes: give --heal 30m")
    request: dict[str, Any] = {
        "source": str(source),
        **asked,
        "data": None if data is None else str(data),
        "steps": steps,
    }
    request |= {"heal": None if amount is None else asdict(amount), "per_layer": per_layer}
    if go_on and (whole := _whole(folder, request)):
        return whole
    unfinished = Unfinished.at(folder, request)

    def make() -> Conversion:
        if needs_code(source):
            return convert_coded(source, to if amount is None else None, data, unfinished)
        if streaming.too_large(source):
            return _streamed(source, to if data is None else None, unfinished)
        log = open_log(track, "convert", folder.name, request) if track else None
        work = Converter(source, data, watch or iter, steps, unfinished)
        done, made = _continued(unfinished) or _converted(work, asked | {"per_layer": per_layer}, unfinished)
        if amount is None or done.healing is not None:
            return done
        unfinished.converted(done.as_dict())
        return _healed(work, done, made, amount, unfinished, progress, log)

    return _finished(unfinished, make)


def _finished(unfinished: Unfinished, make: Callable[[], Conversion]) -> Conversion:
    """What is made, with its card; then the folder is whole."""
    try:
        done = make()
    except SpecError:
        unfinished.discard()
        raise
    (done.out / "README.md").write_text(done.card())
    facts = json.loads(done.to_json()) | {"request": unfinished.request}
    (done.out / DONE).write_text(json.dumps(facts, indent=2))
    unfinished.finish()
    return done


def _whole(folder: Path, request: dict[str, Any]) -> Conversion | None:
    """What this very call has written before."""
    facts = json.loads((folder / DONE).read_text()) if (folder / DONE).exists() else {}
    return Conversion.read(facts) if facts.pop("request", None) == request else None


def _streamed(source: str | Path, to: str | None, unfinished: Unfinished) -> Conversion:
    if to is None:
        raise SpecError(f"'{source}' is too large for this machine's memory: give --to without --data")
    made: list[Conversion] = []
    unfinished.write(lambda fresh: made.append(streaming.convert_streamed(source, to, fresh)), in_parts=True)
    return replace(made[0], out=unfinished.folder)


def _from_file(source: Path, folder: Path, tokenizer: str | Path | None) -> Conversion:
    """The same model as a folder of transformers."""
    unfinished = Unfinished.at(folder, {"source": str(source), "tokenizer": str(tokenizer)})
    return _finished(unfinished, lambda: _as_it_is(source, tokenizer, unfinished))


def _as_it_is(source: Path, tokenizer: str | Path | None, unfinished: Unfinished) -> Conversion:
    folder = unfinished.folder
    gguf = source.suffix == GGUF
    unfinished.write(lambda new: write_gguf(source, new) if gguf else write_llama2c(source, new, tokenizer))
    opened = open_checkpoint(folder)
    shape = opened.shape_of([opened.heads(i).shape for i in range(len(opened.layers))])
    count = sum(math.prod(size) for size in opened.weights.shapes.values())
    cache = 4 * cached_per_token(shape)
    architecture = opened.weights.config["architectures"][0]
    return Conversion(str(source), folder, architecture, str(shape), str(shape), count, count, cache, cache)


def frontier(source: str | Path, shares: list[float], *, out: str | Path, **options: Any) -> Frontier:
    """One conversion for each share of the cache, each in a folder of its own; those that are there are not redone."""
    folder = Path(out)
    if not shares:
        raise SpecError("give --kv one share or more, such as 75%,50%,25%")
    options |= {"go_on": True}
    return Frontier(tuple(convert(source, kv=one, out=folder / f"kv-{100 * one:g}", **options) for one in shares))


def _converted(work: Converter, asked: dict[str, Any], unfinished: Unfinished) -> tuple[Conversion, Any]:
    folder = unfinished.folder
    tried: list[Tried] = []
    found: list[Sensitivity] = []
    if asked["per_layer"]:
        target, found = work.per_layer(asked["kv"])
        made, layers = work.make(target)
    elif asked["to"] is not None:
        target = work.target(asked["to"])
        made, layers = work.make(target)
    elif asked["kv"] is not None:
        target, made, layers, tried = work.best(work.within_kv(asked["kv"]))
    elif asked["params"] is not None:
        target, made, layers, tried = work.best(work.within_params(asked["params"]))
    else:
        target, made, layers, tried = work.within_loss(asked["loss"])
    _write(work, made, unfinished)
    full = Target(work.shape, tuple(range(len(work.heads))))
    size = torch.finfo(_dtype(work)).bits // 8
    done = Conversion(
        source=unfinished.request["source"],
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
        sensitivity=tuple(found),
        importance=tuple(work.importance),
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
    work: Converter,
    done: Conversion,
    made: Any,
    amount: Amount,
    unfinished: Unfinished,
    progress: Callable[[float, float], None] | None,
    log: Log | None,
) -> Conversion:
    assert work.blocks is not None
    layers = [i for i in range(len(work.heads)) if i not in done.dropped]
    text = work.blocks.training
    healing = train_to_agree(work.model, made, text, amount, unfinished.state, progress, layers, log)
    _write(work, made, unfinished)
    back = _loaded_back(made, unfinished.folder)
    before = block_losses(work.model, work.blocks.held)
    done = replace(done, healing=healing, healed=change_of(block_losses(back, work.blocks.held), before))
    unfinished.converted(done.as_dict())  # healed: never again, whatever is left of its state
    return done


def _continued(unfinished: Unfinished) -> tuple[Conversion, Any] | None:
    """What an interrupted healing had begun with."""
    facts = unfinished.done()
    return None if facts is None else (Conversion.read(facts), load_model(unfinished.folder, None, bare=True)[1])


def _dtype(work: Converter) -> torch.dtype:
    stored = json.loads((work.folder / "config.json").read_text())
    found = getattr(torch, str(stored.get("dtype") or stored.get("torch_dtype") or "float32"))
    assert isinstance(found, torch.dtype)
    return found


def _write(work: Converter, made: Any, unfinished: Unfinished) -> None:
    """In the precision of the original, with its tokenizer if it has one."""
    made.generation_config = work.model.generation_config

    def save(folder: Path) -> None:
        copy.deepcopy(made).to(_dtype(work)).save_pretrained(folder)
        if work.tokenizer is not None:
            work.tokenizer.save_pretrained(folder)

    unfinished.write(save)


def _loaded_back(made: Any, folder: Path) -> Any:
    """The folder as transformers loads it, every tensor of the size that was written."""
    _, back = load_model(folder, None, bare=True)
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
