"""Files of weights, opened lazily: a tensor is read when it is asked for, so a model may be larger than memory.

    weights = open_weights("some/folder")          # or a file, or a name on the Hugging Face hub
    weights.shapes["model.norm.weight"]            # (4096,): from the header, nothing is read
    weights["model.norm.weight"]                   # the tensor

safetensors files, shards with an index, torch's own files, and GGUF through transformers. Nothing is ever unpickled but
tensors: a file that needs more is refused. A torch file of the old kind (before 2020) cannot be mapped, so it is read
whole; so are the numbers of a GGUF file.
"""

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from headwise.checkpoints.foreign import GGUF, ONNX, check_start, load_gguf
from headwise.spec import SpecError, read_json_text, read_text

SHARD_BYTES = 2**30  # of tensors in memory before they are written
_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_TORCH = (".bin", ".pt", ".pth")
LARGEST_SIZE = 2**40  # of anything that a configuration counts
_KINDS: dict[str, Any] = {"model_type": str, "rope_scaling": dict, "rope_parameters": dict, "layer_types": list}
_KINDS |= {"headwise": dict, "hidden_act": str, "activation_function": str, "hidden_activation": str}
_INNER: dict[str, Any] = {"type": str, "rope_type": str, "factor": int | float, "shape": str}  # of rope_* and headwise
_INNER |= dict.fromkeys(("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "rope_theta"), int | float)
_INNER |= dict.fromkeys(("attention_factor", "mscale", "mscale_all_dim"), int | float)
_INNER |= {"original_max_position_embeddings": int | float, "truncate": bool}


@dataclass(frozen=True)
class _Place:
    """Bytes of a safetensors file. Its library maps whole files as writable, which fails above the size of memory."""

    file: Path
    dtype: str
    start: int
    size: int

    def read(self) -> Tensor:
        if self.dtype not in _DTYPES:
            raise SpecError(f"'{self.file}' holds numbers of type {self.dtype}, which cannot be read here")
        data = bytearray(self.size)
        with self.file.open("rb") as file:
            file.seek(self.start)
            file.readinto(data)
        return torch.frombuffer(data, dtype=_DTYPES[self.dtype]) if data else torch.empty(0, dtype=_DTYPES[self.dtype])


def check_finite(name: str, tensor: Tensor) -> Tensor:
    """Nothing can be worked out from NaN or infinity."""
    if tensor.is_floating_point() and tensor.element_size() > 1 and not bool(tensor.isfinite().all()):
        raise SpecError(f"'{name}' holds NaN or infinite numbers: the checkpoint is broken, so nothing was written")
    return tensor


class Weights:
    """Tensors by name, read when asked for, and the configuration that lies beside them."""

    def __init__(self, path: Path, files: list[Path], config: dict[str, Any]) -> None:
        self.path, self.config = path, config
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._homes: dict[str, _Place | Tensor] = {}  # where to read it, or a tensor that is mapped into memory
        self.nbytes = 0  # of all tensors
        for file in files:
            self._add_torch(file) if file.suffix in _TORCH else self._add_safetensors(file)

    def __getitem__(self, name: str) -> Tensor:
        """A tensor of numbers to compute with."""
        if name not in self.shapes:
            raise SpecError(f"'{self.path}' has no tensor '{name}', which a layer of its family needs")
        tensor = self.stored(name)
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise SpecError(
                f"'{name}' is quantised ({str(tensor.dtype).removeprefix('torch.')}); give the weights in 16 or 32 bits"
            )
        return check_finite(name, tensor)

    def get(self, name: str) -> Tensor | None:
        return self[name] if name in self.shapes else None

    def stored(self, name: str) -> Tensor:
        """A tensor as it is, of whatever type."""
        home = self._homes[name]
        return home if isinstance(home, Tensor) else home.read().view(self.shapes[name])

    def __contains__(self, name: str) -> bool:
        return name in self.shapes

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def _add_safetensors(self, file: Path) -> None:
        try:
            with safe_open(file, "np") as opened:  # checks the file as a whole
                facts = (opened.metadata() or {}).get("facts", "")  # what headwise writes beside its own weights
            with file.open("rb") as start:
                length = int.from_bytes(start.read(8), "little")
                header = json.loads(start.read(length))
        except (SafetensorError, OSError) as error:
            raise SpecError(f"cannot read '{file}': it is cut short or no safetensors file ({_line(error)})") from None
        header.pop("__metadata__", None)
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            self.shapes[name] = tuple(entry["shape"])
            self._homes[name] = _Place(file, entry["dtype"], 8 + length + first, last - first)
            self.nbytes += last - first
        with suppress(ValueError):
            self.config = self.config or json.loads(facts)

    def _add_torch(self, file: Path) -> None:
        tensors = _tensors_of(_load_torch(file))
        if not tensors:
            raise SpecError(f"'{file}' holds no tensors by name; a state dict is expected")
        self.add(tensors)

    def add(self, tensors: dict[str, Tensor]) -> None:
        """Tensors that are in memory, or mapped into it."""
        self.shapes |= {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        self._homes |= tensors
        self.nbytes += sum(tensor.nbytes for tensor in tensors.values())


def open_weights(source: str | Path) -> Weights:
    """A folder, a file, or a name on the Hugging Face hub."""
    path = Path(source)
    if not path.exists():
        if not _HUB_NAME.fullmatch(str(source)):
            raise SpecError(f"there is no file or folder '{source}'")
        path = _from_hub(str(source))
    files = _files_in(path) if path.is_dir() else [path]
    for file in files:
        if not file.is_file():
            raise SpecError(f"'{file}' is no file")
    if path.is_dir():
        return Weights(path, files, _config_of(path, files))
    if path.suffix == GGUF:
        return _from_gguf(path)
    if path.suffix == ".onnx":
        raise SpecError(f"'{path}' is {ONNX}")
    if path.suffix not in (".safetensors", *_TORCH):
        raise SpecError(f"'{path}' is no file of weights; .safetensors, .bin, .pt, .pth, .gguf or a folder is read")
    if path.suffix in _TORCH:
        check_start(path)
    return Weights(path, files, _config_of(path, files))


def _from_gguf(path: Path) -> Weights:
    model = load_gguf(path)
    made = Weights(path, [], model.config.to_dict())
    made.add({name: tensor.detach() for name, tensor in model.state_dict().items()})
    return made


def _files_in(folder: Path) -> list[Path]:
    """The files of a folder that hold its model: those an index names, else all of the better kind."""
    for index in sorted(folder.glob("*.index.json"), key=lambda file: "safetensors" not in file.name):
        named = _named_files(index)
        missing = [name for name in named if not (folder / name).exists()]
        if missing:
            raise SpecError(f"'{index}' names {len(named)} files, but '{missing[0]}' is not there")
        if named:
            return [folder / name for name in named]
    for suffixes in ((".safetensors",), _TORCH):
        files = sorted(file for file in folder.iterdir() if file.suffix in suffixes and not _is_no_model(file))
        if files:
            return files
    if any(folder.glob(f"*{GGUF}")):
        raise SpecError(f"folder '{folder}' holds GGUF: give the file itself")
    if any(folder.glob("*.onnx")):
        raise SpecError(f"folder '{folder}' holds {ONNX}")
    raise SpecError(f"folder '{folder}' holds no weights: no .safetensors, .bin, .pt or .pth file")


def _named_files(index: Path) -> list[str]:
    """The files that an index names: of its own folder, and no other."""
    names = read_json(index).get("weight_map", {})
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise SpecError(f"'{index}' is malformed: its weight_map must give the name of a file for each tensor")
    for name in names.values():
        parts = PureWindowsPath(name).parts  # both kinds of separators, and drives
        if not parts or ".." in parts or PureWindowsPath(name).anchor or not name.isprintable():
            raise SpecError(f"'{index}' names {name!r}, which is no file of its own folder")
    return sorted(set(names.values()))


def _is_no_model(file: Path) -> bool:
    return file.name.startswith(("training_args", "optimizer", "optim_", "scheduler", "rng_state"))


def _config_of(path: Path, files: list[Path]) -> dict[str, Any]:
    """config.json, or what nanochat writes beside model_000650.pt as meta_000650.json."""
    folder = path if path.is_dir() else path.parent
    if (folder / "config.json").exists():
        return read_configuration(folder / "config.json")
    meta = folder / f"{files[0].stem.replace('model_', 'meta_')}.json"
    described = read_json(meta).get("model_config", {}) if meta.exists() else {}
    return check_configuration(described, meta)


def read_json(file: Path) -> dict[str, Any]:
    document = read_json_text(read_text(file, "a configuration"), f"'{file}'")
    if not isinstance(document, dict):
        raise SpecError(f"'{file}' holds no JSON object")
    return document


def read_configuration(file: Path) -> dict[str, Any]:
    """A config.json whose fields are of the kinds that readers rely on."""
    return check_configuration(read_json(file), file)


def check_configuration(config: Any, file: Path, kinds: dict[str, Any] = _KINDS) -> dict[str, Any]:
    """Refuse, by its name, a field that no library writes so; which fields a family needs is its reader's to say."""
    if not isinstance(config, dict):
        raise SpecError(f"'{file}' holds no configuration")
    for name, value in config.items():
        if value is None:
            continue
        if name in kinds and not isinstance(value, kinds[name]):
            raise SpecError(f"'{file}' is malformed: {name} is {str(value)[:60]!r}")
        if isinstance(value, int) and abs(value) > LARGEST_SIZE:
            raise SpecError(f"'{file}' is malformed: {name} is larger than any model's")
        if isinstance(value, list) and name == "layer_types" and not all(isinstance(kind, str) for kind in value):
            raise SpecError(f"'{file}' is malformed: {name} must be names")
        if isinstance(value, dict) and (kinds is _INNER or name in _KINDS):
            check_configuration(value, file, _INNER)
    return config


def _load_torch(file: Path) -> Any:
    for mapped in (True, False):
        try:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
        except UnpicklingError:
            raise SpecError(
                f"'{file}' needs unpickling of more than tensors, which can run any program, so it is not opened; "
                "save its state dict, best as safetensors"
            ) from None
        except (RuntimeError, OSError, ValueError, EOFError, KeyError) as error:
            if mapped and "mmap can only be used" in str(error):
                continue
            raise SpecError(f"cannot read '{file}': it is cut short or no torch file ({_line(error)})") from None


def _tensors_of(state: Any) -> dict[str, Tensor]:
    """The state dict itself, or one that is kept under a usual name."""
    if not isinstance(state, dict):
        return {}
    for name in ("state_dict", "model_state_dict", "model", "module", "teacher"):
        if isinstance(state.get(name), dict):
            return _tensors_of(state[name])
    return {str(name): value.detach() for name, value in state.items() if isinstance(value, Tensor)}


def _from_hub(name: str) -> Path:
    try:
        import huggingface_hub
    except ImportError:
        raise SpecError(
            f"there is no file or folder '{name}'; a name on the hub needs: pip install 'headwise[hf]'"
        ) from (None)
    wanted = ["*.json", "*.safetensors", "*.txt", "*.model"]
    try:
        folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
        if not list(folder.glob("*.safetensors")):
            folder = Path(huggingface_hub.snapshot_download(name, allow_patterns=[*wanted, "*.bin"]))
        return folder
    except Exception as error:  # its errors have no common class
        raise SpecError(
            f"there is no file or folder '{name}', and no model of that name can be fetched from the Hugging Face hub "
            f"({_line(error).rstrip('.')}); without a network give the path of a local folder"
        ) from None


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


# ---- writing -------------------------------------------------------------------------------------------------------


def check_new(folder: Path) -> None:
    """Nothing is ever written over."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SpecError(f"'{folder}' is there already and not an empty folder; give --out a new one")


def begun_shards(folder: Path) -> list[list[str]]:
    """The names of the tensors in each file that an interrupted `write_weights` had finished there."""
    shards: list[list[str]] = []
    while (file := folder / f"shard-{len(shards)}.safetensors").exists():
        shards.append(list(Weights(folder, [file], {})))
    return shards


def write_weights(folder: Path, tensors: Iterator[tuple[str, Tensor]], go_on: bool = False) -> int:
    """One safetensors file, or shards with an index where there is much; gives the bytes of all tensors.

    With `go_on` the tensors come after those of `begun_shards`.
    """
    shards = begun_shards(folder) if go_on else []
    waiting: dict[str, Tensor] = {}
    total = sum(Weights(folder, [folder / f"shard-{i}.safetensors"], {}).nbytes for i in range(len(shards)))

    def own(tensor: Tensor) -> Tensor:
        """A tensor that shares its memory with none before: two names of tied weights are written as two tensors."""
        shared = {one.untyped_storage().data_ptr() for one in waiting.values()}
        tensor = tensor.contiguous()
        return tensor.clone() if tensor.untyped_storage().data_ptr() in shared else tensor

    def flush() -> None:
        file = folder / f"shard-{len(shards)}.safetensors"
        save_file(waiting, file.with_suffix(".new"), {"format": "pt"})
        file.with_suffix(".new").replace(file)
        shards.append(list(waiting))
        waiting.clear()

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, tensor in tensors:
            waiting[name] = own(tensor)
            total += tensor.nbytes
            if sum(one.nbytes for one in waiting.values()) >= SHARD_BYTES:
                flush()
        if waiting:
            flush()
        _name_shards(folder, shards, total)
    except (OSError, SafetensorError) as error:
        raise SpecError(f"cannot write to '{folder}': {_line(error)}") from None
    return total


def write_gguf(file: Path, folder: Path) -> None:
    """A GGUF file's model as a folder, with its tokenizer where transformers makes one of it."""
    check_new(folder)
    opened = open_weights(file)
    write_weights(folder, ((name, opened.stored(name)) for name in opened))
    write_config(folder, {**opened.config, "dtype": "float32"})
    from transformers import AutoTokenizer

    with suppress(Exception):  # its errors have no common class
        AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(folder)


def write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _name_shards(folder: Path, shards: list[list[str]], total: int) -> None:
    names = [f"model-{i + 1:05}-of-{len(shards):05}.safetensors" for i in range(len(shards))]
    names = ["model.safetensors"] if len(shards) == 1 else names
    for i, name in enumerate(names):
        (folder / f"shard-{i}.safetensors").replace(folder / name)
    if len(shards) > 1:
        places = {tensor: name for name, tensors in zip(names, shards, strict=True) for tensor in tensors}
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
