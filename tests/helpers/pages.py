"""A store whose page can be checked, with names that attack it."""

from headwise import studies
from headwise.report.page import MOST_METRICS
from headwise.training.run import RunResult

EVIL = "</td></table><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>\"'&amp;"
ENVIRONMENT = {"processor": f"chip {EVIL}", "cores": "2", "system": "Linux", "torch": "2"}


def error_of(place):
    return 0.02 if place["rank"] == 16 else 0.6 / place["depth"]


def fill(store):
    """rank-cliff as the paper says, one of its runs failed; two runs of another preset; more metrics than fit."""
    study = studies.load("rank-cliff")
    *finished, failed = study.of("laptop")
    for cell in [*finished, *study.of("published-size")[:2]]:
        metrics = {
            "error": error_of(cell.place) * (1 + 0.01 * cell.run.seed),
            "trivial_error": 2.0,
            EVIL: cell.run.seed,
        }
        metrics |= {f"probe-{number}": float(number) for number in range(MOST_METRICS)}
        result = RunResult(
            cell.run.key, "done", metrics, seconds=10.0, flops=10**9, parameters=1234, environment=ENVIRONMENT
        )
        store.add(cell.run, result)
    store.add(failed.run, RunResult(failed.run.key, "failed", message=f"Traceback\n{EVIL}", environment=ENVIRONMENT))
