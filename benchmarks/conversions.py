"""What a smaller KV cache costs: budgets against loss for shared key/value heads, a latent and smaller ranks.

    python benchmarks/conversions.py path/to/model text.txt --out folder --heal 200steps

Every way to meet a budget exactly is converted from the weights alone, by the text, and healed. Losses are of the
folders loaded back, on the text's end that nothing was fitted to, paired by blocks. Interrupted, the same command goes
on. The table is Markdown, as in docs/guides/convert.md.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import headwise
from headwise.checkpoints import open_checkpoint
from headwise.checkpoints.conversion import read_share
from headwise.checkpoints.conversion.result import Conversion
from headwise.checkpoints.conversion.target import rotary_part
from headwise.checkpoints.conversion.text import Change, block_losses, change_of, read_blocks
from headwise.checkpoints.on_text import load_model
from headwise.shape import AttentionShape

SHARES = "75%,50%,25%"
HEAD = "| to | KV cache | by weights | by text | healed |\n|---|---|---|---|---|"


def ways(old: AttentionShape, share: float) -> Iterator[str]:
    """What keeps this share of the cache: equal groups, groups by layer, a latent, a rank, one of queries and keys."""
    heads, part, rank = share * old.kv_heads, rotary_part(old.qk_rank), share * old.qk_rank
    keys = share * (old.qk_rank + old.v_rank) - old.v_rank
    if heads >= 1 and old.kv_heads % heads == 0:
        yield f"g{heads:.0f}"
    if heads > 1:
        yield "--per-layer"
    if (latent := int(share * old.cached_per_token) - part) >= 2:
        yield f"c{latent}-p{part}"
    if rank >= 2 and rank % 2 == 0:
        yield f"r{rank:.0f}"
    if keys >= 2 and keys % 2 == 0:
        yield f"r{keys:.0f}-v{old.v_rank}"


class Measured:
    """A model, a text, and what is kept of each conversion of them."""

    def __init__(self, model: Path, text: Path, out: Path, heal: str) -> None:
        self.model, self.text, self.out, self.heal = model, text, out, heal
        tokenizer, original = load_model(model, None)
        self.held = read_blocks(tokenizer, text, int(original.config.max_position_embeddings)).held
        self.before = block_losses(original, self.held)
        self.shape = open_checkpoint(model).heads(0).shape

    def row(self, share: float, way: str) -> str:
        folder = self.out / f"{100 * share:g}{way.replace('--', '-')}"
        blind = None if way == "--per-layer" else self._blind(way, folder.with_name(f"{folder.name}-blind"))
        options = {"kv": share, "per_layer": True} if way == "--per-layer" else {"to": way}
        options |= {"data": self.text, "heal": self.heal, "go_on": True}
        done = headwise.convert(self.model, out=folder, **options)
        name = f"`{way}`{_counts(done) if way == '--per-layer' else ''}"
        columns = [name, f"{100 * done.kv:g} %"]
        return "| " + " | ".join([*columns, _text(blind), _text(done.converted), _text(done.healed)]) + " |"

    def _blind(self, way: str, folder: Path) -> Change:
        headwise.convert(self.model, way, out=folder, go_on=True)
        _, made = load_model(folder, None)
        return change_of(block_losses(made, self.held), self.before)


def _counts(done: Conversion) -> str:
    shape = headwise.ModelShape.parse(done.after)
    return f" ({', '.join(str(layer.kv_heads) for layer in shape.layers)})"


def _text(change: Change | None) -> str:
    if change is None:
        return ""
    places = 0 if change.change > 1 else 1
    return f"{change.change:+.{places}%} [{change.low:+.{places}%}, {change.high:+.{places}%}]".replace("%", " %")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--heal", default="200steps")
    parser.add_argument("--kv", default=SHARES)
    asked = parser.parse_args()
    measured = Measured(asked.model, asked.text, asked.out, asked.heal)
    loss, tokens = float(measured.before.mean()), measured.held[:, 1:].numel()
    print(f"{asked.model.name}: {loss:.4f} nats/token on {tokens:,} held-out tokens; healed {asked.heal}\n\n{HEAD}")
    for share in (read_share(one, "--kv") for one in asked.kv.split(",")):
        for way in ways(measured.shape, share):
            print(measured.row(share, way), flush=True)


if __name__ == "__main__":
    main()
