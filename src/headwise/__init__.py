"""headwise: a laboratory for the shape of attention.

Names are loaded when first used, so that `import headwise` and `headwise --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwise.checkpoints.configuration import equal_cost as equal_cost
    from headwise.checkpoints.configuration import price as price
    from headwise.checkpoints.configuration import prices as prices
    from headwise.checkpoints.configuration import read_config as read_config
    from headwise.checkpoints.configuration import suggest as suggest
    from headwise.checkpoints.configuration import suggest_each as suggest_each
    from headwise.checkpoints.conversion import convert as convert
    from headwise.checkpoints.conversion import frontier as frontier
    from headwise.checkpoints.conversion.result import Conversion as Conversion
    from headwise.checkpoints.export import Exported as Exported
    from headwise.checkpoints.export import export_hf as export_hf
    from headwise.checkpoints.inspection import Inspection as Inspection
    from headwise.checkpoints.inspection import inspect as inspect
    from headwise.checkpoints.swap import swap as swap
    from headwise.checkpoints.truncation import Truncation as Truncation
    from headwise.checkpoints.truncation import truncate as truncate
    from headwise.comparison.answer import Answer as Answer
    from headwise.comparison.answer import PlannedComparison as PlannedComparison
    from headwise.comparison.answer import compare as compare
    from headwise.comparison.answer import compare_table as compare_table
    from headwise.comparison.answer import plan_comparison as plan_comparison
    from headwise.comparison.evidence.table import Evidence as Evidence
    from headwise.comparison.evidence.table import evidence as evidence
    from headwise.comparison.prediction import predict as predict
    from headwise.cost import known_models as known_models
    from headwise.extras import MissingExtra as MissingExtra
    from headwise.known import KNOWN as KNOWN
    from headwise.known import find as find
    from headwise.layers.attention import Attention as Attention
    from headwise.layers.cache import KVCache as KVCache
    from headwise.layers.multihead import MultiheadAttention as MultiheadAttention
    from headwise.ledger.study import Study as Study
    from headwise.measure.step_time import equal_time as equal_time
    from headwise.models import build as build
    from headwise.options import ModelOptions as ModelOptions
    from headwise.options import preset as preset
    from headwise.report.evidence_page import write_evidence as write_evidence
    from headwise.report.explorer import Explorer as Explorer
    from headwise.report.explorer import explore as explore
    from headwise.report.page import Report as Report
    from headwise.report.page import write_report as write_report
    from headwise.report.theory import bound as bound
    from headwise.report.theory import conditioning as conditioning
    from headwise.report.theory import heads_needed as heads_needed
    from headwise.shape import AttentionShape as AttentionShape
    from headwise.shape import ModelShape as ModelShape
    from headwise.shape import ShapeError as ShapeError
    from headwise.spec import SpecError as SpecError
    from headwise.store.dashboards import export_optuna as export_optuna
    from headwise.store.dashboards import export_wandb as export_wandb
    from headwise.store.listing import export_runs as export_runs
    from headwise.store.listing import find_run as find_run
    from headwise.store.listing import merge_runs as merge_runs
    from headwise.store.listing import remove_runs as remove_runs
    from headwise.store.listing import runs as runs
    from headwise.store.store import Store as Store
    from headwise.studies._catalogue import describe_study as describe_study
    from headwise.studies._catalogue import describe_task as describe_task
    from headwise.studies._catalogue import list_studies as list_studies
    from headwise.studies._catalogue import list_tasks as list_tasks
    from headwise.studies._demo import demo as demo
    from headwise.studies._demo import plan_demo as plan_demo
    from headwise.studies._running import Ledger as Ledger
    from headwise.studies._running import StudyResult as StudyResult
    from headwise.studies._running import claims as claims
    from headwise.studies._running import price_study as price_study
    from headwise.studies._running import run_study as run_study
    from headwise.sweep.single import Trained as Trained
    from headwise.sweep.single import train as train
    from headwise.tasks import Task as Task
    from headwise.training.doctor import doctor as doctor
    from headwise.training.run import Execution as Execution
    from headwise.training.run import Recipe as Recipe
    from headwise.training.run import Run as Run
    from headwise.training.run import RunResult as RunResult

__version__ = "0.2.0"

_HOME = {
    "Answer": "comparison.answer",
    "Attention": "layers.attention",
    "AttentionShape": "shape",
    "Evidence": "comparison.evidence.table",
    "Conversion": "checkpoints.conversion.result",
    "Execution": "training.run",
    "Explorer": "report.explorer",
    "Exported": "checkpoints.export",
    "Inspection": "checkpoints.inspection",
    "KNOWN": "known",
    "KVCache": "layers.cache",
    "Ledger": "studies._running",
    "MissingExtra": "extras",
    "ModelOptions": "options",
    "ModelShape": "shape",
    "MultiheadAttention": "layers.multihead",
    "PlannedComparison": "comparison.answer",
    "Recipe": "training.run",
    "Report": "report.page",
    "Run": "training.run",
    "RunResult": "training.run",
    "ShapeError": "shape",
    "SpecError": "spec",
    "Store": "store.store",
    "Study": "ledger.study",
    "StudyResult": "studies._running",
    "Task": "tasks",
    "Trained": "sweep.single",
    "Truncation": "checkpoints.truncation",
    "bound": "report.theory",
    "build": "models",
    "claims": "studies._running",
    "compare": "comparison.answer",
    "compare_table": "comparison.answer",
    "conditioning": "report.theory",
    "convert": "checkpoints.conversion",
    "demo": "studies._demo",
    "describe_study": "studies._catalogue",
    "describe_task": "studies._catalogue",
    "doctor": "training.doctor",
    "equal_cost": "checkpoints.configuration",
    "equal_time": "measure.step_time",
    "evidence": "comparison.evidence.table",
    "explore": "report.explorer",
    "export_hf": "checkpoints.export",
    "export_optuna": "store.dashboards",
    "export_runs": "store.listing",
    "export_wandb": "store.dashboards",
    "find": "known",
    "find_run": "store.listing",
    "frontier": "checkpoints.conversion",
    "heads_needed": "report.theory",
    "inspect": "checkpoints.inspection",
    "known_models": "cost",
    "list_studies": "studies._catalogue",
    "list_tasks": "studies._catalogue",
    "merge_runs": "store.listing",
    "remove_runs": "store.listing",
    "plan_comparison": "comparison.answer",
    "plan_demo": "studies._demo",
    "predict": "comparison.prediction",
    "preset": "options",
    "price": "checkpoints.configuration",
    "price_study": "studies._running",
    "prices": "checkpoints.configuration",
    "read_config": "checkpoints.configuration",
    "run_study": "studies._running",
    "runs": "store.listing",
    "suggest": "checkpoints.configuration",
    "suggest_each": "checkpoints.configuration",
    "swap": "checkpoints.swap",
    "train": "sweep.single",
    "truncate": "checkpoints.truncation",
    "write_evidence": "report.evidence_page",
    "write_report": "report.page",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'headwise' has no attribute '{name}'")
    return getattr(import_module(f"headwise.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
