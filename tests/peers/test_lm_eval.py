"""The evaluation harness runs on a folder that headwise.convert wrote, with a task in a file; where it is installed."""

import json

import pytest
import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

import headwise
from helpers.copying import scrambled

harness = pytest.importorskip("lm_eval")
pytest.importorskip("accelerate")  # which its extra `hf` brings

WORDS = [f"w{i}" for i in range(59)]
TASK = """
task: tiny
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list: [{{metric: acc}}]
"""


@pytest.mark.parametrize("to", ["g2", "c20-p4", "v4"])
def test_the_harness_scores_a_converted_folder_as_its_logits_say(to, tmp_path):
    """The family's own folder, a DeepSeek's, and one with code that imports headwise."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8}
    sizes |= {"intermediate_size": 48, "num_key_value_heads": 4, "max_position_embeddings": 32, "eos_token_id": 0}
    scrambled(hf.LlamaForCausalLM(hf.LlamaConfig(**sizes))).save_pretrained(tmp_path / "model")
    words = Tokenizer(WordLevel({"[UNK]": 0, **{word: i + 1 for i, word in enumerate(WORDS)}}, "[UNK]"))
    words.pre_tokenizer = Whitespace()
    made = hf.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", eos_token="[UNK]")
    made.save_pretrained(tmp_path / "model")
    headwise.convert(tmp_path / "model", to, out=tmp_path / "out")
    rows = [{"question": f"w{i} w{i + 3}", "choices": [f"w{i + 1}", "w50"], "answer": 0} for i in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "tiny.yaml").write_text(TASK.format(file=tmp_path / "rows.jsonl"))
    found = harness.simple_evaluate(
        "hf",
        model_args=f"pretrained={tmp_path / 'out'},dtype=float32,trust_remote_code=True",
        tasks=["tiny"],
        task_manager=harness.tasks.TaskManager(include_path=str(tmp_path), include_defaults=False),
        device="cpu",
        bootstrap_iters=0,
    )
    model = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "out", trust_remote_code=True).eval()
    right = 0
    for i in range(8):
        with torch.no_grad():
            logits = model(torch.tensor([[i + 1, i + 4]])).logits[0, -1]
        right += int(logits[i + 2] > logits[51])
    assert found["results"]["tiny"]["acc,none"] == right / 8
