"""Runs as this store knows them: what is finished is not trained again, and what is begun goes on.

A study asks for a cell: a run without what is resolved for a machine. Which device, precision or kernel path that is
may change from day to day, with a compiler, or a race that ends the other way; a result under any of them is the
cell's.
"""

from headwise.store.records import FINISHED
from headwise.store.store import Store
from headwise.training.run import Run


def as_known(runs: list[Run], store: Store | None) -> list[Run]:
    """Each run as the store has it finished, else as a checkpoint beside the store has it begun, else as it is."""
    if store is None:
        return runs
    finished = finished_cells(store)
    return [finished.get(identity(run)) or _begun(run, store) or run for run in runs]


def finished_cells(store: Store) -> dict[tuple[str, str], Run]:
    """Of a cell that is done under one execution and diverged under another, the run that is done."""
    stored = [run for status in reversed(FINISHED) for run, _ in store.runs(status=status)]
    return {identity(run): run for run in stored}


def identity(run: Run) -> tuple[str, str]:
    """Equal for runs that differ only in what was resolved for a machine."""
    return run.cell_key, run.content


def _begun(run: Run, store: Store) -> Run | None:
    """The run by another path of the layers, where that is what a checkpoint is of, and the path can be taken here."""
    folder = store.files / "checkpoints"
    if not folder.is_dir() or (folder / f"{run.key}.safetensors").exists():
        return None
    others = {"fast": "generated", "generated": "fast"}
    if run.execution.path not in others:
        return None
    other = run.replace(execution=run.execution.replace(path=others[run.execution.path]))
    if not (folder / f"{other.key}.safetensors").exists():
        return None
    if other.execution.path == "generated":
        from headwise.layers.cpu.tiled import works

        return other if works() else None
    return other
