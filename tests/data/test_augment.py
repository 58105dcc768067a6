"""Augmentation of images: each change against the images before it, by brute force or by Pillow."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance

from headwise.data import augment


class Fixed:
    """Random numbers that were decided before."""

    def __init__(self, *values):
        self.values = list(values)

    def uniform(self, *size):
        return torch.as_tensor(self.values.pop(0), dtype=torch.float32).expand(size)

    integers = None


class Loose:
    """Random numbers of torch."""

    def uniform(self, *size):
        return torch.rand(size)

    def integers(self, low, high, *size):
        return torch.randint(low, high, size)


def test_every_other_image_is_mirrored():
    before = torch.rand(400, 3, 6, 6)
    after = augment.flip(before, Loose())
    mirrored = (after == before.flip(-1)).all((1, 2, 3))
    assert ((after == before).all((1, 2, 3)) ^ mirrored).all()
    assert 150 < mirrored.sum() < 250


def test_a_crop_is_a_window_of_the_padded_image():
    before = torch.rand(600, 2, 16, 16) + 0.1
    after = augment.crop(before, Loose())
    padded = torch.nn.functional.pad(before, (2, 2, 2, 2))
    seen = torch.zeros(5, 5)
    for image, wide in zip(after, padded, strict=True):
        places = [(y, x) for y in range(5) for x in range(5) if torch.equal(wide[:, y : y + 16, x : x + 16], image)]
        assert len(places) == 1
        seen[places[0]] += 1
    assert seen.min() > 5


@pytest.mark.parametrize("change", [-0.4, -0.1, 0.0, 0.3, 0.4])
def test_colours_change_as_pillow_changes_them(change):
    """One of the three at a time: Pillow rounds to bytes after each."""
    pixels = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None] / 255
    for place, kind in enumerate((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)):
        numbers = torch.full((3, 1, 1, 1, 1), 0.5)
        numbers[place] = (change / augment.COLOUR + 1) / 2
        found = augment.colour(image, Fixed(numbers))[0].permute(1, 2, 0) * 255
        expected = np.asarray(kind(Image.fromarray(pixels)).enhance(1 + change)).astype(float)
        assert np.abs(found.numpy() - expected).max() < 1.5


def test_an_erased_square_has_the_mean_colour():
    """Middle at a quarter of the height and half of the width, half as large as the image."""
    image = torch.rand(1, 3, 16, 16)
    middle = torch.tensor([0.25, 0.5])[:, None, None]
    after = augment.erase(image, Fixed(1.0, middle, 0.0))
    mean = image.mean((2, 3), keepdim=True)
    expected = image.clone()
    expected[:, :, 0:8, 4:12] = mean
    torch.testing.assert_close(after, expected)
    assert torch.equal(augment.erase(image, Fixed(1.0, middle, 0.9)), image)


@given(kind=st.sampled_from(sorted(augment.KINDS)), channels=st.sampled_from([1, 3]), side=st.integers(1, 20))
def test_augmented_images_stay_images(kind, channels, side):
    before = torch.rand(5, channels, side, side)
    after = augment.augment(before, kind, Loose())
    assert after.shape == before.shape
    assert after.min() >= 0
    assert after.max() <= 1
    assert kind != "none" or torch.equal(before, after)
