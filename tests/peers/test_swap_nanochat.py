"""headwise.swap in a GPT of nanochat's structure, and the patch of docs/guides/swap.md applied to a run of it.

Two of them: as first published, and with what came later: value embeddings behind gates, sliding windows, sharper
logits, another cache.
"""

import copy
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import headwise
from headwise.layers.attention import Attention
from headwise.spec import SpecError
from helpers.copying import same
from helpers.families import peers

DOCS = Path(__file__).parents[2] / "docs" / "guides" / "swap.md"
GPT = '''
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

LATER = {later}
Linear = nn.Linear


@dataclass
class GPTConfig:
    sequence_len: int = 32
    vocab_size: int = 61
    n_layer: int = 3
    n_head: int = 4
    n_kv_head: int = 2
    n_embd: int = 32


class Cast(nn.Linear):
    """A weight follows what comes in."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype))


Linear = Cast if LATER else nn.Linear


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


def turned(x, cos, sin):
    a, b = x.chunk(2, dim=3)
    return torch.cat([a * cos + b * sin, b * cos - a * sin], 3).to(x.dtype)


def attend(q, k, v, window=-1):
    """(B, T, H, D); the last query is the last key."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    back = torch.arange(k.shape[2] - q.shape[2], k.shape[2])[:, None] - torch.arange(k.shape[2])
    mask = (back >= 0) & ((back <= window) | (window < 0))
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True).transpose(1, 2).flatten(2)


class CausalSelfAttention(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.layer_idx, self.n_head, self.n_kv_head = layer_idx, config.n_head, config.n_kv_head
        self.head_dim = config.n_embd // config.n_head
        self.c_q = Linear(config.n_embd, self.n_head * self.head_dim, bias=False)
        self.c_k = Linear(config.n_embd, self.n_kv_head * self.head_dim, bias=False)
        self.c_v = Linear(config.n_embd, self.n_kv_head * self.head_dim, bias=False)
        self.c_proj = Linear(config.n_embd, config.n_embd, bias=False)
        if LATER:
            self.ve_gate = Linear(12, self.n_kv_head, bias=False) if layer_idx % 2 == 0 else None

    def heads(self, x, cos_sin):
        q, k, v = (c(x).unflatten(2, (-1, self.head_dim)) for c in (self.c_q, self.c_k, self.c_v))
        q, k = norm(turned(q, *cos_sin)), norm(turned(k, *cos_sin))
        return (q * 1.2, k * 1.2, v) if LATER else (q, k, v)


class First(CausalSelfAttention):
    def forward(self, x, cos_sin, kv_cache):
        q, k, v = self.heads(x, cos_sin)
        if kv_cache is not None:
            k, v = (t.transpose(1, 2) for t in kv_cache.insert_kv(self.layer_idx, k.transpose(1, 2), v.transpose(1, 2)))
        return self.c_proj(attend(q, k, v))


class Later(CausalSelfAttention):
    def forward(self, x, ve, cos_sin, window_size, kv_cache):
        q, k, v = self.heads(x, cos_sin)
        if ve is not None:
            v = v + 2 * torch.sigmoid(self.ve_gate(x[..., :12]))[..., None] * ve.view_as(v)
        if kv_cache is not None:
            start, slots = kv_cache.get_pos(), kv_cache.get_layer_cache(self.layer_idx)
            for slot, new in zip(slots, (k, v)):
                slot[:, start : start + x.shape[1]] = new
            k, v = (slot[:, : start + x.shape[1]] for slot in slots)
            if self.layer_idx == kv_cache.n_layers - 1:
                kv_cache.advance(x.shape[1])
        return self.c_proj(attend(q, k, v, window_size[0]))


class Block(nn.Module):
    def __init__(self, config, layer_idx):
        super().__init__()
        self.attn = (Later if LATER else First)(config, layer_idx)
        self.c_fc = Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.c_out = Linear(4 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x, *given):
        x = x + self.attn(norm(x), *given)
        return x + self.c_out(F.relu(self.c_fc(norm(x))).square())


class GPT(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        blocks = nn.ModuleList(Block(config, i) for i in range(config.n_layer))
        self.transformer = nn.ModuleDict({{"wte": nn.Embedding(config.vocab_size, config.n_embd), "h": blocks}})
        self.lm_head = Linear(config.n_embd, config.vocab_size, bias=False)
        kv = config.n_kv_head * config.n_embd // config.n_head
        tables = {{str(i): nn.Embedding(config.vocab_size, kv) for i in range(0, config.n_layer, 2)}} if LATER else {{}}
        self.value_embeds = nn.ModuleDict(tables)
        self.window_sizes = [(5, 0), (5, 0), (32, 0)]
        cos, sin = self._precompute_rotary_embeddings(64, config.n_embd // config.n_head)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    @torch.no_grad()
    def init_weights(self):
        for p in self.parameters():
            p.normal_(std=p.shape[1] ** -0.5)
        for block in self.transformer.h:
            block.attn.c_proj.weight.zero_()
        self.cos, self.sin = self._precompute_rotary_embeddings(64, self.config.n_embd // self.config.n_head)

    def _precompute_rotary_embeddings(self, seq_len, head_dim, base=500, device=None):
        device = device or self.transformer.wte.weight.device
        channels = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device)
        angles = torch.outer(torch.arange(seq_len, dtype=torch.float32, device=device), base ** (-channels / head_dim))
        return angles.cos()[None, :, None], angles.sin()[None, :, None]

    def forward(self, idx, kv_cache=None):
        start = 0 if kv_cache is None else kv_cache.get_pos()
        cos_sin = self.cos[:, start : start + idx.shape[1]], self.sin[:, start : start + idx.shape[1]]
        x = norm(self.transformer.wte(idx))
        for i, block in enumerate(self.transformer.h):
            if LATER:
                ve = self.value_embeds[str(i)](idx) if str(i) in self.value_embeds else None
                x = block(x, ve, cos_sin, self.window_sizes[i], kv_cache)
            else:
                x = block(x, cos_sin, kv_cache)
        return self.lm_head(norm(x))


class FirstCache:
    def __init__(self, batch, heads, length, size, layers):
        self.kv_shape, self.cache, self.pos = (layers, 2, batch, heads, length, size), None, 0

    def get_pos(self):
        return self.pos

    def insert_kv(self, layer, k, v):
        if self.cache is None:
            self.cache = torch.zeros(self.kv_shape, dtype=k.dtype)
        end = self.pos + k.shape[2]
        for kept, new in zip(self.cache[layer], (k, v)):
            kept[:, :, self.pos : end] = new
        if layer == self.kv_shape[0] - 1:
            self.pos = end
        return tuple(kept[:, :, :end] for kept in self.cache[layer])


class LaterCache:
    def __init__(self, batch, heads, length, size, layers):
        self.n_layers, self.pos = layers, 0
        self.k, self.v = (torch.zeros(layers, batch, length, heads, size) for _ in range(2))

    def get_pos(self):
        return self.pos

    def get_layer_cache(self, layer):
        return self.k[layer], self.v[layer]

    def advance(self, count):
        self.pos += count


KVCache = LaterCache if LATER else FirstCache
'''
RUN = """
import argparse
import sys

import torch
from nanochat.gpt import GPT, GPTConfig

print0 = print
device = "cpu"
parser = argparse.ArgumentParser()
parser.add_argument("--head-dim", type=int, default=128, help="target head dimension for attention")
parser.add_argument("--max-seq-len", type=int, default=2048, help="max context length")
parser.add_argument("--num-iterations", type=int, default=30)
args = parser.parse_args()
torch.manual_seed(0)
with torch.device("meta"):
    model = GPT(GPTConfig())
model.to_empty(device=device) # 2) All tensors get storage on target device but with uninitialized (garbage) data
model.init_weights() # 3) All tensors get initialized

matrices = list(model.transformer.h.parameters())
assert all(p.dim() == 2 for p in matrices)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
tokens = torch.randint(61, (8, 9)).repeat(1, 2)
losses = []
for _ in range(args.num_iterations):
    loss = torch.nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
print("losses", losses[0], losses[-1])
"""


@pytest.fixture(params=[False, True], ids=["first", "later"])
def peer(request):
    """The module, and a model with all its weights far from 0."""
    code = {}
    exec(compile(GPT.format(later=request.param), "gpt.py", "exec"), code)
    model = code["GPT"](code["GPTConfig"]())
    for parameter in model.parameters():
        parameter.data.normal_(std=parameter.shape[1] ** -0.5)
    return code, model


@torch.no_grad()
def decoded(code, model, tokens, size=8):
    """Logits token by token, after a prompt of three."""
    cache = code["KVCache"](len(tokens), 2, 32, size, 3)
    return torch.cat([model(step, cache) for step in (tokens[:, :3], *tokens[:, 3:].split(1, dim=1))], dim=1)


@pytest.mark.parametrize("shape", ["w32-h4-g2", "w32-h4-v11-g2"])
@torch.no_grad()
def test_the_function_stays(peer, shape):
    code, model = peer
    new = copy.deepcopy(model)
    told = headwise.swap(new, shape)
    assert all(layer.error < 1e-6 for layer in told.layers)
    tokens = torch.randint(61, (2, 14))
    expected = model(tokens)
    same(new(tokens), expected, 1e-6)
    same(decoded(code, model, tokens), expected, 1e-6)
    same(decoded(code, new, tokens, size=11), expected, 1e-6)


@pytest.mark.parametrize("shape", ["w32-h4-r4-v8-g2", "w32-h4-r8-v5-g2"])
@torch.no_grad()
def test_smaller_ranks_from_its_cache(peer, shape):
    """Ranks that fit lie in nanochat's own slots; value embeddings follow the values."""
    code, model = peer
    for block in model.transformer.h:
        block.attn.c_v.weight.view(2, 8, 32)[:, 5:] = 0  # what a rank of 5 needs not
    for table in model.value_embeds.values():
        table.weight.view(-1, 2, 8)[..., 5:] = 0
    new = copy.deepcopy(model)
    told = headwise.swap(new, shape)
    tokens = torch.randint(61, (2, 14))
    logits = new(tokens)
    same(decoded(code, new, tokens), logits, 1e-6)
    if "v5" in shape:
        same(logits, model(tokens), 1e-5)
    else:
        assert all(0.01 < layer.error < 1 for layer in told.layers)


@torch.no_grad()
def test_a_cache_that_is_too_small_says_so(peer):
    code, model = peer
    headwise.swap(model, "w32-h4-r8-v20-g2")
    with pytest.raises(SpecError, match="keeps 40 numbers of a token where nanochat's cache has room for 16"):
        decoded(code, model, torch.randint(61, (1, 5)))


@torch.no_grad()
def test_an_unknown_version_is_refused(peer):
    code, model = peer
    code["norm"].__code__ = (lambda x: x).__code__
    with pytest.raises(SpecError, match="no known version of nanochat"):
        headwise.swap(model, "w32-h4-g2")


def test_weights_follow_what_comes_in_where_the_model_has_it_so(peer):
    code, model = peer
    headwise.swap(model, "w32-h4-g2")
    layer = next(module for module in model.modules() if isinstance(module, Attention)).double()
    if code["LATER"]:
        assert layer(torch.randn(1, 3, 32)).dtype == torch.float32
    else:
        with pytest.raises(RuntimeError, match="same dtype"):
            layer(torch.randn(1, 3, 32))


def patched(folder: Path, later: bool) -> Path:
    """A checkout of nanochat's structure with the patch of the docs applied."""
    (folder / "nanochat").mkdir()
    (folder / "scripts").mkdir()
    (folder / "nanochat" / "gpt.py").write_text(GPT.format(later=later))
    run = folder / "scripts" / "base_train.py"
    run.write_text(RUN)
    patch = re.search(r"```diff\n(.*?)```", DOCS.read_text(), re.DOTALL).group(1)
    done = subprocess.run(["git", "apply", "-"], cwd=folder, input=patch, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    return run


@pytest.mark.parametrize(
    ("flags", "told"),
    [("", ""), ("--heads 2 --qk-rank 24 --v-rank 8", "to w32-h2-r24-v8,"), ("--kv-latent 12", "to w32-h4-c12-p4,")],
)
@pytest.mark.parametrize("later", [False, True])
def test_the_patch_of_the_docs(tmp_path, monkeypatch, capsys, later, flags, told):
    run = patched(tmp_path, later)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(run), *flags.split()])
    for name in ("nanochat", "nanochat.gpt"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    runpy.run_path(str(run))
    printed = capsys.readouterr().out
    assert printed.count(told) == 3 if told else "w32" not in printed
    first, last = (float(number) for number in printed.split("losses")[1].split())
    assert last < 0.5 * first


@pytest.mark.skipif(peers() is None, reason="HEADWISE_PEERS does not point to the originals' sources")
@torch.no_grad()
def test_nanochat_itself(monkeypatch):
    """Its own sources: value embeddings behind gates, smeared tokens and all."""
    monkeypatch.syspath_prepend(peers() / "nanochat")
    for name in [name for name in sys.modules if name.split(".")[0] == "nanochat"]:
        monkeypatch.delitem(sys.modules, name)
    from nanochat.gpt import GPT as Theirs
    from nanochat.gpt import GPTConfig

    model = Theirs(GPTConfig(sequence_len=32, vocab_size=61, n_layer=4, n_head=4, n_kv_head=2, n_embd=32))
    model.init_weights()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.normal_(std=parameter.shape[1] ** -0.5)
    new = copy.deepcopy(model)
    told = headwise.swap(new, "w32-h4-g2")
    assert all(layer.error < 1e-5 for layer in told.layers)
    tokens = torch.randint(61, (2, 14))
    same(new(tokens), model(tokens), 1e-5)
