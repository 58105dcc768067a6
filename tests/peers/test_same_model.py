"""The same model gives the same loss: first weights as the original's, and the same steps from the same weights.

Originals: transformers' models; where `HEADWISE_PEERS` points to their sources, nanoGPT and nanochat too.
"""

import importlib
import math

import pytest
import torch

from headwise.models import build
from headwise.options import preset
from helpers.copying import Tensors, load, named
from helpers.families import CONTEXT, DEPTH, FAMILIES, HEADS, VOCAB, WIDTH, losses, nano_gpt, nanochat, peers

needs_peers = pytest.mark.skipif(peers() is None, reason="HEADWISE_PEERS does not point to the originals' sources")
OWN = [name for name in FAMILIES if name != "nanochat"]  # transformers' nanochat does not begin as nanochat does
STEPS = 100


class Double:
    """torch, but what is asked for in float32 is float64: the original's own code, computed as exactly as ours."""

    float32 = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def apply(model, inputs):
    return model(inputs)


def assert_begin_alike(ours: Tensors, theirs: Tensors) -> None:
    """Mean and standard deviation of each tensor, to within five standard errors of two samples."""
    assert ours.keys() == theirs.keys()
    for name in ours:
        stated, found = (tensor.double().std(correction=0).item() for tensor in (theirs[name], ours[name]))
        allowed = 5 * max(stated, found) / math.sqrt(ours[name].numel())
        assert abs(found - stated) <= allowed, f"{name}: {found:.4f}, the original's {stated:.4f}"
        assert abs((ours[name].mean() - theirs[name].mean()).item()) <= 2 * allowed, name


@pytest.mark.parametrize("name", OWN)
def test_every_tensor_begins_as_the_original_does(name):
    ours, theirs = named(FAMILIES[name].ours()), FAMILIES[name].translate(named(FAMILIES[name].peer()))
    if name == "bert":  # its row of padding is 0 and never learns; ours has no such row
        for tensors in (ours, theirs):
            tensors["embedding.weight"] = tensors["embedding.weight"][1:]
    assert_begin_alike(ours, theirs)


@needs_peers
def test_gpt2_begins_as_nano_gpt_does():
    ours = build(f"w{WIDTH}-h{HEADS}-L{DEPTH}", preset("gpt2", init="gpt2", vocab=VOCAB, context=CONTEXT))
    assert_begin_alike(named(ours), FAMILIES["gpt2"].translate(nano_gpt_tensors(nano_gpt())))


@needs_peers
def test_nanochat_begins_as_nanochat_does():
    """The tensors that both have: value embeddings, smear and residual scalars are not modelled."""
    ours = build(f"w{WIDTH}-h{HEADS}-L{DEPTH}", preset("nanochat", init="nanochat", vocab=VOCAB))
    theirs = named(nanochat())
    wanted = {
        "embedding.weight": theirs["transformer.wte.weight"][:VOCAB],
        "head.weight": theirs["lm_head.weight"][:VOCAB],
    }
    for layer in range(DEPTH):
        start = f"transformer.h.{layer}."
        rows = [theirs[f"{start}attn.c_{part}.weight"] for part in "qkv"]
        wanted |= {f"body.blocks.{layer}.attention.input.weight": torch.cat(rows)}
        names = {"attention.output": "attn.c_proj", "mlp.input": "mlp.c_fc", "mlp.output": "mlp.c_proj"}
        wanted |= {
            f"body.blocks.{layer}.{ours}.weight": theirs[f"{start}{name}.weight"] for ours, name in names.items()
        }
    assert_begin_alike(named(ours), wanted)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_hundred_steps_are_the_originals(name, monkeypatch):
    family = FAMILIES[name]
    peer, ours = family.peer().double(), family.ours().double()
    if family.module:
        code = importlib.import_module(f"transformers.models.{family.module}.modeling_{family.module}")
        monkeypatch.setattr(code, "torch", Double())
    load(ours, peer, family.translate)
    theirs, found = losses(peer, family.logits, name, STEPS), losses(ours, apply, name, STEPS)
    assert found[-1] < 0.9 * found[0]
    assert found == pytest.approx(theirs, rel=1e-6)


@needs_peers
def test_a_hundred_steps_are_nano_gpts():
    ours = build(f"w{WIDTH}-h{HEADS}-L{DEPTH}", preset("gpt2", init="gpt2", vocab=VOCAB, context=CONTEXT)).double()
    peer = nano_gpt().double()
    ours.load_state_dict(FAMILIES["gpt2"].translate(nano_gpt_tensors(peer)))
    theirs = losses(peer, lambda model, inputs: model(inputs, inputs)[0], "gpt2", STEPS)
    assert losses(ours, apply, "gpt2", STEPS) == pytest.approx(theirs, rel=1e-6)


def nano_gpt_tensors(model) -> Tensors:
    """Under transformers' names: nanoGPT keeps matrices as torch does, transformers transposed; its head is tied."""
    tensors = {name: tensor for name, tensor in named(model).items() if name != "lm_head.weight"}
    return {name: tensor.mT if ".h." in name and tensor.dim() == 2 else tensor for name, tensor in tensors.items()}
