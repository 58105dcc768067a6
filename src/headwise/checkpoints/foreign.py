"""Files of other libraries: GGUF, read through transformers; llama2.c, ONNX and old GGML, each with what to do."""

import struct
from pathlib import Path
from typing import Any

from headwise.shape import AttentionShape
from headwise.spec import SpecError, one_line

GGUF = ".gguf"
ONNX = "an ONNX graph, whose weights have lost their names: give the checkpoint that it was exported from"
_OTHER_STARTS = {  # of files that have a torch file's name
    b"ggml": "an old GGML file: convert_llama_ggml_to_gguf.py of llama.cpp makes a .gguf of it, which is read",
    b"24ka": "a model of llama2.c's later formats: give its first (export.py --version 0) or its checkpoint",
}
_OTHER_STARTS |= dict.fromkeys((b"lmgg", b"tjgg", b"fmgg"), _OTHER_STARTS[b"ggml"])
_LLAMA2C = struct.Struct("<7i")  # width, MLP, layers, heads, key/value heads, tokens (negative: untied), context


def check_start(path: Path) -> None:
    """Refuse files of other libraries that have a torch file's name, each with what to do."""
    if llama2c_sizes(path):
        raise SpecError(
            f"'{path}' is a model of llama2.c: headwise convert {path} --tokenizer tokenizer.bin --out FOLDER writes "
            "it as a Llama that transformers and headwise load"
        )
    with path.open("rb") as file:
        start = file.read(4)
    if start == b"GGUF":
        raise SpecError(f"'{path}' is a GGUF file: give it a name that ends in .gguf")
    if start in _OTHER_STARTS:
        raise SpecError(f"'{path}' is {_OTHER_STARTS[start]}")


def load_gguf(path: Path) -> Any:
    """The model in a GGUF file as transformers makes it, its numbers as quantisation left them."""
    try:
        import gguf  # noqa: F401
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise SpecError(
            f"'{path}' is a GGUF file, which needs transformers and gguf to be read: pip install 'headwise[gguf]'"
        ) from None
    try:
        model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:  # its errors have no common class
        raise SpecError(f"transformers cannot read '{path}' ({one_line(error).rstrip('.')})") from None
    if hasattr(model.config, "quantization_config"):  # its numbers are no longer quantised
        del model.config.quantization_config
    return model


def llama2c_sizes(file: Path) -> tuple[int, ...] | None:
    """The seven numbers at the start of llama2.c's first format, where they account for the size of the file."""
    with file.open("rb") as opened:
        start = opened.read(_LLAMA2C.size)
    if len(start) < _LLAMA2C.size:
        return None
    sizes = _LLAMA2C.unpack(start)
    width, hidden, depth, heads, kv_heads, vocab, context = sizes
    if min(width, hidden, depth, heads, kv_heads, context) < 1 or not vocab or width % heads:
        return None
    rank = AttentionShape(width=width, heads=heads).qk_rank
    layer = 2 * width * width + 2 * kv_heads * rank * width + 3 * hidden * width + 2 * width
    numbers = abs(vocab) * width * (2 if vocab < 0 else 1) + depth * layer + width + context * rank
    return sizes if file.stat().st_size == _LLAMA2C.size + 4 * numbers else None
