"""The page of `headwise inspect --report`: the explorer, led by the heat maps of one model, with advice."""

from pathlib import Path
from typing import Any

from headwise.checkpoints.inspection import KEEP, Inspection
from headwise.report.explorer import render
from headwise.report.page import page_path, write_file

ALIKE = 0.9  # a cosine from which two heads do nearly the same
UNTRAINED = 0.95  # of the rank that random weights would use


def write_inspection(inspection: Inspection, checkpoint: str, out: str | Path) -> Path:
    """Write the page: a file (x.html), or a folder for it."""
    model = Path(checkpoint).name or checkpoint
    document = inspection.as_dict() | {"model": model, "advice": advice(inspection, checkpoint)}
    return write_file(render([str(inspection.shape)], inspection=document, lead=model), page_path(out))


def advice(inspection: Inspection, checkpoint: str) -> list[dict[str, str]]:
    """What the numbers suggest trying, each with the command that measures it; no number here predicts a loss."""
    kept, shape = inspection.kept, inspection.shape
    place = f"'{checkpoint}'" if " " in checkpoint else checkpoint
    cut = f"QK keeps {KEEP:.0%} of its energy in {kept['qk']:.0%} of its rank, VO in {kept['vo']:.0%}"
    worth = "a smaller rank is worth a try" if min(kept.values()) < UNTRAINED else "there is little rank to take away"
    items = [
        {
            "text": f"{cut}: {worth}. Energy of weights does not predict the loss, so measure it on your text.",
            "command": f"headwise truncate {place} --keep {KEEP:g} --data my.txt --out smaller",
        }
    ]
    if shape.layers[0].kv_heads > 1 or shape.layers[0].kv_latent:
        said = f"A decoder with these heads keeps {inspection.kv_bytes_per_token:,} bytes per token; half of them:"
        items.append({"text": said, "command": f"headwise convert {place} --kv 50% --data my.txt --out smaller"})
    if alike := _alike(inspection):
        said = f"{alike} heads have a cosine above {ALIKE} with another of their layer; with fewer heads:"
        items.append({"text": said, "command": f"headwise convert {place} --params 80% --data my.txt --out smaller"})
    said = "What others changed in models of this shape, and how it went"
    items.append({"text": f"{said}:", "command": f"headwise suggest {shape} --goal memory"})
    return items


def _alike(inspection: Inspection) -> int:
    heads: list[Any] = [head for layer in inspection.layers for head in layer.heads]
    return sum(max(head.qk_overlap, head.vo_overlap) > ALIKE for head in heads)
