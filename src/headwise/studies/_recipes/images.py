"""Vision transformers on classes of images: how they are trained, and a run of one."""

from typing import Literal

from headwise.ledger.study import Preset
from headwise.options import ModelOptions
from headwise.options import preset as options_preset
from headwise.shape import ModelShape
from headwise.spec import Spec
from headwise.training.run import Recipe, Run

CIFAR = {"images": "CIFAR-10, as its own files or as a zip or folder of images"}
IMAGENET = {"images": "ImageNet-1k, as a folder of images"}


class ImageTraining(Spec):
    """The images, and how a model is trained on them."""

    side: int
    patch: int
    channels: int
    classes: int
    augment: str
    optimizer: Literal["adamw", "muon"]
    batch: int
    steps: int


class ImagePreset(ImageTraining, Preset):
    """A vision transformer's width, and its training; a study adds heads and depth."""

    width: int

    @property
    def setting(self) -> str:
        """What a chart says of how its models were trained."""
        images = f"{self.batch:,} images of {self.side} × {self.side}"
        return f"{self.steps:,} steps of {images}; {self.tuning}"


IMAGE_SIZES = {
    "smoke": ImagePreset(
        width=8, side=8, patch=2, channels=1, classes=10, augment="crop-flip", optimizer="muon", batch=64, steps=3,
        rates=(0.003,),
    ),
    "laptop": ImagePreset(
        width=32, side=16, patch=4, channels=3, classes=10, augment="crop-flip", optimizer="muon", batch=64, steps=700,
        rates=(0.01, 0.02), seeds=5, data=CIFAR,
    ),
    "paper": ImagePreset(
        width=768, side=224, patch=16, channels=3, classes=1000, augment="full", optimizer="adamw", batch=4096,
        steps=93_835, data=IMAGENET,
    ),
}  # fmt: skip


def vit_options(training: ImageTraining) -> ModelOptions:
    """A vision transformer for these images."""
    facts = {"patch": training.patch, "channels": training.channels, "classes": training.classes}
    return options_preset("vit", init="unit", image=training.side, **facts)


def vit_run(training: ImageTraining, shape: ModelShape, seed: int) -> Run:
    """A vision transformer by the leaner paper's recipe; the learning rate is the published one."""
    recipe = Recipe(
        optimizer=training.optimizer,
        learning_rate=0.003,
        batch=training.batch,
        warm_up=0.1,
        clip=1.0,
        weight_decay=0.3,
    )
    return Run(
        task={"name": "images", "side": training.side, "patch": training.patch, "augment": training.augment},
        shape=str(shape),
        options=vit_options(training),
        recipe=recipe,
        steps=training.steps,
        seed=seed,
        evaluations=4,
    )
