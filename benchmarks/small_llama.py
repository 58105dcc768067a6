"""Train the small Llama of the conversion guide's tables, on one core; interrupted, the same command goes on.

    python benchmarks/small_llama.py seen.txt stories own --steps 2400

`stories` is a folder whose tokenizer it takes (headwise convert stories260K.bin --tokenizer tok512.bin --out stories).
Matrices of layers are stepped by Muon, the rest by AdamW. Every 200 steps a line says the loss of the steps since the
last one, and that of text kept aside.
"""

import argparse
import math
import time
from pathlib import Path

import torch
import transformers

LENGTH, BATCH, WARM_UP, ASIDE, EVERY = 256, 16, 50, 64, 200
RATE, MUON_RATE, MOMENTUM = 4e-3, 0.02, 0.95


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("text", type=Path)
    words.add_argument("tokenizer", type=Path)
    words.add_argument("out", type=Path)
    words.add_argument("--steps", type=int, default=2400)
    asked = words.parse_args()
    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(asked.tokenizer)
    blocks = read(asked.text, tokenizer)
    model = llama(tokenizer)
    train(model, blocks[:-ASIDE], blocks[-ASIDE:], asked.steps, Path(f"{asked.out}.state.pt"))
    model.save_pretrained(asked.out)
    tokenizer.save_pretrained(asked.out)


def read(file: Path, tokenizer: transformers.PreTrainedTokenizerFast) -> torch.Tensor:
    """(n, LENGTH): tokens, each block after the token that begins a text."""
    text = file.read_text(errors="replace")
    parts = tokenizer([text[i : i + 200_000] for i in range(0, len(text), 200_000)], add_special_tokens=False)
    tokens = torch.tensor([token for part in parts["input_ids"] for token in part])
    blocks = tokens[: len(tokens) // (LENGTH - 1) * (LENGTH - 1)].view(-1, LENGTH - 1)
    return torch.cat([torch.full((len(blocks), 1), tokenizer.bos_token_id), blocks], dim=1)


def llama(tokenizer: transformers.PreTrainedTokenizerFast) -> transformers.LlamaForCausalLM:
    """w96-h8-L3-m192, tied: 326,304 parameters."""
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=192,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=12,
        max_position_embeddings=LENGTH,
        tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return transformers.LlamaForCausalLM(config)


def train(model: torch.nn.Module, blocks: torch.Tensor, aside: torch.Tensor, steps: int, state: Path) -> None:
    matrices = [p for name, p in model.named_parameters() if ".layers." in name and p.dim() == 2]
    rest = [p for p in model.parameters() if not any(p is one for one in matrices)]
    optimizer = torch.optim.AdamW(rest, lr=RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    moments = [torch.zeros_like(p) for p in matrices]
    done, total, started = 0, 0.0, time.monotonic()
    if state.exists():
        was = torch.load(state)
        model.load_state_dict(was["model"])
        optimizer.load_state_dict(was["optimizer"])
        moments, done = was["moments"], was["steps"]
    for step in range(done, steps):
        order = torch.Generator().manual_seed(BATCH * step // len(blocks))  # of an epoch
        order = torch.randperm(len(blocks), generator=order)
        rows = order[torch.arange(BATCH * step, BATCH * (step + 1)) % len(blocks)]
        factor = min(1.0, (step + 1) / WARM_UP) * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = RATE * factor
        loss = loss_of(model, blocks[rows])
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(rest, 1.0)
        optimizer.step()
        muon(matrices, moments, MUON_RATE * factor)
        total += loss.item()
        if (step + 1) % EVERY == 0:
            with torch.no_grad():
                held = sum(loss_of(model, some).item() for some in aside.split(BATCH)) * BATCH / len(aside)
            seconds = time.monotonic() - started
            print(f"{step + 1:6} steps  {total / EVERY:.4f}  aside {held:.4f}  {seconds:6.0f} s", flush=True)
            total = 0.0
            new = state.with_suffix(".new")
            facts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "moments": moments}
            torch.save(facts | {"steps": step + 1}, new)
            new.replace(state)


@torch.no_grad()
def muon(matrices: list[torch.nn.Parameter], moments: list[torch.Tensor], rate: float) -> None:
    """A step along the nearest orthogonal matrix of each momentum, those of one size at once."""
    for size in {p.shape for p in matrices}:
        some = [i for i, p in enumerate(matrices) if p.shape == size]
        for i in some:
            moments[i].lerp_(matrices[i].grad, 1 - MOMENTUM)
        x = torch.stack([matrices[i].grad.lerp(moments[i], MOMENTUM) for i in some])
        x = x.mT if size[0] > size[1] else x
        x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=1e-12)
        for _ in range(5):
            gram = x @ x.mT
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        x = x.mT if size[0] > size[1] else x
        for i, step in zip(some, x, strict=True):
            matrices[i].sub_(step, alpha=rate * max(1.0, size[0] / size[1]) ** 0.5)


def loss_of(model: torch.nn.Module, blocks: torch.Tensor) -> torch.Tensor:
    logits = model(blocks, use_cache=False).logits[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, blocks[:, 1:].flatten())


if __name__ == "__main__":
    main()
