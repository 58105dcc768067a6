"""The store's runs on a dashboard: an Optuna study per task in a SQLite file, or a table of Weights & Biases."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headwise.extras import extra
from headwise.store.exported import table_rows
from headwise.store.opening import StoreLike, opened
from headwise.store.records import Record, StoreError

PARAMETERS: tuple[str, ...] = (
    "shape",
    "width",
    "heads",
    "qk_rank",
    "v_rank",
    "kv_heads",
    "kv_latent",
    "depth",
    "mlp",
    "learning_rate",
)
PARAMETERS += ("steps", "seed")  # of a run, as an optimiser would have chosen them
FACTS = ("key", "parameters", "flops", "seconds", "tokens", "kernel", "created", "provenance")


def export_optuna(path: str | Path, store: StoreLike = None) -> int:
    """Write a SQLite file that optuna-dashboard opens, with a study per task; how many runs it has.

    A trial is a run: sizes, learning rate and seed are its parameters, the test error its value, the validation curve
    its intermediate values. A file that is there is not written to.
    """
    with extra("track", "Optuna's studies"):
        import optuna

    path = Path(path).expanduser()
    if path.exists():
        raise StoreError(f"{path} exists; choose another name, since studies of Optuna cannot be replaced one by one")
    with opened(store) as source:
        _, rows = table_rows(source.records())
        curves = {row["key"]: source.curve(row["key"]) for row in rows}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        storage = optuna.storages.RDBStorage(f"sqlite:///{path.resolve()}")
    except (OSError, optuna.exceptions.StorageInternalError) as error:
        raise StoreError(f"cannot write {path}: {error}") from None
    for task in dict.fromkeys(row["task"] for row in rows):
        mine = [row for row in rows if row["task"] == task]
        study = optuna.create_study(study_name=task, storage=storage, direction="minimize")
        study.add_trials(_trials(optuna, mine, curves))
    return len(rows)


def _trials(optuna: Any, rows: list[Record], curves: dict[str, Any]) -> Iterable[Any]:
    names = [name for name in PARAMETERS if any(row.get(name) is not None for row in rows)]
    spaces = {name: _space(optuna, name, [row.get(name) for row in rows]) for name in names}
    for row in rows:
        error = row.get("error")
        done = row["status"] == "done" and error is not None and math.isfinite(error)
        params = {name: _value(spaces[name], row.get(name)) for name in names}
        points = {int(step): value for step, name, value in curves[row["key"]] if name == "error"}
        yield optuna.trial.create_trial(
            params=params,
            distributions=spaces,
            value=error if done else None,
            state=optuna.trial.TrialState.COMPLETE if done else optuna.trial.TrialState.FAIL,
            intermediate_values={step: value for step, value in points.items() if math.isfinite(value)},
            user_attrs={name: row.get(name) for name in FACTS},
        )


def _space(optuna: Any, name: str, values: list[Any]) -> Any:
    """What a parameter could have been: the range of what it was, or its values where these are no numbers."""
    if all(isinstance(value, int) for value in values):
        return optuna.distributions.IntDistribution(min(values), max(values))
    if name == "learning_rate":
        return optuna.distributions.FloatDistribution(min(values), max(values), log=True)
    return optuna.distributions.CategoricalDistribution(list(dict.fromkeys(map(str, values))))


def _value(space: Any, value: Any) -> Any:
    return str(value) if hasattr(space, "choices") else value


def export_wandb(project: str, store: StoreLike = None) -> int:
    """Log the store's runs as one table, a row per run, to a project of Weights & Biases; how many there are."""
    with extra("track", "tables of Weights & Biases"):
        import wandb

    with opened(store) as source:
        names, rows = table_rows(source.records())
    # a column of a table has one type: what is a number in one row and text in another becomes text
    texts = {name for name in names if any(isinstance(row.get(name), str) for row in rows)}
    data = [[_plain(row.get(name), name in texts) for name in names] for row in rows]
    session = wandb.init(project=project, job_type="results")
    session.log({"runs": wandb.Table(columns=names, data=data)})
    session.finish()
    return len(rows)


def _plain(value: Any, as_text: bool) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value if value is None or not as_text else str(value)
    return json.dumps(value)
