"""What autograd keeps for the backward pass."""

import torch


def saved_bytes(model, x):
    """Every storage autograd keeps, once, but for the parameters."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)  # the tensor keeps its address from reuse
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = model(x)
    assert output.requires_grad
    return sum(size for size, _ in kept.values())
