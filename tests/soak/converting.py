"""Rounds of `convert --heal`: a small model is converted, fitted, healed and written, and killed on the way."""

import hashlib
import json
import signal
import time
from pathlib import Path

from soak.faults import TO_DRIVER, interrupt, jump_clock, kill, stop_and_go_on
from soak.processes import Drivers, send
from soak.rounds import Round, prepared

NAME = "convert --heal"
STEPS = 60  # of healing
FILE_BYTES = 20_000  # less than the model has
SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
SIZES |= {"intermediate_size": 48, "num_key_value_heads": 4, "max_position_embeddings": 32}
SIZES |= {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
TIMES = "seconds", "decode_before", "decode_after", "source", "out"  # differ from call to call


def model_and_text(folder):
    """A Llama with random weights, and words for it."""
    import torch
    import transformers as hf
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = [f"w{number}" for number in range(59)]
    torch.manual_seed(0)
    hf.LlamaForCausalLM(hf.LlamaConfig(**SIZES)).save_pretrained(folder / "model")
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, **{word: i + 1 for i, word in enumerate(words)}}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(folder / "model")
    chosen = torch.multinomial(1 / torch.arange(1.0, 60.0), 20_000, replacement=True)
    (folder / "text.txt").write_text(" ".join(words[i] for i in chosen))
    return (
        "convert",
        folder / "model",
        "--to",
        "g2",
        "--data",
        folder / "text.txt",
        "--heal",
        f"{STEPS} steps",
        "--out",
        "smaller",
    )


def result_of(folder):
    """The files of the new model by their digests, and what is said of it but for times."""
    files = sorted(file for file in (folder / "smaller").rglob("*") if file.is_file())
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    found.pop("README.md", None)
    if found.pop("conversion.json", None):
        found |= {"facts": _timeless(json.loads((folder / "smaller" / "conversion.json").read_text()))}
    return found


def _timeless(facts):
    if isinstance(facts, dict):
        return {name: _timeless(value) for name, value in facts.items() if name not in TIMES}
    return facts


def reference(words, folder):
    """The result without faults, and the seconds from the beginning of its work to its end."""
    drivers = Drivers(words, prepared(folder), 1, {})
    if drivers.running[0].wait():
        raise SystemExit(drivers.log.read_text())
    began = min(file.stat().st_mtime for file in folder.glob("begun.*"))
    return result_of(folder), time.time() - began


def full_disk(drivers, chance):
    """The same command where files may not grow, alone: it must end with a sentence, and spoil nothing."""
    for driver in drivers.running:
        driver.kill()
        driver.wait()
    limited = drivers.start(SOAK_FILE_BYTES=str(FILE_BYTES))
    drivers.limited.append(limited)
    limited.wait()
    return True


FAULTS = {
    TO_DRIVER: (kill("driver"), 80),
    "SIGSTOP, SIGCONT to a driver": (stop_and_go_on("driver"), 4),
    "SIGTERM to a driver": (interrupt(signal.SIGTERM), 4),
    "SIGINT to a driver": (interrupt(signal.SIGINT), 4),
    "clock jump (injected)": (jump_clock, 4),
    "full disk (limit on file size)": (full_disk, 4),
}


class ConvertRound(Round):
    """One driver; the moments of its work are met by waiting up to as long as all of it took without faults."""

    faults = FAULTS

    def __init__(self, words, expected, folder, chance):
        self.command, (expected, self.seconds) = words, expected
        super().__init__("", expected, folder, 1, chance)
        self.drivers.all_done = self._is_whole

    def words(self, work=""):
        return self.command

    def settings(self):
        return {}

    def _is_whole(self):
        """Its last act is to remove the request; the same call is refused then, for the folder is there already."""
        model = self.folder / "smaller"
        return (model / "conversion.json").exists() and not (model / "request.json").exists()

    def working(self):
        """A driver has begun; now wait, for not a moment of its work is better than another."""
        for driver in self.drivers.marked()["driver"]:
            if (self.folder / f"begun.{driver}").exists():
                time.sleep(self.chance.uniform(0.0, self.seconds))
                return True
        return False

    def _look(self):
        """Nothing is promised of a folder before its command has ended."""

    def verdict(self):
        refused = [driver.wait() for driver in self.drivers.limited]
        orphans = self.drivers.orphans()
        final, beside = result_of(self.folder), {"smaller", "study.py"}
        left = [file.name for file in self.folder.iterdir() if file.name not in beside]
        left = [name for name in left if Path(name).stem != "begun"]
        both = final.keys() & self.expected.keys()
        return {
            "runs lost": int(bool(self.expected.keys() - final.keys())),
            "runs differing": int(any(final[name] != self.expected[name] for name in both)),
            "orphans": orphans,
            "leftovers": len(left) + len(final.keys() - self.expected.keys()),
            **self.ends(refused),
        }


def one_round(table, words, expected, folder, chance, enough):
    one = ConvertRound(words, expected, folder, chance)
    try:
        counts = one.attack(enough)
        return table.add(NAME, counts, one.verdict(), 1)
    finally:
        for pid in one.drivers.everything():
            send(pid, signal.SIGKILL)
        one.drivers.end()
