"""Pictures of conversions: budget against loss with a slider, and heat maps of what each layer lost."""

from typing import Any

from headwise.charts.grammar import alt
from headwise.checkpoints.conversion.result import Conversion, Frontier

NAMES = ("converted", "healed")


def frontier_chart(several: Frontier) -> Any:
    """The slider is a budget: points within it are drawn full, and the best of them is named."""
    points = [
        {"kv": row["kv"], "loss": row[name], "low": row[f"{name}_low"], "high": row[f"{name}_high"], "which": name}
        | {"shape": row["shape"], "text": f"{row['shape']}: {row[name]:+.2%}"}
        for row in several.records()
        for name in NAMES
        if row[name] is not None
    ]
    slider = alt.binding_range(min=0.05, max=1, step=0.05, name="KV cache budget ")
    budget = alt.param("budget", value=1, bind=slider)
    base = alt.Chart(alt.Data(values=points)).encode(
        x=alt.X("kv:Q", title="KV cache, of the original's").axis(format="%"),
        color=alt.Color("which:N", title=None),
    )
    loss = alt.Y("loss:Q", title="change of the loss on held-out text").axis(format="+%")
    shown = ["shape:N", "which:N", alt.Tooltip("loss:Q", format="+.2%")]
    within = alt.condition(alt.datum.kv <= budget, alt.value(1), alt.value(0.15))
    lines = base.mark_line(opacity=0.3).encode(y=loss)
    dots = base.mark_point(filled=True, size=70).encode(y=loss, tooltip=shown, opacity=within)
    bars = base.mark_rule().encode(y="low:Q", y2="high:Q", opacity=within)
    best = (
        alt.Chart(alt.Data(values=points))
        .transform_filter(alt.datum.kv <= budget)
        .transform_window(rank="rank()", sort=[alt.SortField("loss")])
        .transform_filter(alt.datum.rank == 1)
        .mark_text(dy=-12)
        .encode(x="kv:Q", y="loss:Q", text="text:N")
    )
    top = (lines + bars + dots + best).add_params(budget).properties(title=several.headline, width=480, height=300)
    return top & layer_charts(several.conversions)


def layer_charts(conversions: tuple[Conversion, ...]) -> Any:
    """One row per conversion, one column per layer: the error that is left, and what layers were measured to need."""
    fitted = [
        {"row": f"{one.after}, {which}", "layer": layer.layer, "error": getattr(layer, name)}
        for one in conversions
        for layer in one.layers
        for which, name in (("worked out", "worked_out"), ("fitted", "fitted"))
    ]
    needs = [
        {"row": f"{found.kv_heads} key/value heads", "layer": found.layer, "error": found.error}
        for one in conversions
        for found in one.sensitivity
    ]
    worth = [
        {"row": f"{one.after}, head {found.head}", "layer": found.layer, "error": found.score}
        for one in conversions
        for found in one.importance
        if found.head is not None
    ]
    gap = "|new - old|² / |old|²"
    maps = [
        (fitted, "error of attention's outputs", gap),
        (needs, "error of the last states, one layer joined alone", gap),
        (worth, "what heads are worth", "share of the layer"),
    ]
    return alt.vconcat(*(_heat(*one) for one in maps if one[0])).resolve_scale(color="independent")


def _heat(rows: list[dict[str, Any]], title: str, scale: str) -> Any:
    return (
        alt.Chart(alt.Data(values=rows))
        .mark_rect()
        .encode(
            x=alt.X("layer:O", title="layer"),
            y=alt.Y("row:N", title=None, sort=None),
            color=alt.Color("error:Q", title=scale),
            tooltip=["row:N", "layer:O", alt.Tooltip("error:Q", format=".2%")],
        )
        .properties(title=title, width=480)
    )
