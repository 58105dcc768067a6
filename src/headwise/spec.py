"""What every specification in headwise shares: it is frozen, it refuses unknown fields, and it explains itself.

A wrong value raises `SpecError` with one sentence that says what is wrong. The command line prints that sentence
and exits with 2; nobody has to read a traceback to find a typing mistake.
"""

from typing import Any, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator


class SpecError(ValueError):
    """One sentence: what was asked for and why it is not possible."""


class Spec(BaseModel):
    """A frozen, strict description. Subclasses are compared, hashed and printed by value."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _explain(type(self), error) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, validated again."""
        return type(self)(**{name: getattr(self, name) for name in type(self).model_fields} | changes)


class JsonSpec(Spec):
    """A spec that is kept as JSON: an array becomes the tuple, and an object the spec, that the field says it is."""

    @field_validator("*", mode="before")
    @classmethod
    def _from_json(cls, value: Any, info: Any) -> Any:
        return _read(cls.model_fields[info.field_name].annotation, value)


def _read(kind: Any, value: Any) -> Any:
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Spec):
        return kind(**value)
    if isinstance(value, list) and get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], one) for one in value)
    return value


def _explain(spec: type[Spec], error: ValidationError) -> SpecError:
    first = error.errors()[0]
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, SpecError):
        return inner
    field = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return SpecError(f"{spec.__name__} has no field '{field}'; it has {', '.join(spec.model_fields)}")
    return SpecError(f"{spec.__name__}: {field or 'value'} is {first['input']!r}; {first['msg'].lower()}")
