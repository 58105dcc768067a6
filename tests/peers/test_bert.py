"""transformers' BERT = headwise's `preset("bert")`, in float64, with padding and segments, under each head.

`BertModel` is head "none" (hidden states, and the pooled first token), `BertForMaskedLM` is "mlm" (which has no
pooler), `BertForSequenceClassification` is "classes". Token 0 does not occur: BERT's own table does not learn it.
"""

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, BertModel

from headwise.models import build
from headwise.options import preset
from headwise.shape import ModelShape
from helpers.copying import EXACT, hold_equal, scrambled, take
from helpers.translations import bert_classes, bert_masked, bert_model

BATCH, TOKENS, VOCAB, CONTEXT, CLASSES = 3, 10, 61, 16, 5


def hold_bert(
    path: str, kind: type[nn.Module], translate, run_peer, run=lambda model, *given: model(*given), **options
):
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=CONTEXT,
        num_labels=CLASSES,
    )
    peer = scrambled(kind(config), torch.float64)
    made = preset("bert", vocab=VOCAB, context=CONTEXT, **options)
    model = take(build(ModelShape.parse("w32-h4-L2-m48"), made, dtype=torch.float64), path)
    tokens = torch.randint(1, VOCAB, (BATCH, TOKENS))
    segments = torch.randint(2, (BATCH, TOKENS))
    real = torch.arange(TOKENS) < torch.tensor([[TOKENS], [7], [4]])
    hold_equal(
        model,
        peer,
        translate,
        [tokens, segments, real],
        EXACT,
        run=lambda *given: run(model, *given),
        run_peer=lambda tokens, segments, real: run_peer(
            peer(tokens, token_type_ids=segments, attention_mask=real.long())
        ),
    )


def test_hidden_states_and_pooled_token(path):
    def run(model: nn.Module, *given: Tensor) -> Tensor:
        hidden = model(*given)
        return torch.cat([hidden, model.pooled(hidden)[:, None]], dim=1)

    def run_peer(output) -> Tensor:
        return torch.cat([output.last_hidden_state, output.pooler_output[:, None]], dim=1)

    hold_bert(path, BertModel, bert_model, run_peer, run)


def test_masked_tokens(path):
    hold_bert(path, BertForMaskedLM, bert_masked, lambda output: output.logits, head="mlm", pooler=False)


def test_classes(path):
    hold_bert(
        path,
        BertForSequenceClassification,
        bert_classes,
        lambda output: output.logits,
        head="classes",
        classes=CLASSES,
    )
