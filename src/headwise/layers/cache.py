"""What a layer keeps of the tokens it has seen, for decoding."""

from torch import Tensor


class KVCache:
    """What one layer keeps of the tokens it has seen: keys and values, or the latent and the shared rotary key.

    For decoding: stored tensors carry no gradient. `capacity` tokens are allocated at first use, more when needed.
    With a `window` tokens that no later one can see are dropped: a layer of that window asks for no others.
    """

    def __init__(self, capacity: int = 0, window: int | None = None) -> None:
        self.capacity, self.window = capacity, window
        self.length = 0  # tokens seen
        self.dropped = 0  # of them, no longer kept
        self.stored: tuple[Tensor, ...] = ()

    def append(self, *new: Tensor) -> tuple[Tensor, ...]:
        """Add tensors of shape (..., T, size) and return everything that their tokens can see.

        With a window, what comes back begins at token `first` and what only earlier tokens saw is forgotten.
        """
        self.forget()
        start = self.length - self.dropped
        end = start + new[0].shape[-2]
        if not self.stored or end > self.stored[0].shape[-2]:
            self._grow(max(end, min(self.capacity, self.window or self.capacity), 2 * start), new)
        for buffer, tensor in zip(self.stored, new, strict=True):
            buffer[..., start:end, :] = tensor.detach()
        self.length = self.dropped + end
        return self.kept

    @property
    def kept(self) -> tuple[Tensor, ...]:
        return tuple(buffer[..., : self.length - self.dropped, :] for buffer in self.stored)

    @property
    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.kept)

    def forget(self) -> None:
        """Drop what the next token cannot see."""
        if self.window is None:
            return
        beyond = self.length - self.dropped - (self.window - 1)
        if beyond > 0:
            for buffer, kept in zip(self.stored, self.kept, strict=True):
                buffer[..., : self.window - 1, :] = kept[..., beyond:, :].clone()
            self.dropped += beyond

    def crop(self, length: int) -> None:
        """Go back to the first `length` tokens (to the last -length from the end, where it is negative)."""
        length = self.length + length if length < 0 else length
        if length < self.dropped:
            raise ValueError(
                f"the first {self.dropped} tokens are beyond the window of {self.window} and forgotten: "
                f"this cache cannot go back to {length}"
            )
        self.length = min(self.length, max(length, 0))

    def reorder(self, rows: Tensor) -> None:
        """Row i of the batch becomes what row `rows[i]` was: beams that others have overtaken."""
        self.stored = tuple(buffer.index_select(0, rows.to(buffer.device)) for buffer in self.stored)

    def _grow(self, room: int, like: tuple[Tensor, ...]) -> None:
        grown = tuple(t.new_empty(*t.shape[:-2], room, t.shape[-1]) for t in like)
        for old, buffer in zip(self.kept, grown, strict=False):
            buffer[..., : self.length - self.dropped, :] = old
        self.stored = grown
