"""A sweep as it runs: one bar for all of it with the time left, one for each run with its loss, the best so far."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from headwise.comparison.command import COMMAND_TASK
from headwise.sweep.plan import Watch, work
from headwise.training.run import Run, RunResult

UNITS = 10_000  # of the whole sweep's work


@contextmanager
def live_sweep(runs: list[Run]) -> Iterator[Watch]:
    """A Watch that draws on standard error; where that is no terminal, a line for every run that ends.

    And of a single run, a line for every tenth of its steps.
    """
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=16), TaskProgressColumn())
    total = max(1, sum(work(run) for run in runs))
    with Progress(*columns, TextColumn("left:"), TimeRemainingColumn(), console=console, transient=True) as bars:
        whole = bars.add_task("1 run" if len(runs) == 1 else f"{len(runs)} runs", total=UNITS)
        yield _Drawing(bars, whole, total, len(runs)).watch()


class _Drawing:
    def __init__(self, bars: Progress, whole: TaskID, total: int, runs: int) -> None:
        self.bars, self.whole, self.total, self.runs = bars, whole, total, runs
        self.active: dict[str, TaskID] = {}
        self.steps: dict[str, float] = {}
        self.losses: dict[str, float] = {}
        self.begun: dict[str, tuple[float, int]] = {}  # when a run was first heard of, and at which step
        self.tenths = -1
        self.left = float(UNITS)
        self.ended, self.best = 0, ""
        self.least = float("inf")

    def watch(self) -> Watch:
        return Watch(
            on_compile=self.compile,
            on_start=self.start,
            on_step=self.step,
            on_loss=self.loss,
            on_part=self.part,
            on_end=self.end,
        )

    def compile(self, kernels: int) -> None:
        many = f"{kernels} kernels" if kernels > 1 else "a kernel"
        self.bars.console.print(f"compiling {many} once for this machine")

    def start(self, run: Run) -> None:
        self.active[run.key] = self.bars.add_task(_name(run)[:36], total=run.steps)

    def loss(self, run: Run, loss: float) -> None:
        self.losses[run.key] = loss

    def step(self, run: Run, step: int) -> None:
        if step and run.key not in self.steps:
            self._go_on(run, step)
        self.part(run, step / max(1, run.steps))
        now = self.bars.get_time()
        since, first = self.begun.setdefault(run.key, (now, step))
        if run.key not in self.losses:
            return
        rate = (step - first) / (now - since) if now > since else 0.0
        if run.key in self.active:
            self.bars.update(
                self.active[run.key], description=f"{_name(run)[:22]} loss {self.losses[run.key]:.4g} {rate:.3g}/s"
            )
        if self.runs == 1 and not self.bars.console.is_terminal:
            self._line(run, step, rate)

    def _line(self, run: Run, step: int, rate: float) -> None:
        tenths = 10 * step // max(1, run.steps)
        if tenths <= self.tenths:
            return
        self.tenths = tenths
        left = f", about {(run.steps - step) / rate:.0f} s left" if rate and step < run.steps else ""
        said = f"step {step:,} of {run.steps:,}: loss {self.losses[run.key]:.4g}, {rate:.3g} steps per second{left}"
        self.bars.console.print(said, highlight=False, soft_wrap=True)

    def part(self, run: Run, part: float) -> None:
        if run.key in self.active:
            self.bars.update(self.active[run.key], completed=part * run.steps)
        self._advance(run, part)

    def end(self, run: Run, result: RunResult) -> None:
        if run.key in self.active:
            self.bars.remove_task(self.active.pop(run.key))
        self.ended += 1
        if result.status == "done":
            self._tell(run, result.metrics.get("error", float("inf")))
        told = f"{self.ended} of {self.runs} runs{self.best}"
        self.bars.update(self.whole, description=told)
        self._advance(run, 1.0)
        if not self.bars.console.is_terminal:
            self.bars.console.print(f"{told}{self._time_left()}", highlight=False, soft_wrap=True)

    def _tell(self, run: Run, error: float) -> None:
        """The best error so far; of somebody's own metric, which may be better higher, each run's as it ends."""
        if run.task["name"] == COMMAND_TASK:
            self.best = f", {run.task['metric']} {error:.4g} ({run.shape})"
        elif error < self.least:
            self.least, self.best = error, f", best {error:.3f} ({run.shape})"

    def _time_left(self) -> str:
        left = self.bars.tasks[0].time_remaining
        if not left or self.ended == self.runs:
            return ""
        return f", about {left / 60:.0f} min left" if left >= 120 else f", about {left:.0f} s left"

    def _go_on(self, run: Run, step: int) -> None:
        """From a checkpoint: what was done before is neither left nor a sign of how fast the rest goes."""
        self.steps[run.key] = step / max(1, run.steps)
        self.left -= UNITS * self.steps[run.key] * work(run) / self.total
        self.bars.update(self.whole, total=self.left)
        if run.key in self.active:
            self.bars.reset(self.active[run.key], completed=step)

    def _advance(self, run: Run, part: float) -> None:
        gained = (part - self.steps.get(run.key, 0.0)) * work(run) / self.total
        self.steps[run.key] = part
        self.bars.advance(self.whole, UNITS * gained)


def _name(run: Run) -> str:
    return f"  {run.shape} seed {run.seed}"
