"""BERT, RoBERTa, MiniLM and DistilBERT: four linear layers with biases; DistilBERT has names of its own."""

from typing import Any, ClassVar

from headwise.checkpoints.reader import SeparateReader, activation_of, known_of, stated
from headwise.known import Known
from headwise.options import preset
from headwise.shape import AttentionShape

_BERT = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
_DISTILBERT = ("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin")


class BertReader(SeparateReader):
    family = "bert"
    model_types = frozenset({"bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra"})
    signature = r"(?P<layer>(.*\.)?layer\.\d+\.)attention\.(self\.query|q_lin)\.weight"
    mlp_names: ClassVar[dict[str, int]] = {"intermediate.dense.weight": 0, "ffn.lin1.weight": 0}

    @classmethod
    def described(cls, config: dict[str, Any]) -> Known | None:
        if config["model_type"] not in ("bert", "roberta", "xlm-roberta", "camembert"):
            return None
        kind = (config.get("architectures") or [""])[0]
        head = "mlm" if "MaskedLM" in kind else "classes" if "SequenceClassification" in kind else "none"
        activation = config.get("hidden_act", "gelu")
        options = preset(
            "bert",
            vocab=stated(config, "vocab_size"),
            context=stated(config, "max_position_embeddings"),
            segments=stated(config, "type_vocab_size"),
            norm_eps=float(config.get("layer_norm_eps", 1e-12)),
            activation=activation_of(activation),
            head=head,
            pooler=head != "mlm",
            classes=len(config.get("id2label") or "01") if head == "classes" else 0,
        )
        layer = AttentionShape(width=stated(config, "hidden_size"), heads=stated(config, "num_attention_heads"))
        return known_of(layer, stated(config, "num_hidden_layers"), stated(config, "intermediate_size"), options)

    def layer_names(self, layer: str) -> tuple[str, str, str, str]:
        return _BERT if f"{layer}{_BERT[0]}.weight" in self.weights else _DISTILBERT


READER = BertReader
