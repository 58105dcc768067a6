"""Reading images: every format against bytes written here by its description, every kind of damage by its message."""

import gzip
import zipfile
from io import BytesIO
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from headwise.data import images
from headwise.data.image_files import scan
from headwise.spec import SpecError

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "cache"))


def noise(*size):
    return RANDOM.integers(0, 256, size, dtype=np.uint8)


def encoded(pixels, kind="PNG"):
    file = BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def write_folder(folder, contents):
    for name, data in contents.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return str(folder)


def write_zip(path, contents):
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    return str(path)


def forget():
    """What another process would have in memory: nothing."""
    images.load_images.cache_clear()
    scan.cache_clear()


def as_set(part):
    return {image.tobytes() for image in part.take()}


def tree(classes=("cat", "dog"), splits=("train", "test"), count=20, side=8):
    """Names and pixels of a set with published splits."""
    return {f"{s}/{c}/{i}.png": noise(side, side, 3) for s in splits for c in classes for i in range(count)}


# ---- folders and zips ----------------------------------------------------------------------------------------------


def test_a_folder_is_read_as_it_was_written(tmp_path):
    pixels = tree()
    found = images.load_images(write_folder(tmp_path / "set", {name: encoded(image) for name, image in pixels.items()}))
    assert found.classes == ("cat", "dog")
    assert (found.side, found.channels) == (8, 3)
    assert (len(found.train), len(found.validation), len(found.test)) == (36, 4, 40)
    for part in (found.train, found.validation, found.test):
        for image, label in zip(part.take(), part.labels, strict=True):
            name = next(name for name, other in pixels.items() if np.array_equal(other, image))
            assert name.split("/")[1] == found.classes[label]
            assert (part is found.test) == name.startswith("test")


def test_a_zip_and_a_folder_of_the_same_are_the_same(tmp_path):
    contents = {name: encoded(image) for name, image in tree().items()}
    folder = write_folder(tmp_path / "set", contents)
    zipped = write_zip(tmp_path / "set.zip", {f"around/all/{name}": data for name, data in reversed(contents.items())})
    assert images.digest(folder) == images.digest(zipped)
    one, other = images.load_images(folder), images.load_images(zipped)
    assert np.array_equal(one.train.take(), other.train.take())
    assert np.array_equal(one.test.labels, other.test.labels)
    moved = {name.replace("train/cat/0", "train/dog/x"): data for name, data in contents.items()}
    assert images.digest(write_folder(tmp_path / "moved", moved)) != images.digest(folder)


def test_what_is_no_image_is_passed_over_and_jpeg_is_what_pillow_says(tmp_path):
    contents = {f"{c}/{i}.jpg": encoded(noise(8, 8, 3), "JPEG") for c in "ab" for i in range(10)}
    rest = {"README.txt": b"hello", "a/.hidden.png": b"no", "__MACOSX/a/0.jpg": b"no", "b/notes.md": b""}
    found = images.load_images(write_zip(tmp_path / "set.zip", contents | rest))
    parts = (found.train, found.validation, found.test)
    read = set().union(*(as_set(part) for part in parts))
    assert read == {np.asarray(Image.open(BytesIO(data))).tobytes() for data in contents.values()}


def test_a_set_is_grey_only_if_every_image_is(tmp_path):
    grey = {f"{c}/{i}.png": encoded(noise(6, 6)) for c in "ab" for i in range(10)}
    assert images.load_images(write_folder(tmp_path / "grey", grey)).channels == 1
    mixed = images.load_images(write_folder(tmp_path / "mixed", grey | {"a/x.png": encoded(noise(6, 6, 3))}))
    assert mixed.channels == 3
    flat = sum(int((image == image[..., :1]).all()) for part in (mixed.train, mixed.test) for image in part.take())
    assert flat >= len(mixed.train) + len(mixed.test) - 1


@pytest.mark.parametrize("size", [(12, 12), (16, 9), (9, 16)])
def test_scaling_keeps_the_middle_square(tmp_path, size):
    picture = Image.fromarray(np.add.outer(np.arange(size[0]) * 9, np.arange(size[1]) * 5).astype(np.uint8))
    contents = {f"{c}/{i}.png": encoded(noise(*size)) for c in "ab" for i in range(10)}
    contents["a/0.png"] = encoded(np.asarray(picture))
    found = images.load_images(write_folder(tmp_path / "set", contents), side=6)
    width, height = picture.size
    edge = min(width, height)
    left, top = (width - edge) / 2, (height - edge) / 2
    middle = picture.resize((6, 6), Image.Resampling.BICUBIC, box=(left, top, left + edge, top + edge))
    every = np.concatenate([part.take() for part in (found.train, found.validation, found.test)]).astype(int)
    assert np.abs(every[..., 0] - np.asarray(middle)).max((1, 2)).min() <= 1
    scaled = {image.tobytes(): "train" for image in found.train.take()}
    assert len(scaled) == len(found.train)


# ---- CIFAR, MNIST, the digits, data sets ---------------------------------------------------------------------------


def write_cifar(folder, hundred=False, count=60):
    """Each record: (coarse label,) label, then the red plane row by row, the green, the blue."""
    names = ["train.bin", "test.bin"] if hundred else [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    made = {}
    folder.mkdir()
    for name in names:
        labels, planes = np.arange(count) % 10, noise(count, 3, 32, 32)
        records = [
            bytes([7, label] if hundred else [label]) + plane.tobytes()
            for label, plane in zip(labels, planes, strict=True)
        ]
        (folder / name).write_bytes(b"".join(records))
        made[name] = (labels, planes)
    return made


@pytest.mark.parametrize("hundred", [False, True])
def test_cifar_as_its_page_describes_it(tmp_path, hundred):
    made = write_cifar(tmp_path / "cifar", hundred)
    found = images.load_images(str(tmp_path / "cifar"))
    assert len(found.classes) == (100 if hundred else 10)
    labels, planes = made["test.bin" if hundred else "test_batch.bin"]
    assert len(found.test) == len(labels)
    for image, label in zip(found.test.take(), found.test.labels, strict=True):
        at = next(
            i for i, plane in enumerate(planes) if plane[0, 0, 0] == image[0, 0, 0] and plane[2, 5, 9] == image[5, 9, 2]
        )
        assert np.array_equal(np.stack(planes[at], axis=-1), image)
        assert labels[at] == label
    assert len(found.train) + len(found.validation) == 60 * (len(made) - 1)


def test_cifar_knows_its_class_names(tmp_path):
    write_cifar(tmp_path / "cifar")
    (tmp_path / "cifar" / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    assert images.load_images(str(tmp_path / "cifar")).classes == tuple("abcdefghij")


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, 8, array.ndim]) + sizes + array.astype(np.uint8).tobytes()


def mnist(count=40):
    made = {}
    for part in ("train", "t10k"):
        made[f"{part}-images-idx3-ubyte"] = idx(noise(count, 7, 7))
        made[f"{part}-labels-idx1-ubyte"] = idx(np.arange(count) % 4)
    return made


def test_mnist_packed_or_not(tmp_path):
    made = mnist()
    plain = write_folder(tmp_path / "plain", made)
    packed = write_folder(tmp_path / "packed", {f"{name}.gz": gzip.compress(data) for name, data in made.items()})
    assert images.digest(plain) == images.digest(packed)
    found = images.load_images(packed)
    assert found.classes == ("0", "1", "2", "3")
    assert (len(found.train), len(found.validation), len(found.test)) == (36, 4, 40)
    pixels = np.frombuffer(made["t10k-images-idx3-ubyte"][16:], np.uint8).reshape(40, 7, 7, 1)
    assert as_set(found.test) == {image.tobytes() for image in pixels}


def test_the_digits_are_scikit_learns():
    from sklearn.datasets import load_digits

    found = images.load_images("")
    parts = (found.train, found.validation, found.test)
    assert sum(map(len, parts)) == 1797
    counted = sum(np.bincount(part.labels, minlength=10) for part in parts)
    assert np.array_equal(counted, np.bincount(load_digits().target))
    assert found.train.take().max() == 255


@pytest.fixture
def write_dataset(tmp_path, monkeypatch):
    """A folder of parquet files, as Hugging Face's own library writes them."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hub")
    features = datasets.Features({"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=["dog", "cat"])})

    def write(**parts):
        (tmp_path / "set").mkdir()
        for part, (pixels, labels) in parts.items():
            pictures = [None if image is None else Image.fromarray(image) for image in pixels]
            rows = datasets.Dataset.from_dict({"img": pictures, "fine_label": labels}, features=features)
            rows.to_parquet(str(tmp_path / "set" / f"{part}.parquet"))
        return str(tmp_path / "set")

    return write


def test_a_data_set_of_parquet_files(write_dataset):
    pixels = {part: noise(20, 8, 8, 3) for part in ("train", "test")}
    found = images.load_images(write_dataset(**{part: (pixels[part], [0] * 8 + [1] * 12) for part in pixels}))
    assert found.classes == ("cat", "dog")
    assert as_set(found.test) == {image.tobytes() for image in pixels["test"]}
    assert as_set(found.train) | as_set(found.validation) == {image.tobytes() for image in pixels["train"]}
    dogs = {image.tobytes() for image in pixels["test"][:8]}
    assert {image.tobytes() for image in found.test.take(found.test.labels == 1)} == dogs


@pytest.mark.parametrize(("empty", "message"), [("image", "record 3 has no image"), ("label", "record 3 has no label")])
def test_holes_in_a_data_set_are_named(write_dataset, empty, message):
    pixels, labels = list(noise(20, 8, 8, 3)), [0, 1] * 10
    if empty == "image":
        pixels[2] = None
    else:
        labels[2] = None
    with pytest.raises(SpecError, match=f"set, train, {message}"):
        images.load_images(write_dataset(train=(pixels, labels)))


# ---- splits --------------------------------------------------------------------------------------------------------


def test_what_has_no_splits_is_split_in_every_class_alike(tmp_path):
    contents = {f"{c}/{i}.png": encoded(noise(4, 4)) for c, n in (("a", 100), ("b", 50)) for i in range(n)}
    found = images.load_images(write_zip(tmp_path / "set.zip", contents), validation=0.2)
    counts = [np.bincount(part.labels).tolist() for part in (found.train, found.validation, found.test)]
    assert counts == [[70, 35], [20, 10], [10, 5]]
    first = np.bincount(found.train.labels[:40], minlength=2)
    assert first.min() > 3, "a part of a part must have all classes"


@settings(max_examples=12)
@given(copies=st.lists(st.integers(0, 30), min_size=60, max_size=120), labels=st.randoms(use_true_random=False))
def test_copies_are_never_on_both_sides(tmp_path_factory, copies, labels):
    """Also where the same picture lies in two classes, and whatever a copy's file is called."""
    contents = {}
    for number, picture in enumerate([*copies, *range(31)]):
        pixels = np.full((4, 4), picture * 8, np.uint8)
        contents[f"{labels.choice('ab')}/{number}.png"] = encoded(pixels)
    contents |= {f"{c}/only-{i}.png": encoded(noise(4, 4)) for c in "ab" for i in range(20)}
    found = images.load_images(write_zip(tmp_path_factory.mktemp("set") / "set.zip", contents))
    train, validation, test = as_set(found.train), as_set(found.validation), as_set(found.test)
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert len(found.train) + len(found.validation) + len(found.test) == len(contents)


def test_a_split_is_the_same_at_every_side(tmp_path):
    contents = {f"{c}/{i}.png": encoded(np.full((8, 8), 12 * i, np.uint8)) for c in "a" for i in range(20)}
    contents |= {f"b/{i}.png": encoded(np.full((8, 8), 12 * i + 6, np.uint8)) for i in range(20)}
    source = write_zip(tmp_path / "set.zip", contents)
    one, other = images.load_images(source), images.load_images(source, side=4)
    assert one.test.take()[:, 0, 0, 0].tolist() == other.test.take()[:, 0, 0, 0].tolist()


# ---- the cache -----------------------------------------------------------------------------------------------------


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "_IN_MEMORY", 0)
    source = write_zip(tmp_path / "set.zip", {name: encoded(image) for name, image in tree().items()})
    before = images.load_images(source)
    (file,) = (tmp_path / "cache" / "images").iterdir()
    forget()
    return SimpleNamespace(source=source, file=file, before=before)


def test_images_are_decoded_once(cached):
    """The second process has what the first one wrote: a mark made in the file is in the pixels."""
    assert isinstance(cached.before.train.pixels, np.memmap)
    data = bytearray(cached.file.read_bytes())
    data[-1] ^= 255
    cached.file.write_bytes(data)
    again = images.load_images(cached.source)
    row = len(again.train.pixels) - 1
    assert again.train.pixels[row, -1, -1, -1] == data[-1]


@pytest.mark.parametrize("left", [0, 40, -100])
def test_a_cache_that_was_cut_short_is_made_again(cached, left):
    expected = cached.before.train.take()
    cached.file.write_bytes(cached.file.read_bytes()[:left])
    assert np.array_equal(images.load_images(cached.source).train.take(), expected)
    assert [file.name for file in cached.file.parent.iterdir()] == [cached.file.name]


def test_other_sides_and_other_content_have_files_of_their_own(cached, tmp_path):
    images.load_images(cached.source, side=4)
    images.load_images(write_zip(tmp_path / "other.zip", {name: encoded(image) for name, image in tree().items()}))
    images.load_images(cached.source)
    assert len(list(cached.file.parent.iterdir())) == 3


def test_without_a_place_to_write_everything_works(cached, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("HEADWISE_CACHE", str(tmp_path / "file" / "cache"))
    assert np.array_equal(images.load_images(cached.source).train.take(), cached.before.train.take())


def test_a_broken_image_leaves_nothing_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(images, "_IN_MEMORY", 0)
    contents = {name: encoded(image) for name, image in tree().items()}
    contents["train/dog/9.png"] = contents["train/dog/9.png"][:-40]
    with pytest.raises(SpecError, match=r"set.zip: train/dog/9.png cannot be read: "):
        images.load_images(write_zip(tmp_path / "set.zip", contents))
    assert list((tmp_path / "cache" / "images").iterdir()) == []


# ---- damage --------------------------------------------------------------------------------------------------------


def changed(contents, **changes):
    return {**contents, **changes}


TREE = {name: encoded(image) for name, image in tree().items()}
FOLDERS = {
    "empty": ({}, "holds no images"),
    "no class": (TREE | {"train/x.png": encoded(noise(8, 8, 3))}, r"train/x.png lies in no class folder"),
    "only in test": (
        TREE | {"test/owl/1.png": encoded(noise(8, 8, 3))},
        r"class 'owl' is in test \(.*test/owl/1.png\)",
    ),
    "text": (TREE | {"train/cat/3.png": b"no image at all"}, r"train/cat/3.png cannot be read: cannot identify"),
    "nothing": (TREE | {"train/cat/3.png": b""}, r"train/cat/3.png cannot be read"),
    "cut": (TREE | {"train/cat/3.jpg": encoded(noise(8, 8, 3), "JPEG")[:-30]}, r"train/cat/3.jpg cannot be read"),
    "size": (TREE | {"train/cat/7.png": encoded(noise(9, 8, 3))}, r"cat/7.png is 9 × 8 pixels; with side=N"),
    "deep": (
        TREE | {"train/cat/3.png": encoded(noise(8, 8).astype(np.uint16))},
        r"3.png has pixels of more than 8 bits",
    ),
    "few": (
        {"a/1.png": encoded(noise(4, 4)), "b/1.png": encoded(noise(4, 4))},
        "no images for 'validation', and too few",
    ),
    "pickled": ({"data_batch_1": b"", "batches.meta": b""}, "reading a pickle runs whatever code is in it"),
    "pickled 100": ({"train": b"", "test": b"", "meta": b""}, "reading a pickle runs"),
    "no labels": (
        {"train-images-idx3-ubyte": mnist()["train-images-idx3-ubyte"]},
        "train-labels-idx1-ubyte is missing",
    ),
    "no train": ({name: data for name, data in mnist().items() if "t10k" in name}, "should hold train-images"),
    "short idx": (
        changed(mnist(), **{"t10k-images-idx3-ubyte": mnist()["t10k-images-idx3-ubyte"][:-1]}),
        r"t10k-images-idx3-ubyte should hold 40 records of 49 bytes, but ends in record 40",
    ),
    "long idx": (
        changed(mnist(), **{"t10k-labels-idx1-ubyte": mnist()["t10k-labels-idx1-ubyte"] + b"x"}),
        r"t10k-labels-idx1-ubyte should hold 40 records of 1 bytes",
    ),
    "not idx": (changed(mnist(), **{"train-labels-idx1-ubyte": b"PK34"}), "train-labels-idx1-ubyte is no IDX file"),
    "counts": (
        changed(mnist(), **{"train-labels-idx1-ubyte": idx(np.zeros(39))}),
        "has 40 images, but .* has 39 labels",
    ),
    "cut gz": (
        {f"{name}.gz": gzip.compress(data)[:-9] for name, data in mnist().items()},
        r"ubyte.gz cannot be unpacked",
    ),
}


@pytest.mark.parametrize("case", FOLDERS)
def test_damaged_folders_are_refused_by_name(tmp_path, case):
    contents, message = FOLDERS[case]
    (tmp_path / "set").mkdir()
    with pytest.raises(SpecError, match=message):
        images.load_images(write_folder(tmp_path / "set", contents))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data[:-5], r"data_batch_2.bin: record 60 has 3068 of 3073 bytes"),
        (lambda data: b"", r"data_batch_2.bin: record 1 has 0 of 3073 bytes"),
        (
            lambda data: data[:3073] + bytes([10]) + data[3074:],
            r"data_batch_2.bin: record 2 has label 10, but there are 10",
        ),
        (None, r"has no data_batch_2.bin"),
    ],
)
def test_damaged_cifar_is_refused_by_file_and_record(tmp_path, change, message):
    write_cifar(tmp_path / "cifar")
    file = tmp_path / "cifar" / "data_batch_2.bin"
    if change:
        file.write_bytes(change(file.read_bytes()))
    else:
        file.unlink()
    with pytest.raises(SpecError, match=message):
        images.load_images(str(tmp_path / "cifar"))


def test_damaged_zips_are_refused_by_name(tmp_path):
    whole = write_zip(tmp_path / "set.zip", TREE)
    data = bytearray((tmp_path / "set.zip").read_bytes())
    (tmp_path / "cut.zip").write_bytes(data[: len(data) // 2])
    with pytest.raises(SpecError, match=r"cut.zip is not a complete zip file"):
        images.load_images(str(tmp_path / "cut.zip"))
    with zipfile.ZipFile(whole) as archive:
        place = archive.getinfo("train/cat/4.png").header_offset + 100
    data[place] ^= 255
    (tmp_path / "flipped.zip").write_bytes(data)
    with pytest.raises(SpecError, match=r"flipped.zip: train/cat/4.png cannot be read: Bad CRC"):
        images.load_images(str(tmp_path / "flipped.zip"))


def test_a_place_that_is_not_there():
    with pytest.raises(SpecError, match="no file or folder '/not/there'"):
        images.load_images("/not/there")


# ---- numbers of pixels ---------------------------------------------------------------------------------------------


def test_grey_is_pillows():
    pixels = noise(3, 16, 16, 3)
    expected = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in pixels])
    assert np.array_equal(images.grey(pixels)[..., 0], expected)


@pytest.mark.parametrize("as_grey", [False, True])
def test_statistics_by_the_definition(tmp_path, as_grey):
    found = images.load_images(write_folder(tmp_path / "set", {name: encoded(image) for name, image in tree().items()}))
    mean, deviation = images.statistics(found.train, as_grey=as_grey)
    pixels = images.grey(found.train.take()) if as_grey else found.train.take()
    np.testing.assert_allclose(mean, pixels.astype(float).mean((0, 1, 2)), rtol=1e-12)
    np.testing.assert_allclose(deviation, pixels.astype(float).std((0, 1, 2)), rtol=1e-12)


def test_a_channel_that_never_changes_has_deviation_one():
    part = images.ImageSplit(np.full((5, 4, 4, 1), 9, np.uint8), np.arange(5), np.zeros(5, int))
    assert images.statistics(part) == (9.0, 1.0)
