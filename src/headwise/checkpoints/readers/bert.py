"""BERT, RoBERTa, MiniLM and DistilBERT: four linear layers with biases; DistilBERT has names of its own."""

from typing import ClassVar

from headwise.checkpoints.reader import SeparateReader

_BERT = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
_DISTILBERT = ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin")


class BertReader(SeparateReader):
    family = "bert"
    model_types = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"})
    signature = r"(?P<layer>(.*\.)?layer\.\d+\.)attention\.(self\.query|q_lin)\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"intermediate.dense.weight": 0, "ffn.lin1.weight": 0}

    def layer_names(self, layer: str) -> tuple[str, str, str, str]:
        return _BERT if f"{layer}{_BERT[0]}.weight" in self.weights else _DISTILBERT


READER = BertReader
