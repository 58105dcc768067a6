"""A chart as data for a page whose script draws it: hover, zoom, and words for those who do not see it.

The page carries Vega's own libraries once (`library`), about 0.9 MB, and loads nothing.
"""

import hashlib
import json
from typing import Any

_LEFT_OUT = ("$schema", "usermeta")


def live(chart: Any) -> dict[str, Any]:
    """The chart as Vega-Lite, described in words; values that several layers draw are in it once."""
    spec = {name: value for name, value in chart.to_dict(validate=False).items() if name not in _LEFT_OUT}
    shared: dict[str, Any] = {}
    spec = _sharing(spec, shared) | {"description": in_words(spec)}
    return spec | {"datasets": shared | spec.get("datasets", {})}


def _sharing(part: Any, shared: dict[str, Any]) -> Any:
    """A part of a specification with its inline values by name, and those values in `shared`."""
    if isinstance(part, list):
        return [_sharing(one, shared) for one in part]
    if not isinstance(part, dict):
        return part
    values = part.get("data", {}).get("values") if isinstance(part.get("data"), dict) else None
    if values is not None:
        name = hashlib.sha256(json.dumps(values).encode()).hexdigest()[:8]
        shared[name] = values
        part = part | {"data": {"name": name}}
    return {name: value if name == "data" else _sharing(value, shared) for name, value in part.items()}


def in_words(spec: dict[str, Any]) -> str:
    """What a chart shows: its title and notes, what its axes are, and what has a colour of its own."""
    axes: dict[str, dict[str, None]] = {"x": {}, "y": {}}
    series: dict[str, None] = {}
    for encoding in _encodings(spec):
        for name, titles in axes.items():
            if title := encoding.get(name, {}).get("title"):
                titles[str(title)] = None
        series |= dict.fromkeys(map(str, encoding.get("color", {}).get("scale", {}).get("domain", [])))
    parts = [
        *_lines(spec.get("title", "")),
        *(f"{name}: {', '.join(titles)}" for name, titles in axes.items() if titles),
    ]
    parts += [f"colours: {', '.join(series)}"] if series else []
    return ". ".join(part.rstrip(".") for part in parts if part) + "."


def _encodings(part: Any) -> list[dict[str, Any]]:
    inside = part.values() if isinstance(part, dict) else part if isinstance(part, list) else []
    own = [part["encoding"]] if isinstance(part, dict) and "encoding" in part else []
    return own + [found for one in inside for found in _encodings(one)]


def _lines(title: Any) -> list[str]:
    """A title and its notes, each as one sentence."""
    if isinstance(title, str):
        return [title]
    text, notes = title.get("text", ""), title.get("subtitle", [])
    return [text if isinstance(text, str) else " ".join(text), *([notes] if isinstance(notes, str) else notes)]


def library() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script."""
    from headwise.charts.grammar import bundle

    return bundle()
