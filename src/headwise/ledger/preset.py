"""What every preset of a study has: seeds, learning rates to choose from, the data it must have."""

from typing import Any, Self

from pydantic import Field

from headwise.spec import Spec


class Preset(Spec):
    """What every preset has; a study's own subclass adds the sizes of its models and its grid."""

    seeds: int = Field(default=3, ge=1, description="runs of each place of the grid")
    rates: tuple[float, ...] = Field(default=(), description="learning rates to choose from; none: the recipe's own")
    data: dict[str, str] = Field(
        default_factory=dict, description="by the name of a task: what its data must be; defaults are not taken"
    )

    @classmethod
    def like(cls, other: Spec, **changes: Any) -> Self:
        """A preset that takes over the fields of another, perhaps smaller one, and adds or changes some."""
        return cls(**{name: getattr(other, name) for name in type(other).model_fields} | changes)

    @property
    def tuning(self) -> str:
        """How learning rates were chosen, as charts say it."""
        return "learning rate of each variant chosen on validation" if self.rates else "the published learning rate"
