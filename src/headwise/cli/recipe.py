"""The options that say what a model is and how it is trained: the same for `train` and `compare`."""

import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer


def said(
    family: Annotated[
        str,
        typer.Option(
            help="Model family: gpt2, llama, qwen3, nanochat, bert, vit; it begins as the original does.",
            show_default="the task's usual",
        ),
    ] = "",
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the model: norm=rms, tied=true; repeat for more.", show_default="none"),
    ] = None,
    context: Annotated[int, typer.Option(help="Tokens per sample.", show_default="the task's own")] = 0,
    tokenizer: Annotated[str, typer.Option(help="Of a text: bytes, characters or bpe.", show_default="bytes")] = "",
    optimizer: Annotated[
        str | None, typer.Option(help="adamw, or muon for the matrices of the layers.", show_default="adamw")
    ] = None,
    weight_decay: Annotated[float | None, typer.Option(help="Weight decay of matrices.", show_default="0")] = None,
    warm_up: Annotated[
        float | None, typer.Option(help="Part of the steps in which the learning rate rises.", show_default="0.1")
    ] = None,
    clip: Annotated[
        float | None, typer.Option(help="Largest gradient norm; 0 for no clipping.", show_default="1")
    ] = None,
    betas: Annotated[str, typer.Option(help="AdamW's betas.", show_default="0.9,0.95")] = "",
    schedule: Annotated[
        str | None, typer.Option(help="cosine, linear or constant, after the warm-up.", show_default="cosine")
    ] = None,
    final_lr: Annotated[
        float | None, typer.Option(help="Learning rate at the last step, as part of the peak: 0.1.", show_default="0")
    ] = None,
) -> dict[str, Any]:
    """What was said of the model and its training, as the library takes it."""
    from headwise.training.asked import read_options

    model = {"family": family, "options": read_options(option or []), "context": context, "tokenizer": tokenizer}
    recipe = {"optimizer": optimizer, "weight_decay": weight_decay, "warm_up": warm_up, "clip": clip}
    return {**model, **recipe, "betas": read_betas(betas), "schedule": schedule, "final_learning_rate": final_lr}


def with_recipe(command: Callable[..., None]) -> Callable[..., None]:
    """A command with all options of `said`, where its own last parameter is `recipe`: what `said` makes of them."""
    own, shared = (inspect.signature(function).parameters for function in (command, said))
    listed = [parameter for name, parameter in own.items() if name != "recipe"]
    for parameter in shared.values():
        parameter.annotation.__metadata__[0].rich_help_panel = "Model and training"

    def called(**given: Any) -> None:
        command(recipe=said(**{name: given.pop(name) for name in shared}), **given)

    called.__signature__ = inspect.Signature([*listed, *shared.values()])  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in (*listed, *shared.values())}
    called.__name__, called.__doc__ = command.__name__, command.__doc__
    return called


def read_betas(text: str) -> tuple[float, float] | None:
    """Two numbers between 0 and 1; nothing where nothing is said."""
    from headwise.spec import SpecError

    if not text:
        return None
    try:
        first, second = (float(part) for part in text.split(","))
    except ValueError:
        raise SpecError(f"cannot read '{text}' as AdamW's betas; write two numbers, as in 0.9,0.95") from None
    return first, second
