"""What a layer keeps of the tokens it has seen, for decoding."""

from torch import Tensor


class KVCache:
    """What one layer keeps of the tokens it has seen: keys and values, or the latent and the shared rotary key.

    For decoding: stored tensors carry no gradient. `capacity` tokens are allocated at first use, more when needed.
    """

    def __init__(self, capacity: int = 0) -> None:
        self.capacity = capacity
        self.length = 0
        self.stored: tuple[Tensor, ...] = ()

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Add tensors of shape (..., T, size) and return everything kept so far."""
        end = self.length + new[0].shape[-2]
        if not self.stored or end > self.stored[0].shape[-2]:
            self._grow(max(end, self.capacity, 2 * self.length), new)
        for buffer, tensor in zip(self.stored, new, strict=True):
            buffer[..., self.length : end, :] = tensor.detach()
        self.length = end
        return self.kept

    @property
    def kept(self) -> tuple[Tensor, ...]:
        return tuple(buffer[..., : self.length, :] for buffer in self.stored)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.kept)

    def _grow(self, room: int, like: tuple[Tensor, ...]) -> None:
        grown = tuple(t.new_empty(*t.shape[:-2], room, t.shape[-1]) for t in like)
        for old, buffer in zip(self.kept, grown, strict=False):
            buffer[..., : self.length, :] = old
        self.stored = grown
