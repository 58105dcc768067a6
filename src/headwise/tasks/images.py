"""Image classification with a vision transformer: the usual test of a shape on real data.

By default scikit-learn's digits (8 × 8 pixels): good for a quick look, but every sensible shape solves them. With a
`source`, a folder or zip of images, CIFAR's or MNIST's own files, or a data set by name (`headwise.data.images` says
what is read and how it is split). Pixels are normalised by the training images' mean and deviation; only training
images are augmented. Labels are class numbers, so augmentations that mix two images are left out.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from headwise.data import images as data
from headwise.data.augment import augment
from headwise.data.linear import error_by_least_squares
from headwise.extras import extra
from headwise.models import build
from headwise.options import ModelOptions, preset
from headwise.shape import ModelShape
from headwise.spec import SpecError
from headwise.tasks import Batch, DataTask, Scores
from headwise.tasks.stream import Draw, Stream, sample_numbers

POOLED_SIDE, LINEAR_IMAGES = 16, 50_000  # what the linear classifier sees of an image, and how many it is fitted to
PATCHES = (16, 64)  # how many an image is cut into, where nothing is said
BASELINE_NUMBERS = 300_000_000  # pixels that a baseline is fitted to; of a larger set it takes a part, and says so
REGULARISATIONS = tuple(10.0 ** (power / 2) for power in range(-10, 5))  # inverse: from strong to weak
NEIGHBOURS = (1, 3, 5, 10, 20)
SEARCH_PATIENCE = 3  # settings in a row that were no better


class Images(DataTask):
    name: ClassVar[str] = "images"
    summary: ClassVar[str] = "image classification (digits, CIFAR, MNIST, your own): a shape on real data"
    usual_shape: ClassVar[str] = "w64-h4-L3"

    side: int = Field(default=0, ge=0, description="pixels an image is scaled to; 0 leaves it as it is")
    patch: int = Field(default=0, ge=0, description="side of a patch; 0: the smallest, from 2, for at most 64 patches")
    grey: bool = Field(default=False, description="one channel for three")
    augment: Literal["none", "crop", "flip", "crop-flip", "full"] = Field(
        default="none", description="of training images; full: crop, flip, colours, an erased square"
    )
    validation: float = Field(
        default=0.1, gt=0, le=0.5, description="share of train held out, where none was published"
    )

    def digest(self) -> str:
        return data.digest(self.source)

    def images(self) -> data.ImageSet:
        """The data, read once per process."""
        self.check_content()
        return data.load_images(self.source, side=self.side, validation=self.validation)

    def draw(self, seed: int, stream: Stream, index: int, batch: int, device: str = "cpu") -> Batch:
        part: data.ImageSplit = getattr(self.images(), stream)
        numbers = sample_numbers(seed, stream, index, batch, len(part))
        pixels = self._pixels(part, numbers).to(device) / 255
        if stream == "train":
            pixels = augment(pixels, self.augment, Draw(seed, stream, index, device))
        mean, deviation = _normalisation(self.source, self.side, self.validation, self.grey)
        pixels = (pixels - mean.to(device)) / deviation.to(device)
        return pixels.contiguous(), torch.from_numpy(part.labels[numbers]).to(device)

    def _pixels(self, part: data.ImageSplit, numbers: Any) -> Tensor:
        """(numbers, channels, side, side), bytes."""
        pixels = part.take(numbers)
        return torch.from_numpy(data.grey(pixels) if self.grey else pixels).permute(0, 3, 1, 2)

    def samples(self, stream: Stream) -> int:
        return len(getattr(self.images(), stream))

    @property
    def tokens(self) -> int:
        return self.default_options().tokens

    def tokens_in(self, options: ModelOptions) -> int:
        return options.tokens

    def default_options(self) -> ModelOptions:
        return preset("vit", **self._facts())

    def _facts(self) -> dict[str, int]:
        """What a model must know of the images."""
        images = self.images()
        channels = 1 if self.grey else images.channels
        patch = self.patch or _usual_patch(images.side)
        return {"image": images.side, "patch": patch, "channels": channels, "classes": len(images.classes)}

    def build(self, shape: ModelShape, options: ModelOptions) -> nn.Module:
        facts = {"family": "vit", "head": "classes", **self._facts()}
        for name, value in facts.items():
            if getattr(options, name) != value:
                raise SpecError(f"these images need a model with {name} {value}, not {getattr(options, name)}")
        return build(shape, options)

    def loss(self, output: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(output, labels)

    def scores(self, output: Tensor, labels: Tensor) -> Scores:
        """Of each image: whether it was missed, whether its class is among the first five, and its cross-entropy."""
        scores: Scores = {
            "error": (output.argmax(-1) != labels).float(),
            "cross_entropy": F.cross_entropy(output.float(), labels, reduction="none"),
        }
        if output.shape[-1] > 5:
            scores["top5"] = (output.topk(5).indices == labels[:, None]).any(-1).float()
        return scores

    def metrics(self, scores: Scores) -> dict[str, float]:
        means = super().metrics(scores)
        return {**means, "top1": 1 - means["error"]}

    def trivial_error(self) -> float:
        """Always the class that most training images have."""
        images = self.images()
        return float((images.test.labels != np.bincount(images.train.labels).argmax()).mean())

    def simple_baseline(self) -> tuple[str, float]:
        """A linear classifier; of larger images it is given averages of 16 × 16 squares."""
        side = min(self.images().side, POOLED_SIDE)
        return f"linear classifier of {side} × {side} pixels", _linear_error(self)

    def baselines(self) -> dict[str, float]:
        """Logistic regression and nearest neighbours on pixels; their settings are chosen on validation."""
        return _baselines(self)


def _usual_patch(side: int) -> int:
    least, most = PATCHES
    for patch in range(2, side + 1):
        if side % patch == 0 and least <= (side // patch) ** 2 <= most:
            return patch
    raise SpecError(f"no patch cuts an image of {side} pixels into {least} to {most}; give patch=N, or another side=N")


@lru_cache(maxsize=8)
def _normalisation(source: str, side: int, validation: float, grey: bool) -> tuple[Tensor, Tensor]:
    mean, deviation = data.statistics(data.load_images(source, side=side, validation=validation).train, as_grey=grey)
    return torch.tensor(mean / 255).float()[:, None, None], torch.tensor(deviation / 255).float()[:, None, None]


# ---- classical methods ---------------------------------------------------------------------------------------------


def pooled(pictures: Tensor) -> Any:
    """(pictures, numbers): pictures (batch, channels, side, side) as rows, larger ones averaged over squares."""
    side = min(pictures.shape[-1], POOLED_SIDE)
    return F.adaptive_avg_pool2d(pictures.float(), side).flatten(1).numpy()


@lru_cache(maxsize=16)
def _linear_error(task: Images) -> float:
    def rows(stream: Stream) -> Iterator[tuple[Any, Any]]:
        part: data.ImageSplit = getattr(task.images(), stream)
        for first in range(0, len(part) if stream == "test" else min(len(part), LINEAR_IMAGES), 1024):
            some = slice(first, first + 1024)
            yield pooled(task._pixels(part, some)), part.labels[some]

    return error_by_least_squares(rows, len(task.images().classes))


def _baselines(task: Images) -> dict[str, float]:
    with extra("baselines", "baselines"):
        from sklearn.linear_model import LogisticRegression
        from sklearn.neighbors import KNeighborsClassifier
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import StandardScaler

    part = task.images().train
    kept = min(len(part), max(1, BASELINE_NUMBERS // part.take([0]).size))
    said = "" if kept == len(part) else f" on {kept} of {len(part)} images"
    rows = _rows(task, part, 0, kept)
    logistic = LogisticRegression(max_iter=10_000, warm_start=True)  # each fit begins where the last one ended
    models = {
        "logistic regression": (make_pipeline(StandardScaler(), logistic), "logisticregression__C", REGULARISATIONS),
        "nearest neighbours": (KNeighborsClassifier(algorithm="brute"), "n_neighbors", NEIGHBOURS),
    }
    return {
        name + said: _chosen_error(task, model, setting, values, rows, part.labels[:kept])
        for name, (model, setting, values) in models.items()
    }


def _chosen_error(task: Images, model: Any, setting: str, values: Any, rows: Any, labels: Any) -> float:
    """The test error of the setting with the least validation error; the search ends where it only gets worse."""
    tried: list[tuple[float, float]] = []
    for value in values:
        model.set_params(**{setting: value}).fit(rows, labels)
        tried.append((_error(task, "validation", model), value))
        if len(tried) > SEARCH_PATIENCE and min(tried[-SEARCH_PATIENCE:]) > min(tried):
            break
    model.set_params(**{setting: min(tried)[1]}).fit(rows, labels)
    return _error(task, "test", model)


def _error(task: Images, stream: Stream, model: Any) -> float:
    part: data.ImageSplit = getattr(task.images(), stream)
    missed = 0
    for first in range(0, len(part), 4096):  # a large set does not fit into memory as numbers
        rows = _rows(task, part, first, first + 4096)
        missed += int((model.predict(rows) != part.labels[first : first + 4096]).sum())
    return missed / len(part)


def _rows(task: Images, part: data.ImageSplit, first: int, last: int) -> Any:
    """Images as rows of numbers."""
    return task._pixels(part, slice(first, last)).flatten(1).numpy().astype(np.float32) / 255


TASK = Images
