"""Each family with its original: ours, the peer, how its tensors are named here, and a loss to train both with.

The originals are transformers' models and, where `HEADWISE_PEERS` points to their sources, nanoGPT and nanochat.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from headwise.models import build
from headwise.options import preset
from helpers.copying import Tensors, llama_model, named
from helpers.translations import bert_masked, gpt2_model, nanochat_model, vit_model

WIDTH, HEADS, DEPTH, HIDDEN = 48, 4, 3, 96
VOCAB, CONTEXT, BATCH = 128, 32, 8
IMAGE, PATCH, CLASSES = 12, 4, 5
SHAPE = f"w{WIDTH}-h{HEADS}-L{DEPTH}-m{HIDDEN}"


@dataclass(frozen=True)
class Family:
    """`init` is the row of headwise's table; `peer` builds the original with its own first weights."""

    init: str
    options: dict[str, Any]
    peer: Callable[[], nn.Module]
    translate: Callable[[Tensors], Tensors]
    logits: Callable[[nn.Module, Tensor], Tensor] = lambda peer, inputs: peer(inputs).logits
    module: str = ""  # of transformers, where it computes in float32 whatever it is given

    def ours(self, **changes: Any) -> nn.Module:
        return build(SHAPE, preset(self.init, init=self.init, **self.options | changes))


def _llama(kind: str, **changes: Any) -> nn.Module:
    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": DEPTH}
    sizes |= {"num_attention_heads": HEADS, "num_key_value_heads": HEADS, "max_position_embeddings": CONTEXT}
    sizes |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}, "tie_word_embeddings": False}
    sizes |= {"pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "attn_implementation": "sdpa"}
    config = getattr(transformers, f"{kind}Config")(**sizes | changes)
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def _gpt2() -> nn.Module:
    sizes = {"vocab_size": VOCAB, "n_positions": CONTEXT, "n_embd": WIDTH, "n_layer": DEPTH, "n_head": HEADS}
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = transformers.GPT2Config(**sizes, **dropout, n_inner=HIDDEN, bos_token_id=None, eos_token_id=None)
    return transformers.GPT2LMHeadModel(config)


def _body(depth: str = "num_hidden_layers") -> dict[str, Any]:
    sizes = {"hidden_size": WIDTH, depth: DEPTH, "num_attention_heads": HEADS, "intermediate_size": HIDDEN}
    return {**sizes, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=VOCAB, max_position_embeddings=CONTEXT, **_body())
    return transformers.BertForMaskedLM(config)


def _vit() -> nn.Module:
    sizes = {"image_size": IMAGE, "patch_size": PATCH, "num_labels": CLASSES, "layer_norm_eps": 1e-6}
    return transformers.ViTForImageClassification(transformers.ViTConfig(**sizes, **_body()))


_TEXT = {"vocab": VOCAB, "context": CONTEXT}
_nanochat_tensors = partial(nanochat_model, rank=WIDTH // HEADS)
FAMILIES = {
    "gpt2": Family("gpt2", _TEXT, _gpt2, gpt2_model),
    "llama": Family("llama", _TEXT, partial(_llama, "Llama", rms_norm_eps=1e-5), llama_model, module="llama"),
    "qwen3": Family(
        "qwen3",
        {**_TEXT, "rope_base": 10_000.0},
        partial(_llama, "Qwen3", head_dim=WIDTH // HEADS),
        llama_model,
        module="qwen3",
    ),
    "nanochat": Family("nanochat", _TEXT, partial(_llama, "NanoChat"), _nanochat_tensors, module="nanochat"),
    "bert": Family("bert", {**_TEXT, "head": "mlm", "pooler": False}, _bert, bert_masked),
    "vit": Family("vit", {"image": IMAGE, "patch": PATCH, "classes": CLASSES}, _vit, vit_model),
}


# ---- nanoGPT and nanochat, from their own sources --------------------------------------------------------------------


def peers() -> Path | None:
    """Where the originals' sources are, if they are anywhere."""
    folder = os.environ.get("HEADWISE_PEERS")
    return Path(folder) if folder and Path(folder).is_dir() else None


@cache
def source(path: str, name: str) -> Any:
    """A module of the peers' folder, under a name of its own."""
    spec = importlib.util.spec_from_file_location(name, peers() / path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def nano_gpt(depth: int = DEPTH, heads: int = HEADS, width: int = WIDTH, context: int = CONTEXT, vocab: int = VOCAB):
    """nanoGPT's model; its MLP has four times the width."""
    module = source("nanoGPT/model.py", "nano_gpt")
    sizes = {"block_size": context, "vocab_size": vocab, "n_layer": depth, "n_head": heads, "n_embd": width}
    return module.GPT(module.GPTConfig(**sizes, dropout=0.0, bias=True))


def nanochat() -> nn.Module:
    """nanochat's model with its own first weights."""
    sys.path.insert(0, str(peers() / "nanochat"))
    try:
        module = importlib.import_module("nanochat.gpt")
    finally:
        sys.path.pop(0)
    sizes = {"sequence_len": CONTEXT, "vocab_size": VOCAB, "n_layer": DEPTH, "n_head": HEADS, "n_kv_head": HEADS}
    model = module.GPT(module.GPTConfig(**sizes, n_embd=WIDTH))
    model.init_weights()
    return model


def own_start(name: str) -> nn.Module:
    """The original with the first weights that are its own: transformers' nanochat takes those of nanochat's code."""
    family = FAMILIES[name]
    peer = family.peer()
    if name == "nanochat":
        peer.load_state_dict(_nanochat_start(peer.state_dict(), named(nanochat())))
    return peer


def _nanochat_start(state: Tensors, source: Tensors) -> Tensors:
    """Every tensor that both have, cut to the smaller MLP and vocabulary; both draw by fan-in or a fixed number."""
    names = {"self_attn.q_proj": "attn.c_q", "self_attn.k_proj": "attn.c_k", "self_attn.v_proj": "attn.c_v"}
    names |= {"self_attn.o_proj": "attn.c_proj", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
    begun = {}
    for key, tensor in state.items():
        layer = key.split("layers.")[-1].split(".")[0]
        found = next((theirs for ours, theirs in names.items() if f".{ours}." in key), None)
        if found:
            begun[key] = source[f"transformer.h.{layer}.{found}.weight"]
        else:
            begun[key] = source["lm_head.weight" if "lm_head" in key else "transformer.wte.weight"]
        begun[key] = begun[key][tuple(slice(size) for size in tensor.shape)].clone()
    return begun


# ---- training --------------------------------------------------------------------------------------------------------


def batches(name: str, count: int, seed: int = 0):
    """Inputs and labels: real text (a module of the standard library), or pictures with a brighter row."""
    draw = torch.Generator().manual_seed(seed)
    if name == "vit":
        for _ in range(count):
            labels = torch.randint(CLASSES, (BATCH,), generator=draw)
            images = torch.randn(BATCH, 3, IMAGE, IMAGE, generator=draw)
            images[torch.arange(BATCH), :, labels] += 2.0
            yield images, labels
        return
    text = Path(os.__file__).read_bytes()
    tokens = torch.frombuffer(bytearray(byte for byte in text if 0 < byte < VOCAB - 1), dtype=torch.uint8).long()
    for _ in range(count):
        starts = torch.randint(len(tokens) - CONTEXT - 1, (BATCH,), generator=draw)
        rows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
        if name == "bert":
            masked = torch.rand(BATCH, CONTEXT, generator=draw) < 0.15
            labels = rows[:, 1:].masked_fill(~masked, -100)
            yield rows[:, 1:].masked_fill(masked, VOCAB - 1), labels
        else:
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def noisy_batches(name: str, count: int, seed: int):
    """Inputs and labels that cannot be learned to a loss of 0: more text, pictures whose labels are wrong at times,
    and, to be filled in, words of a few letters that repeat."""
    draw = torch.Generator().manual_seed(10**6 + seed)
    if name == "vit":
        for parts in zip(*[batches(name, 8 * count, 10**6 + seed)] * 8, strict=True):
            images, labels = (torch.cat(part) for part in zip(*parts, strict=True))
            wrong = torch.rand(len(labels), generator=draw) < 0.3
            yield images, torch.where(wrong, torch.randint(CLASSES, labels.shape, generator=draw), labels)
        return
    for _ in range(count):
        if name == "bert":
            words = torch.randint(1, 17, (8 * BATCH, 4), generator=draw).repeat(1, CONTEXT // 4)
            noise = torch.randint(1, 17, words.shape, generator=draw)
            words = torch.where(torch.rand(words.shape, generator=draw) < 0.2, noise, words)
            masked = torch.rand(words.shape, generator=draw) < 0.15
            yield words.masked_fill(masked, VOCAB - 1), words.masked_fill(~masked, -100)
        else:
            tokens = _library()
            starts = torch.randint(len(tokens) - CONTEXT - 1, (8 * BATCH,), generator=draw)
            rows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
            yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


@cache
def _library() -> Tensor:
    """A megabyte of the standard library's source."""
    text = b"".join(file.read_bytes() for file in sorted(Path(os.__file__).parent.glob("*.py"))[:60])
    return torch.frombuffer(bytearray(byte for byte in text if 0 < byte < VOCAB - 1), dtype=torch.uint8).long()


def losses(model: nn.Module, logits, name: str, steps: int, seed: int = 0, dtype=torch.float64) -> list[float]:
    """A plain loop with torch's own AdamW: nothing of headwise's trainer is in it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    found = []
    for inputs, labels in batches(name, steps, seed):
        inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
        loss = F.cross_entropy(logits(model, inputs).flatten(0, -2), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
