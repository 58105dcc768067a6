"""A checkpoint run on text through `transformers`: how spread its attention is, and what truncation costs.

    run = OnText(reader, Path("my.txt"))
    run.entropies                                  # nats: one list per layer, one number per head
    run.compare(tensors).loss_after                # the loss with these tensors in place

The beginning of the file is cut into sequences without padding: the first are scored, the others show what layers
see. A causal model is asked for the next token, a masked one for every seventh token, which is masked; a model without
such a head has no loss, so what changes is its hidden states.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from headwise.checkpoints.files import check_finite
from headwise.checkpoints.reader import Reader
from headwise.checkpoints.seen import Seen, Watch
from headwise.spec import SpecError

SEQUENCES, LENGTH = 16, 128  # that are scored
CALIBRATION = 64  # sequences at most that layers are watched on
MASKED_EVERY = 7
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


@dataclass(frozen=True)
class TextChange:
    """What a model scores on text before and after its heads are cut; without a loss, how its hidden states change."""

    tokens: int
    scored: str  # next token, masked tokens or hidden states
    loss_before: float | None = None  # nats/token
    loss_after: float | None = None
    relative_change: float | None = None  # of hidden states, squared

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


class OnText:
    """A model and a little text."""

    def __init__(self, reader: Reader, file: str | Path) -> None:
        self.causal = reader.causal
        folder = reader.weights.path if reader.weights.path.is_dir() else reader.weights.path.parent
        tokenizer, self.model = load_model(folder)
        sequences = _tokens(tokenizer, Path(file), self.model.config)
        scored = min(SEQUENCES, (len(sequences) + 1) // 2)
        self.tokens, others = sequences[:scored], sequences[scored:]
        self.mask = tokenizer.mask_token_id
        self.entropies, self._before = self._run()
        self.seen = self._watch(reader, others if len(others) else self.tokens)

    def compare(self, tensors: Iterable[tuple[str, Tensor]]) -> TextChange:
        """What the model scores as it is, and with these tensors in place of its own."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, tensor in tensors:
                own[_same(name, own)].copy_(tensor)
        _, after = self._run()
        tokens, before = self.tokens.numel(), self._before
        if self.scored == "hidden states":
            change = (after - before).square().sum() / before.square().sum()
            return TextChange(tokens, self.scored, relative_change=float(change))
        return TextChange(tokens, self.scored, float(before), float(after))

    @property
    def scored(self) -> str:
        return _scored(self.model)

    @torch.no_grad()
    def _watch(self, reader: Reader, tokens: Tensor) -> list[Seen]:
        """What every layer's attention sees of these tokens."""
        own = dict(self.model.named_parameters())
        watches, hooks = [], []
        for layer in reader.layers:
            module = self.model.get_submodule(_same(reader.entrance(layer), own).rpartition(".")[0])
            watches.append(Watch(reader.width(layer), LENGTH))
            hooks.append(module.register_forward_pre_hook(lambda _, args, watch=watches[-1]: watch.add(args[0])))
        for some in tokens.split(SEQUENCES):
            self.model(some)
        for hook in hooks:
            hook.remove()
        return [watch.seen for watch in watches if watch.seen is not None]

    @torch.no_grad()
    def _run(self) -> tuple[list[list[float]], Tensor]:
        """Entropy of every head, and the loss, or the hidden states where there is none."""
        given, labels = self._asked()
        output = self.model(given, output_attentions=True, output_hidden_states=labels is None)
        entropies = [torch.special.entr(a.double()).sum(-1).mean((0, 2)).tolist() for a in output.attentions]
        if labels is None:
            return entropies, output.hidden_states[-1].double()
        return entropies, F.cross_entropy(output.logits.flatten(0, 1).double(), labels.flatten())

    def _asked(self) -> tuple[Tensor, Tensor | None]:
        if self.scored == "next token":
            labels = F.pad(self.tokens[:, 1:], (0, 1), value=-100)
            return self.tokens, labels
        if self.scored == "hidden states":
            return self.tokens, None
        masked = (torch.arange(self.tokens.shape[1]) % MASKED_EVERY == MASKED_EVERY - 1).expand_as(self.tokens)
        return self.tokens.masked_fill(masked, self.mask), self.tokens.masked_fill(~masked, -100)


def _scored(model: Any) -> str:
    kind = type(model).__name__
    if "CausalLM" in kind or "LMHead" in kind:
        return "next token"
    return "masked tokens" if "MaskedLM" in kind else "hidden states"


def load_model(folder: Path, attention: str | None = "eager", *, bare: bool = False) -> tuple[Any, Any]:
    """The tokenizer and the model that transformers makes of a folder, every weight of it from there.

    `attention` is what it attends through: its own choice without. A `bare` folder may have no tokenizer: then None.
    """
    try:
        import transformers
    except ImportError:
        raise SpecError("this runs the model through transformers: pip install 'headwise[hf]'") from None
    known = any((folder / name).exists() for name in TOKENIZERS)  # of none transformers would make an empty one
    if not known and not bare:
        raise SpecError(f"--data needs a tokenizer beside the model: '{folder}' has none of {', '.join(TOKENIZERS)}")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        name = (config.architectures or ["AutoModel"])[0]
        kind = getattr(transformers, name, transformers.AutoModel)
        from headwise.checkpoints.swap.saved import ENTRY, PREFIX, swapped_class  # which needs truncation, which this

        if hasattr(config, ENTRY):  # swapped: headwise's own class, without running the folder's code
            kind = swapped_class(name.removeprefix(PREFIX))
        options = {"dtype": torch.float32} | ({"attn_implementation": attention} if attention else {})
        model, loaded = kind.from_pretrained(folder, output_loading_info=True, **options)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder) if known else None
    except Exception as error:  # its errors have no common class
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        beside = " with its tokenizer" if known else ""
        raise SpecError(f"this needs a model that transformers loads{beside} from '{folder}': {what}") from None
    unread = sorted(loaded["missing_keys"]) if _scored(model) != "hidden states" else []
    if unread:
        raise SpecError(
            f"'{folder}' has no '{unread[0]}', which {type(model).__name__} needs: transformers would make it up, and "
            "the loss would be that of random numbers; leave --data out, or give the whole checkpoint"
        )
    for name, parameter in model.named_parameters():
        check_finite(name, parameter)
    return tokenizer, model.eval()


def _tokens(tokenizer: Any, file: Path, config: Any) -> Tensor:
    """(sequences, length) from the beginning of the file."""
    length = min(LENGTH, getattr(config, "max_position_embeddings", LENGTH) - 2)  # RoBERTa counts from 2
    try:
        text = file.read_text(errors="replace")[: 64 * (SEQUENCES + CALIBRATION) * length]
    except OSError as error:
        raise SpecError(f"cannot read --data '{file}': {error.strerror}") from None
    tokens = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    tokens = torch.tensor(tokens[: (SEQUENCES + CALIBRATION) * length])
    if len(tokens) < length:
        raise SpecError(f"--data '{file}' has {len(tokens)} tokens for this model; it needs {length} or more")
    return tokens[: len(tokens) // length * length].view(-1, length)


def _same(name: str, own: dict[str, Any]) -> str:
    """The model's parameter of that name: one of the two may have a prefix more, such as 'bert.'."""
    alike = [other for other in own if other == name or other.endswith(f".{name}") or name.endswith(f".{other}")]
    if len(alike) != 1:
        raise SpecError(f"transformers has no parameter like '{name}' in this model, so --data cannot be used with it")
    return alike[0]
