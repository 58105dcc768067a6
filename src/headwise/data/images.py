"""Images and their classes, from whatever people keep them in, as bytes in one array.

    images = load_images("photos.zip")                      # a folder or zip: train/cat/1.png, or cat/1.png
    images = load_images("cifar-10-batches-bin")            # CIFAR's binary files, or MNIST's IDX files
    images = load_images("uoft-cs/cifar10")                 # a Hugging Face data set; "" is scikit-learn's digits
    images.train.take([0, 1])                        # (2, side, side, channels), bytes; images.train.labels

Images are decoded once, kept on disk under a hash of their content and mapped into memory from there. Splits that were
published stay; a missing one is split off the training images by a hash of the pixels, so that copies of an image are
never on both sides. `image_files` knows the formats.
"""

import hashlib
import os
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, BinaryIO
from uuid import uuid4

import numpy as np

from headwise.data import cache_folder
from headwise.data.image_files import ImageFiles, scan
from headwise.extras import extra
from headwise.spec import SpecError

TEST_SHARE = 0.1  # where there is no test set
_DECODING = 1  # raised when the same files would be decoded to other bytes than before
_IN_MEMORY = 4096  # a set of fewer images is decoded faster than a cache is worth


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """The images of one split: rows of an array that may be larger than memory, in no particular order of class."""

    pixels: Any  # (all images, side, side, channels), bytes
    rows: Any  # which of them are these
    labels: Any  # class numbers, one per row

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, numbers: Any = slice(None)) -> Any:
        """(numbers, side, side, channels): those images of this part, copied; all of them by default."""
        return self.pixels[self.rows[numbers]]


@dataclass(frozen=True, eq=False)
class ImageSet:
    classes: tuple[str, ...]
    train: ImageSplit
    validation: ImageSplit
    test: ImageSplit

    @property
    def side(self) -> int:
        return int(self.train.pixels.shape[1])

    @property
    def channels(self) -> int:
        return int(self.train.pixels.shape[-1])


@lru_cache(maxsize=4)
def load_images(source: str = "", *, side: int = 0, validation: float = 0.1) -> ImageSet:
    """Every image of a source. With a side, each is scaled and its middle square cut out; else they must be equal.

    `validation` is the share of the training images that is held out where the source has no validation set.
    """
    files = scan(source)
    table = _table(files, side)
    hashes, pixels = np.array(table["hash"]), table["pixels"]
    splits = _split(files, hashes, validation)
    parts = {}
    for name in ("train", "validation", "test"):
        rows = np.flatnonzero(splits == name)
        rows = rows[np.argsort(hashes[rows], kind="stable")]  # so that a part of a part has all classes
        parts[name] = ImageSplit(pixels, rows, files.labels[rows])
    _check_parts(source, files, parts)
    return ImageSet(files.classes, **parts)


def digest(source: str = "") -> str:
    """A hash of the images with their classes and splits, the same wherever they lie."""
    return scan(source).digest


def grey(pixels: Any) -> Any:
    """The luma of images (ITU-R 601, in whole numbers as Pillow computes it): one channel for three."""
    if pixels.shape[-1] == 1:
        return pixels
    weighted = pixels.astype(np.uint32) @ np.array([19595, 38470, 7471], np.uint32)
    return ((weighted + 0x8000) >> 16).astype(np.uint8)[..., None]


def statistics(part: ImageSplit, *, as_grey: bool = False) -> tuple[Any, Any]:
    """Mean and standard deviation of each channel, in bytes; a channel that never changes has deviation 1."""
    counts: Any = 0  # of each byte, in each channel
    for first in range(0, len(part), 4096):
        pixels = part.take(slice(first, first + 4096))
        flat = (grey(pixels) if as_grey else pixels).reshape(-1, 1 if as_grey else pixels.shape[-1])
        counts = counts + np.stack([np.bincount(channel, minlength=256) for channel in flat.T])
    shares, values = counts / counts.sum(1, keepdims=True), np.arange(256)
    mean = shares @ values
    variance = (shares * (values - mean[:, None]) ** 2).sum(1)
    return mean, np.sqrt(np.where(variance > 0, variance, 1.0))


# ---- decoded once --------------------------------------------------------------------------------------------------


def _table(files: ImageFiles, side: int) -> Any:
    """Every image with a hash of what it was before scaling; from the cache, where another process has made it."""
    if len(files.labels) < _IN_MEMORY:
        return _in_memory(files, side)
    key = hashlib.sha256(f"{_DECODING} {files.digest} {side}".encode()).hexdigest()[:32]
    path = cache_folder() / "images" / f"{key}.npy"
    try:
        return np.load(path, mmap_mode="r")
    except (OSError, ValueError, EOFError):  # none there, or one that a full disk cut short
        pass
    fresh = path.with_name(f"{key}.{uuid4().hex}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(fresh, "wb") as file:
            _write(file, files, side)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
        return np.load(path, mmap_mode="r")
    except OSError:  # a cache that cannot be written only costs time
        return _in_memory(files, side)
    finally:
        with suppress(OSError):
            fresh.unlink()


def _in_memory(files: ImageFiles, side: int) -> Any:
    file = BytesIO()
    _write(file, files, side)
    file.seek(0)
    return np.load(file)


def _write(file: BinaryIO, files: ImageFiles, side: int) -> None:
    """The table as an .npy file, image by image: a set need not fit into memory."""
    shape: tuple[int, ...] = ()
    for name, image in zip(files.names, files.read(), strict=True):
        hashed = hashlib.blake2b(image.tobytes() + str(image.shape).encode(), digest_size=8).digest()
        image = _scaled(image, side) if side else image
        if not shape:
            shape = image.shape
            row = np.dtype([("hash", "<u8"), ("pixels", "u1", shape)])
            header = {"descr": np.lib.format.dtype_to_descr(row), "fortran_order": False, "shape": (len(files.names),)}
            np.lib.format.write_array_header_1_0(file, header)
        if image.shape != shape or shape[0] != shape[1]:
            size = " × ".join(map(str, image.shape[:2]))
            raise SpecError(f"{name} is {size} pixels; with side=N every image becomes a square of N × N")
        file.write(hashed + image.tobytes())


def _scaled(image: Any, side: int) -> Any:
    with extra("data", "images of another size"):
        from PIL import Image, ImageOps

    if image.shape[:2] == (side, side):
        return image
    flat = Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image)
    return np.asarray(ImageOps.fit(flat, (side, side), Image.Resampling.BICUBIC)).reshape(side, side, -1)


# ---- splits --------------------------------------------------------------------------------------------------------


def _split(files: ImageFiles, hashes: Any, validation: float) -> Any:
    """Set aside what was not published, class by class, in the order of hashes: copies of an image stay together."""
    splits = files.splits.copy()
    shares = {"test": TEST_SHARE, "validation": validation}
    missing = {part: share for part, share in shares.items() if not (splits == part).any()}
    train = np.flatnonzero(splits == "train")
    _, first, copies = np.unique(hashes[train], return_index=True, return_inverse=True)
    labels = files.labels[train][first]
    parts = np.full(len(first), "train", object)
    for number in range(len(files.classes)):
        ours = np.flatnonzero(labels == number)
        begin = 0
        for part, share in missing.items():
            end = begin + round(share * len(ours))
            parts[ours[begin:end]] = part
            begin = end
    splits[train] = parts[copies]
    return splits


def _check_parts(source: str, files: ImageFiles, parts: dict[str, ImageSplit]) -> None:
    learnt = set(parts["train"].labels.tolist())
    for name, part in parts.items():
        if not len(part):
            raise SpecError(f"{source} has no images for '{name}', and too few others to take some: {len(files.names)}")
        for row, number in zip(part.rows, part.labels.tolist(), strict=True):
            if number not in learnt:
                raise SpecError(
                    f"class '{files.classes[number]}' is in {name} ({files.names[row]}) but not in train: "
                    "nothing could learn it"
                )
