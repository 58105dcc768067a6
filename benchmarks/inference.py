"""Latency of one layer without gradients, as ratios in one run: above 1, headwise is faster.

    make bench

`prefill` reads a whole prompt, `decode` one more token with the prompt in a cache, which grows. Against torch's layer
(no cache, no rotation: prefill, without rotation on our side) and the Llama layer of transformers (whose angles are
given, as its model gives them), at shapes that both can express. `latent` decodes one token from an MLA cache with
absorbed matrices, against expanding the cache first. Sides take turns; one thread; ratios of medians.
"""

import argparse
import json
from statistics import median
from time import perf_counter

import torch
from torch import nn

from headwise import Attention, AttentionShape
from headwise.layers.cache import KVCache
from headwise.training.machine import keep_memory

REPEATS = 81
PREFILLS = [("w256-h4", 8, 128), ("w512-h8", 1, 512), ("w1024-h16-g4", 1, 512)]
DECODES = [("w256-h4", 8, 512), ("w512-h8", 1, 1024), ("w1024-h16-g4", 1, 4096)]
LATENTS = [("w512-h8-r48-v32-c128-p16", 1, 4096), ("w1024-h16-r96-v64-c256-p32", 1, 4096)]
BASE = 10_000.0


def torchs(shape, x):
    """The layer people use, as they would call it to read a prompt."""
    layer = nn.MultiheadAttention(shape.width, shape.heads, bias=False, batch_first=True).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    return lambda: layer(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)


def llamas(shape, x, cached):
    from transformers import DynamicCache, LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

    config = LlamaConfig(
        hidden_size=shape.width,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.qk_rank,
        attn_implementation="sdpa",
    )
    layer, angles = LlamaAttention(config, 0).eval(), LlamaRotaryEmbedding(config)
    places = torch.arange(cached, cached + x.shape[1])[None]
    turned = angles(x, places)
    cache = DynamicCache(config=config)

    if cached:
        prompt = torch.randn(x.shape[0], cached, shape.width)
        before = angles(prompt, torch.arange(cached)[None])
        layer(prompt, position_embeddings=before, attention_mask=None, past_key_values=cache)
    return lambda: layer(x, position_embeddings=turned, attention_mask=None, past_key_values=cache if cached else None)


def ours(shape, x, cached, absorbed=True, rope_base=BASE):
    layer = Attention(shape, causal=True, rope_base=rope_base).eval()
    if not cached:
        return lambda: layer(x)
    cache = KVCache(2 * cached)
    layer(torch.randn(x.shape[0], cached, shape.width), cache=cache)
    if not absorbed:
        layer._absorbed = layer._expanded
    return lambda: layer(x, cache=cache)


@torch.no_grad()
def race(sides):
    """Median seconds of each side, in turns."""
    times = {name: [] for name in sides}
    for _ in range(REPEATS + 3):
        for name, call in sides.items():
            start = perf_counter()
            call()
            times[name].append(perf_counter() - start)
    return {name: median(values[3:]) for name, values in times.items()}


@torch.no_grad()
def row(kind, text, batch, tokens):
    shape = AttentionShape.parse(text)
    cached, new = (0, tokens) if kind == "prefill" else (tokens, 1)
    x = torch.randn(batch, new, shape.width)
    sides = {"headwise": ours(shape, x, cached)}
    if kind == "latent":
        sides["expanding"] = ours(shape, x, cached, absorbed=False)
    else:
        sides["llama"] = llamas(shape, x, cached)
    if kind == "prefill" and shape.group == 1:
        sides |= {"torch": torchs(shape, x), "unrotated": ours(shape, x, cached, rope_base=None)}
    times = race(sides)
    against = {"llama": "headwise", "expanding": "headwise", "torch": "unrotated"}
    ratios = {name: round(times[name] / times[own], 2) for name, own in against.items() if name in sides}
    about = {"kind": kind, "shape": text, "batch": batch, "tokens": tokens}
    return {**about, "milliseconds": round(1000 * times["headwise"], 3), **ratios}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    keep_memory()
    cases = {"prefill": PREFILLS, "decode": DECODES, "latent": LATENTS}
    rows = [row(kind, *case) for kind, group in cases.items() for case in group]
    if options.json:
        return print(json.dumps(rows, indent=2))
    heading = ("kind", "shape", "batch", "tokens", "ms", "vs torch", "vs llama", "vs expanding")
    print("{:8} {:27} {:>5} {:>6} {:>8} {:>8} {:>8} {:>12}".format(*heading))
    for entry in rows:
        ratios = [f"{entry[name]}×" if name in entry else "" for name in ("torch", "llama", "expanding")]
        kind, text, batch, tokens, ms = list(entry.values())[:5]
        print(f"{kind:8} {text:27} {batch:>5} {tokens:>6} {ms:>8} {ratios[0]:>8} {ratios[1]:>8} {ratios[2]:>12}")


if __name__ == "__main__":
    main()
