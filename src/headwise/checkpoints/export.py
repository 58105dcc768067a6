"""A model trained here as a folder that `transformers` loads.

    exported = headwise.export_hf("82cd05", "my-model")     # a run's key, or a file of weights
    exported.form, exported.why                             # ("native", "it is a Llama")

Where Llama, Qwen3, NanoChat, DeepSeek-V3 or BERT can say the shape and the options, the folder is one of theirs.
Everything else is written with code of its own that imports headwise (`trust_remote_code=True`), and with the reason.
A model of a text's bytes comes with its tokenizer.
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from headwise.checkpoints import open_checkpoint
from headwise.checkpoints.byte_tokenizer import BYTES, write_byte_tokenizer
from headwise.checkpoints.export_targets import TARGETS, Tensors, misfit
from headwise.checkpoints.files import check_new, write_config, write_weights
from headwise.checkpoints.reader import Reader
from headwise.checkpoints.readers.headwise import HeadwiseReader
from headwise.models import build
from headwise.options import ModelOptions
from headwise.shape import ModelShape
from headwise.shown import Shown
from headwise.spec import SpecError
from headwise.store.store import Store, default_path

CODE = '''"""This model is headwise's: pip install headwise."""

from headwise.hf_model import {names}

__all__ = [{quoted}]
'''


@dataclass(frozen=True)
class Exported(Shown):
    """What was written, and where."""

    form: Literal["native", "custom"]
    architecture: str
    why: str
    shape: str
    bytes: int
    out: Path

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"out": str(self.out)}

    def records(self) -> list[dict[str, Any]]:
        return [self.as_dict()]

    @property
    def headline(self) -> str:
        """How to load it, and why it is what it is."""
        if self.form == "native":
            loaded = f"{self.architecture}.from_pretrained('{self.out}')"
            return f"{self.shape} in '{self.out}': {self.why}, so {loaded} needs no headwise"
        return (
            f"{self.shape} in '{self.out}' with code that imports headwise: load it with trust_remote_code=True\n"
            f"it would be transformers' own but for this: {self.why}"
        )


def export_hf(source: str | Path | Reader, out: str | Path, store: str | Path | None = None) -> Exported:
    """Write a model trained here to a new folder that `transformers` loads.

    `source` is a run's key or its beginning, for a run that kept its weights in the store at `store` (the usual one by
    default); or a file or folder of weights, or an opened reader of them.
    """
    folder = Path(out)
    check_new(folder)  # before any work
    reader = source if isinstance(source, Reader) else open_checkpoint(_weights(source, store))
    if not isinstance(reader, HeadwiseReader):
        cut = "headwise" in reader.weights.config
        loads = "and was truncated to a shape that its library cannot say: headwise convert writes one that loads"
        raise SpecError(
            f"'{reader.weights.path}' is of family {reader.family}, "
            f"{loads if cut else 'which has a library that loads it'}; export-hf writes models trained by headwise"
        )
    exported = _write(reader, folder)
    task = reader.weights.config.get("run", {}).get("task", {})
    if task.get("name") == "text" and task.get("tokenizer", "bytes") == "bytes" and reader.options.vocab == BYTES:
        write_byte_tokenizer(folder)
    return exported


def _weights(source: str | Path, store: str | Path | None) -> Path:
    """A file or folder of that name, else what a run of that key kept."""
    if Path(source).exists():
        return Path(source)
    with Store(Path(store) if store else default_path()) as results:
        record, folder = results.get(str(source)), results.files
    if record is None:
        raise SpecError(f"no file '{source}' here, and no run {source} in this store; headwise runs lists them")
    weights = folder / "weights" / f"{record[0].key}.safetensors"
    if not weights.exists():
        raise SpecError(
            f"run {record[0].key} kept no weights in '{weights.parent}'; train it again with --keep-weights"
        )
    return weights


def _write(reader: HeadwiseReader, out: Path) -> Exported:
    shape, options = reader.shape, reader.options
    state = {name: reader.weights.stored(name) for name in reader.weights}
    _check_whole(reader, state)
    reasons = {target.name: misfit(target, shape, options) for target in TARGETS}
    target = next((target for target in TARGETS if not reasons[target.name]), None)
    if target is None:
        why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        return _write_custom(out, state, shape, options, why)
    architecture = target.architecture(options)
    size = write_weights(out, iter(target.tensors(state, shape, options).items()))
    write_config(out, {"architectures": [architecture], **_common(state), **target.config(shape, options)})
    return Exported("native", architecture, f"it is a {target.name}", str(shape), size, out)


def _check_whole(reader: HeadwiseReader, state: Tensors) -> None:
    """A task may wrap its model in more than shape and options say."""
    expected = build(reader.shape, reader.options, device="meta").state_dict()
    sizes, real = ({name: tensor.shape for name, tensor in tensors.items()} for tensors in (expected, state))
    wrong = [name for name in sizes | real if sizes.get(name) != real.get(name)]
    if wrong:
        raise SpecError(
            f"'{reader.weights.path}' is not the model that {reader.shape} and its options describe: '{min(wrong)}' is "
            "missing, added or of another size; models of text, image and GLUE tasks can be exported"
        )


def _write_custom(out: Path, state: Tensors, shape: ModelShape, options: ModelOptions, why: str) -> Exported:
    causal = options.family == "decoder"
    name = "HeadwiseForCausalLM" if causal else "HeadwiseModel"
    heads = {("bert", "mlm"): "MaskedLM", ("bert", "classes"): "SequenceClassification"}
    heads |= {("vit", "classes"): "ImageClassification"}
    kind = "CausalLM" if causal else heads.get((options.family, options.head), "")
    autos = ["AutoModel", *([f"AutoModelFor{kind}"] if kind else [])]
    places = {"AutoConfig": "HeadwiseConfig", **dict.fromkeys(autos, name)}
    size = write_weights(out, ((f"model.{key}", tensor) for key, tensor in state.items()))
    config = {"model_type": "headwise", "shape": str(shape), "options": options.model_dump(exclude_defaults=True)}
    auto_map = {auto: f"modeling_headwise.{place}" for auto, place in places.items()}
    write_config(out, {"architectures": [name], "auto_map": auto_map, **_common(state), **config})
    names = ("HeadwiseConfig", name)
    quoted = ", ".join(f'"{one}"' for one in names)
    (out / "modeling_headwise.py").write_text(CODE.format(names=", ".join(names), quoted=quoted))
    return Exported("custom", name, why, str(shape), size, out)


def _common(state: Tensors) -> dict[str, Any]:
    dtype = str(next(iter(state.values())).dtype).removeprefix("torch.")
    return {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, "dtype": dtype}
