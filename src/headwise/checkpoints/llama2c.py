"""llama2.c's model.bin and tokenizer.bin, as a folder that transformers loads as a Llama.

    write_llama2c("stories260K.bin", "stories", tokenizer="tok512.bin")

The first format of llama2.c alone (its export version 0): seven whole numbers, then float32 weights, layer upon layer
of each kind. Queries and keys turn neighbours (2i, 2i + 1) there, and halves of a head in transformers.
"""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headwise.checkpoints.files import check_new, write_config, write_weights
from headwise.checkpoints.foreign import llama2c_sizes
from headwise.checkpoints.rotary import in_halves
from headwise.extras import extra
from headwise.shape import AttentionShape
from headwise.spec import SpecError

HEADER = 28  # bytes of seven numbers
SPECIAL = ("<unk>", "<s>", "</s>")


def write_llama2c(file: str | Path, out: str | Path, tokenizer: str | Path | None = None) -> Path:
    """Write the model, and its tokenizer where there is one, to a new folder."""
    source, folder = Path(file), Path(out)
    check_new(folder)
    numbers = llama2c_sizes(source) if source.is_file() else None
    if numbers is None:
        raise SpecError(f"'{source}' is no model of llama2.c's first format: its header does not account for its size")
    write_weights(folder, iter(_named(source, numbers).items()))
    write_config(folder, _config(numbers))
    if tokenizer is not None:
        _write_tokenizer(Path(tokenizer), abs(numbers[5]), folder)
    return folder


def _sections(numbers: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
    """Every block of the file, in order."""
    width, hidden, depth, heads, kv_heads, vocab, context = numbers
    rank = AttentionShape(width=width, heads=heads).qk_rank
    kv = kv_heads * rank
    blocks: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (abs(vocab), width),
        "input_layernorm": (depth, width),
        "self_attn.q_proj": (depth, width, width),
        "self_attn.k_proj": (depth, kv, width),
        "self_attn.v_proj": (depth, kv, width),
        "self_attn.o_proj": (depth, width, width),
        "post_attention_layernorm": (depth, width),
        "mlp.gate_proj": (depth, hidden, width),
        "mlp.down_proj": (depth, width, hidden),
        "mlp.up_proj": (depth, hidden, width),
        "model.norm": (width,),
        "": (2, context, rank // 2),  # cosines and sines of the rotation
    }
    return blocks | ({"lm_head": (-vocab, width)} if vocab < 0 else {})


def _named(file: Path, numbers: tuple[int, ...]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    start = HEADER
    rank = AttentionShape(width=numbers[0], heads=numbers[3]).qk_rank
    for name, size in _sections(numbers).items():
        block = torch.from_numpy(np.fromfile(file, "<f4", int(np.prod(size)), offset=start).reshape(size))
        start += 4 * block.numel()
        if name in ("self_attn.q_proj", "self_attn.k_proj"):
            block = block.unflatten(1, (-1, rank))[:, :, in_halves(rank, rank)].flatten(1, 2)
        if ("." in name and not name.startswith("model.")) or name.endswith("_layernorm"):
            tensors |= {f"model.layers.{i}.{name}.weight": layer.clone() for i, layer in enumerate(block)}
        elif name:
            tensors[f"{name}.weight"] = block
    return tensors


def _config(numbers: tuple[int, ...]) -> dict[str, Any]:
    width, hidden, depth, heads, kv_heads, vocab, context = numbers
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": abs(vocab),
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": AttentionShape(width=width, heads=heads).qk_rank,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "tie_word_embeddings": vocab > 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "dtype": "float32",
    }


# ---- the tokenizer ---------------------------------------------------------------------------------------------------


def _write_tokenizer(file: Path, vocab: int, folder: Path) -> None:
    """Byte pairs by score, unknown characters as bytes: what SentencePiece does, in transformers' form."""
    with extra("data", "tokenizers"):
        from tokenizers import Tokenizer, decoders, models, normalizers, processors

    pieces = [(SPECIAL[i], 0.0) if i < len(SPECIAL) else piece for i, piece in enumerate(_pieces(file, vocab))]
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    made = sorted(((-score, i, piece) for i, (piece, score) in enumerate(pieces) if i > 258), key=lambda one: one[:2])
    merges = [
        (piece[:cut], piece[cut:])
        for _, _, piece in made
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = dict(zip(("unk_token", "bos_token", "eos_token"), SPECIAL, strict=True))
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts, indent=2) + "\n")


def _pieces(file: Path, vocab: int) -> list[tuple[str, float]]:
    """Every token and its score."""
    try:
        data = file.read_bytes()
        pieces, place = [], 4  # the longest piece comes first
        for _ in range(vocab):
            score, size = struct.unpack_from("<fi", data, place)
            pieces.append((data[place + 8 : place + 8 + size].decode().replace(" ", "▁"), score))
            place += 8 + size
    except (OSError, struct.error, UnicodeDecodeError) as error:
        raise SpecError(f"'{file}' is no tokenizer of llama2.c with {vocab} tokens: {error}") from None
    return pieces
