"""A GGUF file as the package gguf writes it, in llama.cpp's names and order of rows, read where that is installed."""

import pytest
import torch
import transformers as hf

import headwise
from headwise.checkpoints import open_checkpoint
from helpers.copying import SINGLE, same, scrambled

gguf = pytest.importorskip("gguf")
HEADS, KV_HEADS, RANK, WIDTH, VOCAB = 4, 2, 8, 32, 64
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
NAMES |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
NAMES |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def in_neighbours(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """llama.cpp turns neighbours where transformers turns halves."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


@pytest.fixture
def file(tmp_path):
    sizes = {"vocab_size": VOCAB, "hidden_size": WIDTH, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "max_position_embeddings": 64}
    model = scrambled(hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, rope_theta=10_000.0, rms_norm_eps=1e-5)))
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(2)
    writer.add_feed_forward_length(64)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(RANK)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([f"<{i}>" for i in range(VOCAB)])
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types([1] * VOCAB)
    around = {"model.embed_tokens.weight": "token_embd", "model.norm.weight": "output_norm", "lm_head.weight": "output"}
    for name, tensor in model.state_dict().items():
        if name in around:
            writer.add_tensor(f"{around[name]}.weight", tensor.numpy())
            continue
        _, _, number, *inner = name.removesuffix(".weight").split(".")
        kind = NAMES[".".join(inner)]
        counts = {"attn_q": HEADS, "attn_k": KV_HEADS}
        tensor = in_neighbours(tensor, counts[kind]) if kind in counts else tensor
        writer.add_tensor(f"blk.{number}.{kind}.weight", tensor.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, tmp_path / "small.gguf"


def test_a_gguf_file_is_read_as_what_it_was_made_of(file, tmp_path):
    model, path = file
    model.save_pretrained(tmp_path / "model")
    expected, found = open_checkpoint(tmp_path / "model"), open_checkpoint(path)
    assert found.family == "llama"
    for number in range(2):
        one, two = expected.heads(number), found.heads(number)
        for name in ("query", "key", "value", "output", "frequencies"):
            same(getattr(two, name), getattr(one, name), SINGLE, name)
    assert str(headwise.inspect(path).shape) == "w32-h4-g2-L2-m64"


def test_a_gguf_file_becomes_a_folder(file, tmp_path):
    model, path = file
    done = headwise.convert(path, out=tmp_path / "folder")
    assert done.architecture == "LlamaForCausalLM"
    tokens = torch.randint(VOCAB, (1, 12))
    back = hf.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    with torch.no_grad():
        same(back(tokens).logits, model(tokens).logits, SINGLE)
    with pytest.raises(headwise.spec.SpecError, match="convert it to a folder first"):
        headwise.convert(path, "g1", out=tmp_path / "other")
