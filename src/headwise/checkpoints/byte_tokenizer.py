"""A tokenizer whose tokens are bytes, in the form that `transformers` reads: what a model of bytes is exported with."""

import json
from pathlib import Path
from typing import Any

BYTES = 256
_PRINTED = (*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100))  # bytes that stand for themselves


def write_byte_tokenizer(folder: Path) -> None:
    """Token n is byte n; nothing is merged, and no token is special."""
    unprinted = iter(range(BYTES, 2 * BYTES))  # characters that stand for the other bytes, as GPT-2 has them
    names = [chr(byte) if byte in _PRINTED else chr(next(unprinted)) for byte in range(BYTES)]
    spaces = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    model |= {"vocab": {name: byte for byte, name in enumerate(names)}, "merges": []}
    document: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
    }
    document |= {"pre_tokenizer": spaces, "post_processor": None, "decoder": spaces, "model": model}
    (folder / "tokenizer.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=2) + "\n")
