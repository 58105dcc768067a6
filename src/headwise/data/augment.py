"""The usual augmentations of images, each over a whole batch at once, with random numbers that the caller brings.

Images are (batch, channels, side, side) in [0, 1]. Every image gets numbers of its own, so a batch that is drawn again
from the same address is augmented in the same way.
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

COLOUR = 0.4  # how far brightness, contrast and saturation may go from 1
CROP = 8  # padding is the side divided by this: 4 pixels for CIFAR
ERASED = (0.125, 0.5)  # side of the erased square, as a part of the image's


class Numbers(Protocol):
    """Where random numbers come from, in order."""

    def uniform(self, *size: int) -> Tensor: ...

    def integers(self, low: int, high: int, *size: int) -> Tensor: ...


def flip(images: Tensor, numbers: Numbers) -> Tensor:
    """Every other image mirrored, left and right."""
    mirrored = numbers.uniform(len(images)) < 0.5
    return torch.where(mirrored[:, None, None, None], images.flip(-1), images)


def crop(images: Tensor, numbers: Numbers) -> Tensor:
    """A window as large as the image, moved by up to the padding in each direction; black outside."""
    batch, _, side, _ = images.shape
    margin = max(1, side // CROP)
    padded = F.pad(images, (margin, margin, margin, margin))
    corner = numbers.integers(0, 2 * margin + 1, 2, batch, 1)
    place = torch.arange(side, device=images.device)
    down, right = corner + place  # (batch, side) each
    sample = torch.arange(batch, device=images.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[sample, down[:, :, None], right[:, None, :]].permute(0, 3, 1, 2)


def colour(images: Tensor, numbers: Numbers) -> Tensor:
    """Brightness, contrast and (with three channels) saturation, each by a factor of its own."""
    factors = 1 + COLOUR * (2 * numbers.uniform(3, len(images), 1, 1, 1) - 1)
    images = (images * factors[0]).clamp(0, 1)
    images = blend(luma(images).mean((-2, -1), keepdim=True), images, factors[1])
    return blend(luma(images), images, factors[2]) if images.shape[1] == 3 else images


def erase(images: Tensor, numbers: Numbers) -> Tensor:
    """In every other image a square is replaced by the image's mean colour; it may reach over the edge."""
    batch, _, side, _ = images.shape
    low, high = ERASED
    half = side * (low + (high - low) * numbers.uniform(batch, 1)) / 2
    middle = side * numbers.uniform(2, batch, 1)
    place = torch.arange(side, device=images.device) + 0.5
    down, right = (place - middle).abs() < half
    chosen = (numbers.uniform(batch) < 0.5)[:, None, None]
    inside = (chosen & down[:, :, None] & right[:, None, :])[:, None]
    return torch.where(inside, images.mean((-2, -1), keepdim=True), images)


KINDS = {
    "none": (),
    "crop": (crop,),
    "flip": (flip,),
    "crop-flip": (crop, flip),
    "full": (crop, flip, colour, erase),
}


def augment(images: Tensor, kind: str, numbers: Numbers) -> Tensor:
    for change in KINDS[kind]:
        images = change(images, numbers)
    return images


def luma(images: Tensor) -> Tensor:
    """(batch, 1, side, side): how bright each pixel is to the eye."""
    if images.shape[1] != 3:
        return images.mean(1, keepdim=True)
    weights = images.new_tensor([0.299, 0.587, 0.114])
    return torch.einsum("bchw,c->bhw", images, weights)[:, None]


def blend(plain: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """Away from the plain picture (factor over 1), or towards it."""
    return (plain + (images - plain) * factor).clamp(0, 1)
