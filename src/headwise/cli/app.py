"""The command line: thin. Each command imports what it needs when it runs, so that `headwise --help` is instant."""

import os
import shutil
import sys
import textwrap
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from headwise.cli import checkpoints as cli_checkpoints
from headwise.cli import compare as cli_compare
from headwise.cli import evidence as cli_evidence
from headwise.cli import export as cli_export
from headwise.cli import predict as cli_predict
from headwise.cli import report as cli_report
from headwise.cli import studies as cli_runs
from headwise.cli import tasks as cli_tasks
from headwise.cli import theory as cli_theory
from headwise.cli.terminal import AsJson, chart_folder, listed, print_json, progress, show_or_json, watched

PANELS = {  # what people want, and the commands for it, in the order of the help
    "Start": ("demo", "explore", "doctor"),
    "Price a shape": ("cost", "shapes"),
    "Choose a shape": ("suggest", "compare", "predict", "evidence", "tasks", "train"),
    "Your model": ("inspect", "truncate", "convert", "export-hf"),
    "Papers and claims": ("claims", "study", "theory", "report", "open"),
    "Stored runs": ("runs", "export"),
}


OLD_NAMES = {"--rates": "--lr", "--batch": "--batch-size"}  # of compare and train; they go with version 0.3


class Commands(TyperGroup):
    """The commands, in panels; an interrupt says what was saved, and exits with 130."""

    def list_commands(self, ctx: Any) -> list[str]:
        """As the panels list them, others after them."""
        order = [name for names in PANELS.values() for name in names]
        known = super().list_commands(ctx)
        return sorted(known, key=lambda name: order.index(name) if name in order else len(order))

    def invoke(self, ctx: Any) -> Any:
        words = sys.argv[2:] if sys.argv[1:2] in (["compare"], ["train"]) else []
        for old in OLD_NAMES.keys() & {str(word).partition("=")[0] for word in words}:
            typer.echo(f"headwise: {old} is now {OLD_NAMES[old]}; the old name goes with version 0.3", err=True)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stopped:
            summary = getattr(stopped, "summary", None)  # of a sweep, which has saved what there was
            left = "are in checkpoints" if getattr(stopped, "checkpoints", True) else "will begin again"
            saved = f": {summary.trained} runs are stored, {summary.stopped} {left}" if summary else ""
            typer.echo(f"headwise: stopped{saved}; the same command goes on from there", err=True)
            raise typer.Exit(130) from None


def print_version(wanted: bool) -> None:
    """Say it and stop, where it was asked for."""
    if wanted:
        import headwise

        typer.echo(f"headwise {headwise.__version__}")
        raise typer.Exit


def known_shapes(incomplete: str) -> list[str]:
    """The known models that a word may become, for completion in a shell."""
    from headwise.known import KNOWN

    return [name for name in KNOWN if name.startswith(incomplete)]


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog="Start with: [bold]headwise demo[/bold]   then: [bold]headwise explore gpt2[/bold]",
)


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Print the version and exit.", is_eager=True, callback=print_version)
    ] = False,
) -> None:
    """What shape should attention have? Heads, ranks, sharing, depth: at equal cost, on your task."""


for commands in (
    cli_runs, cli_report, cli_tasks, cli_theory, cli_checkpoints, cli_compare, cli_evidence, cli_predict, cli_export,
):  # fmt: skip
    commands.add_to(app)

ShapesArgument = Annotated[
    list[str],
    typer.Argument(
        help="Shapes (w512-h8-L6), known models (gpt2) or config.json files.",
        show_default=False,
        autocompletion=known_shapes,
    ),
]
FamilyOption = Annotated[
    str,
    typer.Option(
        help="Price a whole model of this family, not its layers alone: encoder, nanochat, gpt2, llama, bert, vit.",
        show_default="the layers alone",
    ),
]
TokensOption = Annotated[
    str, typer.Option(help="Tokens per sequence: 2048, 32k.", show_default="the model's, else 1024")
]
MixerOption = Annotated[
    str,
    typer.Option(
        help="What mixes tokens instead of attention, by layer: window-512x5,attention.", show_default="the model's"
    ),
]


def main() -> None:
    """Run a command; what the user got wrong, or the system refuses, is one sentence and exit code 2."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()  # a full disk shows here, and not when nobody listens any more
    except BrokenPipeError:  # nobody reads on, as in: headwise claims | head
        _end("", code=1)
    except OSError as error:
        place = f" ({error.filename!r})" if isinstance(error.filename, str) else ""
        _end(f"{error.strerror or error}{place}")
    except UnicodeDecodeError as error:
        _end(f"a file is not text in UTF-8: {error}")
    except UnicodeEncodeError as error:
        _end(f"{error.object!r:.80} cannot be written in {error.encoding}")
    except ValueError as error:
        if not _is_said(error):
            raise
        _end(str(error))
    except RecursionError:
        _end("what was given is nested too deeply to be read")
    except OverflowError as error:
        _end(f"a number is too large: {error}")


def _is_said(error: ValueError) -> bool:
    """Whether it is a `SpecError`, without loading what that stands in: half of the time that `--help` took."""
    spec = sys.modules.get("headwise.spec")
    return spec is not None and isinstance(error, spec.SpecError)


def _end(sentence: str, code: int = 2) -> NoReturn:
    """Where standard output or standard error is the trouble itself, what is left for it has nowhere to go."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if sentence:
        with suppress(OSError):  # nowhere to say it: the exit code does
            typer.echo(_in_lines(f"headwise: {' '.join(sentence.splitlines())}"), err=True)
    sys.exit(code)


def _in_lines(sentence: str) -> str:
    """In a terminal, broken between words; one line for whatever else reads it."""
    if not sys.stderr.isatty():
        return sentence
    width = shutil.get_terminal_size().columns
    return textwrap.fill(sentence, width, break_long_words=False, break_on_hyphens=False)


@app.command(epilog="Example: headwise demo --out my-demo")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the chart.")] = Path("headwise-demo"),
    seeds: Annotated[int, typer.Option(help="Runs per shape.")] = 2,
    steps: Annotated[int, typer.Option(help="Training steps per run.")] = 2000,
    store: Annotated[
        Path | None, typer.Option(help="Keep the runs in this store.", show_default="a temporary one")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would run, and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train small models that show the rank cliff, in about a minute, with a chart."""
    import headwise
    from headwise.report.tables import demo_lines

    if dry_run:
        planned = headwise.plan_demo(seeds, steps)
        return show_or_json(planned, as_json, lambda plan: [plan.headline, f"shapes: {', '.join(plan.shapes)}"])
    folder = chart_folder(out)
    show_or_json(headwise.demo(seeds, steps, store=store, out=folder, watching=watched), as_json, demo_lines)


@app.command(epilog="Example: headwise cost gpt2 qwen3-0.6b --context 32k --batch 8")
def cost(
    shapes: ShapesArgument,
    family: FamilyOption = "",
    vocab: Annotated[
        int, typer.Option(help="Vocabulary size (needed with --family of a language model).", show_default=False)
    ] = 0,
    context: TokensOption = "0",
    mixer: MixerOption = "",
    batch: Annotated[str, typer.Option(help="Sequences decoded at once.")] = "1",
    image: Annotated[int, typer.Option(help="Image side in pixels (vit).")] = 224,
    patch: Annotated[int, typer.Option(help="Patch side in pixels (vit).")] = 16,
    classes: Annotated[int, typer.Option(help="Number of classes (vit).")] = 1000,
    dtype: Annotated[
        str, typer.Option(help="Number format of weights and KV cache: fp32, bf16, fp16, fp8 or int8.")
    ] = "bf16",
    as_json: AsJson = False,
) -> None:
    """Parameters, FLOPs, KV cache and memory of a shape, or of several as columns."""
    import headwise
    from headwise.options import STYLES
    from headwise.report.costs import cost_table, costs_table
    from headwise.spec import read_count

    details: dict[str, Any] = {"image": image, "patch": patch, "classes": classes} if family in ("vit", *STYLES) else {}
    details |= {"context": read_count(context, "context"), "batch": read_count(batch, "batch"), "dtype": dtype}
    details |= {"family": family, "vocab": vocab, "mixer": mixer}
    if len(shapes) > 1:
        return show_or_json(headwise.prices(shapes, **details), as_json, costs_table)
    show_or_json(headwise.price(shapes[0], **details), as_json, cost_table)


@app.command(epilog="Example: headwise shapes nanochat-d28 --hold params --vary heads,qk_rank")
def shapes(
    shapes: Annotated[
        list[str] | None,
        typer.Argument(
            help="The base: a shape, a known model (gpt2), a config.json or its folder; several, a table each.",
            metavar="SHAPE",
            show_default=False,
        ),
    ] = None,
    known: Annotated[bool, typer.Option("--known", help="List the known models.")] = False,
    hold: Annotated[
        str, typer.Option(help="Cost that stays equal: params, flops, kv (KV cache) or time (measured).")
    ] = "params",
    tolerance: Annotated[str, typer.Option(help="How much that cost may differ.")] = "1%",
    vary: Annotated[
        str,
        typer.Option(
            help="What may change, separated by commas: heads, qk_rank, v_rank, kv_heads, kv_latent, q_latent, "
            "rope_rank, depth, mlp."
        ),
    ] = "heads",
    context: TokensOption = "0",
    mixer: MixerOption = "",
    limit: Annotated[int, typer.Option(help="Rows to print.")] = 40,
    as_json: AsJson = False,
) -> None:
    """List shapes of equal cost, or the known models."""
    import headwise
    from headwise.report.tables import known_table, shapes_table, times_table
    from headwise.spec import SpecError, read_count

    if known:
        return show_or_json(headwise.known_models(), as_json, lambda models: [known_table(models)])
    if not shapes:
        raise SpecError("give a shape or a known model, as in 'headwise shapes gpt2', or --known for a list")
    tokens = read_count(context, "context")
    if hold == "time":
        if mixer:
            raise SpecError("equal time is measured with the model's own mixer; leave --mixer out")
        if len(shapes) > 1:
            raise SpecError("equal time is measured for one base at a time; give one shape")
        with progress("measuring a training step of each shape") as on_progress:
            times = headwise.equal_time(shapes[0], vary=listed(vary), context=tokens, on_progress=on_progress)
        return show_or_json(times, as_json, times_table)
    settings: dict[str, Any] = {
        "hold": hold,
        "tolerance": tolerance,
        "vary": listed(vary),
        "context": tokens,
        "mixer": mixer,
    }
    found = [headwise.equal_cost(shape, **settings) for shape in shapes]
    if as_json and len(found) > 1:
        return print_json([rows.as_dict() for rows in found])
    for rows in found:
        show_or_json(rows, as_json, lambda shown: shapes_table(shown, limit))


@app.command(epilog="Example: headwise doctor w512-h8-v128")
def doctor(
    shapes: Annotated[
        list[str] | None, typer.Argument(help="Shapes to look up kernels for.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show devices, safe precisions, and which kernel a shape gets on this machine."""
    import headwise

    examination = headwise.doctor(shapes) if shapes else headwise.doctor()
    if as_json:
        return print_json(examination.as_dict())
    from headwise.report.tables import doctor_tables, show

    show(*doctor_tables(examination.as_dict()))


def _into_panels() -> None:
    """Every command, in the panel of what people want when they use it."""
    panel_of = {name: panel for panel, names in PANELS.items() for name in names}
    for command in app.registered_commands:
        command.rich_help_panel = panel_of.get(command.name or command.callback.__name__, "Other")  # type: ignore[union-attr]
    for group in app.registered_groups:
        group.rich_help_panel = panel_of.get(group.name or "", "Other")


_into_panels()
