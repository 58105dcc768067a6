"""What a source of images holds, before anything is decoded: one reader per format, all giving the same `ImageFiles`.

Folders, zips and data sets hold encoded images, which Pillow decodes; CIFAR, MNIST and the digits hold arrays. What
cannot be read is named: the file, and inside it the record, counted from 1.
"""

import gzip
import hashlib
import os
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from headwise.data import files, hub, read_bytes
from headwise.extras import extra
from headwise.spec import SpecError

SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
LARGEST_IMAGE, LARGEST_ARRAY = 2**28, 2**32  # bytes that one file of an archive, or a packed one, may come to
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLITS |= dict.fromkeys(("validation", "val", "valid", "dev"), "validation")
_CIFAR_SIDE = 32
_CIFAR_10 = {f"data_batch_{i}.bin": "train" for i in range(1, 6)} | {"test_batch.bin": "test"}
_CIFAR_100 = {"train.bin": "train", "test.bin": "test"}
_PICKLED = {"data_batch_1", "batches.meta", "meta"}
_IDX = re.compile(r"(train|t10k)-images[-.]idx3-ubyte(\.gz)?")


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """`read` gives every image as it is, (height, width, channels), in the order of the other fields."""

    classes: tuple[str, ...]
    splits: Any  # train, validation or test
    labels: Any
    names: list[str]  # what a message calls each image
    digest: str
    read: Callable[[], Iterable[Any]]


@lru_cache(maxsize=4)
def scan(source: str) -> ImageFiles:
    if not source:
        return _scan_digits()
    place = Path(source).expanduser()
    if hub.is_dataset(source):
        return _scan_dataset(source)
    if not place.exists():
        raise hub.no_source(source)
    if place.is_file():
        if not zipfile.is_zipfile(place):
            raise SpecError(
                f"{place} is not a complete zip file; give a zip or a folder of images, or CIFAR's or MNIST's folder"
            )
        return _scan_files(place)
    present = {file.name for file in place.iterdir() if file.is_file()}
    if present & {*_CIFAR_10, *_CIFAR_100}:
        return _scan_cifar(place, present)
    if present & _PICKLED:
        raise SpecError(
            f"{place} is CIFAR's pickled form, and reading a pickle runs whatever code is in it; "
            "give the folder of the binary version (.bin files), from the same page"
        )
    if any(_IDX.fullmatch(name) for name in present):
        return _scan_idx(place, present)
    return _scan_files(place)


def _scan_digits() -> ImageFiles:
    with extra("data", "scikit-learn's digits"):
        from sklearn.datasets import load_digits

    def read() -> Any:
        digits = load_digits()
        return digits.target, np.round(digits.images * (255 / 16)).astype(np.uint8)[..., None]

    return _from_arrays(_numbered(10), [("train", "scikit-learn's digits", read)])


# ---- folders, zips and data sets: encoded images -------------------------------------------------------------------


def _scan_files(place: Path) -> ImageFiles:
    names = _image_names(place)
    if not names:
        raise SpecError(f"{place} holds no images ({', '.join(sorted(SUFFIXES))})")
    splits, labels = _places(place, names)
    return _from_encoded(splits, labels, [f"{place}: {name}" for name in names], lambda: _contents(place, names))


def _image_names(place: Path) -> list[str]:
    if place.is_dir():
        return [name for file in files(place) if _is_image(name := file.relative_to(place).as_posix())]
    with _refusing(str(place)), zipfile.ZipFile(place) as archive:
        return sorted(filter(_is_image, archive.namelist()))


def _contents(place: Path, names: list[str]) -> Iterator[bytes]:
    if place.is_dir():
        yield from (read_bytes(place / name) for name in names)
        return
    with zipfile.ZipFile(place) as archive:
        for name in names:
            with _refusing(f"{place}: {name}"), archive.open(name) as entry:
                data = entry.read(LARGEST_IMAGE + 1)  # however little the archive says it is
            if len(data) > LARGEST_IMAGE:
                raise SpecError(
                    f"{place}: {name} unpacks to more than {LARGEST_IMAGE >> 20} MiB, too much for an image"
                )
            yield data


def _is_image(name: str) -> bool:
    hidden = any(part.startswith((".", "__MACOSX")) for part in name.split("/"))
    return not hidden and os.path.splitext(name)[1].lower() in SUFFIXES


def _places(place: Path, names: list[str]) -> tuple[list[str], list[str]]:
    """Split and class of each file, by the folders it is in. Folders around everything say nothing and are skipped."""
    paths = [name.split("/") for name in names]
    while len({path[0] for path in paths}) == 1 and min(map(len, paths)) > 2 and paths[0][0].lower() not in _SPLITS:
        paths = [path[1:] for path in paths]
    splits = ["train"] * len(paths)
    if all(path[0].lower() in _SPLITS for path in paths):
        splits = [_SPLITS[path[0].lower()] for path in paths]
        paths = [path[1:] for path in paths]
    for name, path in zip(names, paths, strict=True):
        if len(path) < 2:
            raise SpecError(f"{place}: {name} lies in no class folder; name it CLASS/FILE, or train/CLASS/FILE")
    return splits, [path[0] for path in paths]


def _scan_dataset(source: str) -> ImageFiles:
    train = hub.load_split(source, "train")
    kinds = {name: type(kind).__name__ for name, kind in train.features.items()}
    images = [name for name, kind in kinds.items() if kind == "Image"]
    named = [name for name, kind in kinds.items() if kind == "ClassLabel"]
    label = next((name for name in ("label", "fine_label") if name in named), named[0] if len(named) == 1 else "")
    if len(images) != 1 or not label:
        raise SpecError(f"data set '{source}' needs one column of images and one of classes, but it has {kinds}")
    published = {_SPLITS[name]: name for name in train.info.splits or () if name in _SPLITS} | {"train": "train"}
    rows = {part: train if part == "train" else hub.load_split(source, name) for part, name in published.items()}
    numbers = {part: np.array([-1 if n is None else n for n in data[label]]) for part, data in rows.items()}
    for part, column in numbers.items():
        if (column < 0).any():
            record = int((column < 0).argmax()) + 1
            raise SpecError(f"{source}, {published[part]}, record {record} has no label")
    known = train.features[label].names
    splits = [part for part, data in rows.items() for _ in range(len(data))]
    labels = [known[number] for column in numbers.values() for number in column]
    shown = [f"{source}, {published[part]}, record {i + 1}" for part, data in rows.items() for i in range(len(data))]

    def read() -> Iterator[bytes]:
        from datasets import Image

        encoded = (data.cast_column(images[0], Image(decode=False)) for data in rows.values())
        for name, row in zip(shown, (row for data in encoded for row in data), strict=True):
            image = row[images[0]]
            if image is None:
                raise SpecError(f"{name} has no image")
            yield image["bytes"] if image["bytes"] is not None else read_bytes(Path(image["path"]))

    return _from_encoded(splits, labels, shown, read)


def _from_encoded(
    splits: list[str], labels: list[str], names: list[str], contents: Callable[[], Iterable[bytes]]
) -> ImageFiles:
    hashed = hashlib.sha256()
    for split, label, data in zip(splits, labels, contents(), strict=True):
        hashed.update(f"{split}/{label}/{hashlib.sha256(data).hexdigest()}\n".encode())
    classes = {label: number for number, label in enumerate(sorted(set(labels)))}
    numbers = np.array([classes[label] for label in labels])
    digest = hashed.hexdigest()[:16]
    return ImageFiles(
        tuple(classes), np.array(splits, object), numbers, names, digest, lambda: _decoded(names, contents)
    )


def _decoded(names: list[str], contents: Callable[[], Iterable[bytes]]) -> Iterator[Any]:
    """Every image, grey if all of them are; the files' headers are checked for that first."""
    with extra("data", "image files"):
        from PIL import Image

    coloured = False
    for name, data in zip(names, contents(), strict=True):
        with _refusing(name), Image.open(BytesIO(data)) as image:
            if image.mode.startswith(("I", "F")):
                raise SpecError(f"{name} has pixels of more than 8 bits ({image.mode}); convert it to 8")
            coloured = coloured or image.mode not in ("1", "L", "LA")
    for name, data in zip(names, contents(), strict=True):
        with _refusing(name), Image.open(BytesIO(data)) as image:
            pixels = np.asarray(image.convert("RGB" if coloured else "L"))
        yield pixels if coloured else pixels[..., None]


@contextmanager
def _refusing(name: str) -> Iterator[None]:
    """Broken images and archives raise errors of many kinds; all of them mean that this file cannot be used."""
    try:
        yield
    except SpecError:
        raise
    except Exception as error:
        raise SpecError(f"{name} cannot be read: {error or type(error).__name__}; repair or remove it") from None


# ---- CIFAR and MNIST: arrays in files of their own -----------------------------------------------------------------


def _scan_cifar(folder: Path, present: set[str]) -> ImageFiles:
    hundred = not present & set(_CIFAR_10)
    expected, count = (_CIFAR_100, 100) if hundred else (_CIFAR_10, 10)
    absent = sorted(set(expected) - present)
    if absent:
        raise SpecError(f"{folder} has no {', '.join(absent)}; fetch the whole set again")
    titles = folder / ("fine_label_names.txt" if hundred else "batches.meta.txt")
    classes = tuple(read_bytes(titles).decode("utf-8", "replace").split()) if titles.exists() else _numbered(count)
    if len(classes) != count:
        raise SpecError(f"{titles} names {len(classes)} classes, but there are {count}")
    blocks = [(split, str(folder / name), _cifar(folder / name, count)) for name, split in expected.items()]
    return _from_arrays(classes, blocks)


def _cifar(file: Path, classes: int) -> Callable[[], Any]:
    """Records of one label byte (CIFAR-100: two, coarse and fine) and the pixels, channel by channel."""
    head = 2 if classes == 100 else 1
    record = head + 3 * _CIFAR_SIDE**2

    def read() -> Any:
        data = np.frombuffer(read_bytes(file), np.uint8)
        if not data.size or data.size % record:
            at, rest = divmod(data.size, record)
            raise SpecError(f"{file}: record {at + 1} has {rest} of {record} bytes; fetch the file again")
        rows = data.reshape(-1, record)
        pixels = rows[:, head:].reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE).transpose(0, 2, 3, 1)
        return rows[:, head - 1].astype(np.int64), pixels

    return read


def _scan_idx(folder: Path, present: set[str]) -> ImageFiles:
    blocks = []
    for name in sorted(filter(_IDX.fullmatch, present), reverse=True):
        labels = name.replace("images", "labels").replace("idx3", "idx1")
        beside = [labels.removesuffix(".gz"), labels.removesuffix(".gz") + ".gz"]
        file = next((folder / other for other in beside if other in present), None)
        if file is None:
            raise SpecError(f"{folder / name} has no labels beside it: {beside[0]} is missing")
        blocks.append(("train" if name.startswith("train") else "test", str(folder / name), _idx(folder / name, file)))
    seen = {split for split, _, _ in blocks}
    if len(seen) < len(blocks) or "train" not in seen:
        raise SpecError(f"{folder} should hold train-images-idx3-ubyte once, packed or not, and t10k-images with it")
    return _from_arrays((), blocks)


def _idx(images: Path, labels: Path) -> Callable[[], Any]:
    def read() -> Any:
        pixels, numbers = _idx_array(images, 3), _idx_array(labels, 1)
        if len(pixels) != len(numbers):
            raise SpecError(f"{images} has {len(pixels)} images, but {labels} has {len(numbers)} labels")
        return numbers.astype(np.int64), pixels[..., None]

    return read


def _idx_array(file: Path, dimensions: int) -> Any:
    """Two zero bytes, the type (8: bytes), the number of dimensions, their sizes (big-endian), and the numbers."""
    data = read_bytes(file)
    if file.suffix == ".gz":
        try:
            with gzip.GzipFile(fileobj=BytesIO(data)) as unpacked:
                data = unpacked.read(LARGEST_ARRAY + 1)
        except (OSError, EOFError, zlib.error) as error:
            raise SpecError(f"{file} cannot be unpacked: {error}; fetch the file again") from None
        if len(data) > LARGEST_ARRAY:
            raise SpecError(f"{file} unpacks to more than {LARGEST_ARRAY >> 30} GiB; fetch the file again")
    begin = 4 + 4 * dimensions
    if len(data) < begin or data[:4] != bytes([0, 0, 8, dimensions]):
        raise SpecError(f"{file} is no IDX file of bytes in {dimensions} dimensions; fetch the file again")
    sizes = [int.from_bytes(data[at : at + 4], "big") for at in range(4, begin, 4)]
    record = int(np.prod(sizes[1:], dtype=object))
    if not all(sizes) or len(data) - begin != sizes[0] * record:
        at = (len(data) - begin) // max(record, 1) + 1
        raise SpecError(f"{file} should hold {sizes[0]} records of {record} bytes, but ends in record {at}")
    return np.frombuffer(data, np.uint8, offset=begin).reshape(sizes)


def _from_arrays(classes: tuple[str, ...], blocks: list[tuple[str, str, Callable[[], Any]]]) -> ImageFiles:
    """A set of (split, name, reader of labels and pixels); without class names they are as many as the labels say."""
    hashed = hashlib.sha256()
    splits, labels, names = [], [], []
    for split, name, read in blocks:
        numbers, pixels = read()
        known = len(classes) or 256
        if (numbers >= known).any():
            record = int((numbers >= known).argmax())
            raise SpecError(f"{name}: record {record + 1} has label {numbers[record]}, but there are {known} classes")
        hashed.update(f"{split} {pixels.shape}".encode() + numbers.tobytes() + pixels.tobytes())
        splits += [split] * len(numbers)
        labels.append(numbers)
        names += [f"{name}: record {i + 1}" for i in range(len(numbers))]
    together = np.concatenate(labels)
    classes = classes or _numbered(int(together.max()) + 1)
    digest = hashlib.sha256(hashed.digest() + "\n".join(classes).encode()).hexdigest()[:16]
    return ImageFiles(
        classes,
        np.array(splits, object),
        together,
        names,
        digest,
        lambda: (p for *_, read in blocks for p in read()[1]),
    )


def _numbered(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))
