"""What models cost, for a terminal of 80 columns: one model by part, or several as columns."""

from rich.console import RenderableType

from headwise.cost import BODY_PARTS, Cost, Costs
from headwise.report.tables import _table, short

PARTS = (*BODY_PARTS, "mixing", "style", "merging", "experts", "router", "embeddings", "head")
COUNT = ("", "k", "M", "B", "T", "Q")


def cost_table(cost: Cost) -> list[RenderableType]:
    """Parameters by part, then everything else."""
    heading = f"{cost.known_as}  {cost.shape}".strip()
    counts = cost.parameters
    parts = _table("<parameters", "", title=heading)
    for name in PARTS:
        if counts.get(name):
            parts.add_row(f"  {name}", f"{counts[name]:,}")
    if counts["total"] != counts["body"]:
        parts.add_row("  body (all but embeddings and head)", f"{counts['body']:,}")
    parts.add_row("total", f"[bold]{counts['total']:,}[/bold]")
    if cost.parameters_active != counts["total"]:
        parts.add_row("active (what one token meets)", f"{cost.parameters_active:,}")
    many = "one sequence" if cost.batch == 1 else f"{cost.batch} sequences"
    rest = _table(f"<{many} of {cost.context:,} tokens", "")
    rest.add_row(
        "  training (one)",
        f"{short(cost.flops['train'], 'FLOP')} ({short(cost.flops['train_per_token'], 'FLOP')} per token)",
    )
    rest.add_row("  prefill (one)", short(cost.flops["prefill"], "FLOP"))
    rest.add_row("  one more token", f"{short(cost.flops['decode'], 'FLOP')}, reads {short(cost.decode_bytes, 'B')}")
    rest.add_row("  KV cache", f"{short(cost.kv_bytes, 'B')} ({cost.kv_bytes_per_token:,} bytes/token, {cost.dtype})")
    rest.add_row("  activations kept", f"about {short(cost.activation_bytes, 'B')} (float32, fused attention)")
    rest.add_row("  weights", f"{short(cost.weight_bytes, 'B')} ({cost.dtype})")
    rest.add_row("  training state", f"{short(cost.training_state_bytes, 'B')} (float32, AdamW)")
    return [parts, "", rest, *_notes(cost)]


def costs_table(costs: Costs) -> list[RenderableType]:
    """A column per model."""
    first = costs.costs[0]
    table = _table("<", *(cost.known_as or cost.shape for cost in costs.costs))
    rows = {
        "parameters": lambda cost: short(cost.parameters["total"], prefixes=COUNT),
        "  active": lambda cost: short(cost.parameters_active, prefixes=COUNT),
        "  body": lambda cost: short(cost.parameters["body"], prefixes=COUNT),
        "context": lambda cost: f"{cost.context:,}",
        "training FLOPs/token": lambda cost: short(cost.flops["train_per_token"]),
        "decode FLOPs": lambda cost: short(cost.flops["decode"]),
        "decode reads": lambda cost: short(cost.decode_bytes, "B"),
        "KV bytes/token": lambda cost: f"{cost.kv_bytes_per_token:,}",
        f"KV cache × {first.batch}": lambda cost: short(cost.kv_bytes, "B"),
        "weights": lambda cost: short(cost.weight_bytes, "B"),
        "activations kept": lambda cost: short(cost.activation_bytes, "B"),
        "training state": lambda cost: short(cost.training_state_bytes, "B"),
        "head dim": lambda cost: str(cost.kernels["head_dim"]),
    }
    for name, show in rows.items():
        table.add_row(name, *(show(cost) for cost in costs.costs))
    warnings = [
        f"{cost.known_as or cost.shape}: {warning}" for cost in costs.costs for warning in _warnings(cost) if warning
    ]
    notes = [f"[dim]weights and KV cache in {first.dtype}; activations in float32, fused attention[/dim]"]
    return [table, "", *notes, *warnings]


def _warnings(cost: Cost) -> list[str]:
    return [cost.kernels["warning"], cost.beyond]


def _notes(cost: Cost) -> list[RenderableType]:
    fit = cost.kernels
    served = f"GPU kernels for heads of {fit['head_dim']}: {', '.join(fit['kernels']) or 'none'}"
    notes: list[RenderableType] = ["", f"[dim]{served}[/dim]"]
    notes += [f"[yellow]Warning: {warning}.[/yellow]" for warning in _warnings(cost) if warning]
    if not cost.known_as and not cost.parameters["embeddings"]:
        notes += ["", "[dim]A bare shape is a body: no embeddings, head or biases. Add them with --family.[/dim]"]
    return notes
