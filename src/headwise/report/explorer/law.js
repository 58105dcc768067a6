// The fitted scaling law: the predicted effect of the move from A to B, with its interval. As ledger/law.py has it.
"use strict";

function lawFeatures(shape) {
  const o = { ...DATA.defaults };
  const body = parametersOf(countedLayers(shape, o), BigInt(shape.width), big(o)).body;
  const mean = (name) => shape.layers.reduce((sum, layer) => sum + layer[name], 0) / shape.layers.length;
  return { parameters: Number(body), steps: DATA.law.steps, depth: shape.depth, heads: mean("heads"), qk_rank: mean("qk_rank"), mlp: mean("mlp") };
}

function lawRow(shape) {
  const { names, centre, scale } = DATA.law, at = lawFeatures(shape);
  return [1, ...names.map((name, place) => (Math.log(at[name]) - centre[place]) / scale[place])];
}

function dot(a, b) {
  return a.reduce((sum, value, place) => sum + value * b[place], 0);
}

function leverage(row) {
  return dot(row, DATA.law.cover.map((line) => dot(line, row)));
}

// The loss of B over that of A, or why there is no number; `outside` is why it is not to be trusted.
function lawChange(a, b) {
  const { law } = DATA;
  if (![a, b].every((shape) => lawFeatures(shape).mlp)) return { none: "the law knows only models with an MLP" };
  const { low: least, high: most } = law.within.parameters;
  const beyond = Math.max(...[a, b].map((shape) => lawFeatures(shape).parameters).map((size) => Math.max(size / most, least / size)));
  if (beyond > law.farthest) return { none: `models ${short(Math.round(beyond))} times as large or small as any of the runs, and a law reaches ${law.farthest} times at most` };
  const start = lawRow(a), end = lawRow(b), move = end.map((value, place) => value - start[place]);
  const half = law.quantile * law.spread * Math.sqrt(2 + leverage(move));
  const own = Math.exp(dot(start, law.slopes)), moved = dot(move, law.slopes);
  const [value, low, high] = [0, -half, half].map((by) => (law.floor + own * Math.exp(moved + by)) / (law.floor + own));
  return { value, low, high, outside: [...new Set([...lawOutside(a), ...lawOutside(b)])] };
}

function lawOutside(shape) {
  const { law } = DATA, reasons = [];
  for (const [name, value] of Object.entries(lawFeatures(shape))) {
    const { low, high } = law.within[name];
    if (value < low || value > high) reasons.push(`${LAW_WORDS[name]} ${short(Math.round(value))}, runs have ${short(low)} to ${short(high)}`);
  }
  if (!reasons.length && leverage(lawRow(shape)) > law.farthest_leverage) reasons.push("no size alone, but their combination is farther from the runs than any of these is");
  const unseen = new Set();
  for (const layer of shape.layers) {
    const usual = { v_rank: layer.qk_rank, kv_heads: layer.heads, kv_latent: 0, q_latent: 0, rope_rank: layer.qk_rank };
    for (const [name, value] of Object.entries(usual)) if (layer[name] !== value) unseen.add(name);
  }
  return [...reasons, ...[...unseen].map((name) => `${name}, which the law does not look at`)];
}
const LAW_WORDS = { parameters: "parameters", steps: "steps", depth: "layers", heads: "heads", qk_rank: "rank", mlp: "MLP" };

function showPredicted(a, b) {
  const host = byId("predicted");
  if (!host) return;
  host.classList.remove("greyed");
  if (!b || writeShape(a) === writeShape(b)) return host.replaceChildren();
  const found = lawChange(a, b);
  if (found.none) {
    host.classList.add("greyed");
    return host.replaceChildren(make("b", {}, "Predicted effect: none. "), `These are ${found.none}.`);
  }
  const percent = (ratio) => `${ratio >= 1 ? "+" : "−"}${Math.abs(100 * (ratio - 1)).toFixed(1)} %`;
  host.classList.toggle("greyed", found.outside.length > 0);
  const trust = found.outside.length ? ` Not to be trusted: ${found.outside.join("; ")}.` : "";
  host.replaceChildren(make("b", {}, `Predicted effect of A → B on bits per byte: ${percent(found.value)} [${percent(found.low)}, ${percent(found.high)}]. `),
    `From a law fitted to ${DATA.law.points} small models (${DATA.law.trained}); the interval is for ${Math.round(100 * DATA.law.level)} % of such pairs.${trust}`);
}
