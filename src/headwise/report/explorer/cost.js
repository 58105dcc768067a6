// Costs, as cost.py has them: exact, in BigInt. Tests hold both equal on thousands of random shapes.
"use strict";
const BODY_PARTS = ["query", "key", "value", "output", "latents", "mlp", "norms"];

function big(object) {
  const entries = Object.entries(object);
  return Object.fromEntries(entries.map(([k, v]) => [k, Number.isInteger(v) ? BigInt(v) : v]));
}

const when = (condition, value) => (condition ? value : 0n);

// With rotary positions half of each head is kept out of a latent, unless the shape says itself which part.
function completeShape(shape, options) {
  const stated = shape.layers.some((layer) => layer.kv_latent && layer.rope_rank);
  if (options.positions !== "rotary" || stated) return shape;
  const layers = shape.layers.map((layer) =>
    layer.kv_latent && !layer.rope_rank ? { ...layer, rope_rank: Math.floor(layer.qk_rank / 4) * 2 } : layer);
  return { ...shape, layers };
}

// The different layers as BigInt, and how many there are of each.
function countedLayers(shape, options) {
  const counts = new Map();
  for (const layer of completeShape(shape, options).layers) {
    const key = [...ATTENTION, "mlp"].map((name) => layer[name]).join();
    const known = counts.get(key);
    if (known) known.times += 1n;
    else counts.set(key, { layer: big(layer), times: 1n });
  }
  return [...counts.values()];
}

function priceOf(shape, options, { context = 0, batch = 1, dtype = "bfloat16" } = {}) {
  const layers = countedLayers(shape, options);
  const o = big(options);
  const w = BigInt(shape.width), size = BigInt(DATA.dtypes[dtype]), many = BigInt(batch);
  const length = BigInt(sequenceLength(options, context));
  const sum = (of) => layers.reduce((total, { layer, times }) => total + times * of(layer), 0n);
  const parameters = parametersOf(layers, w, o);
  const forward = sum((a) => layerFlops(a, o, length, length)) + edgeFlops(w, o, length);
  const training = 3n * forward;
  const decode = sum((a) => layerFlops(a, o, 1n, length + 1n, true)) + when(o.family === "decoder", 2n * w * o.vocab);
  const cached = sum(cachedPerToken) * size;
  const saved = sum((a) => layerSaved(a, o, length, many)) + many * length * edgeSaved(w, o);
  return {
    context: length,
    parameters,
    flops: { train_per_token: training / length, train: training, prefill: forward, decode },
    kv_bytes_per_token: cached,
    kv_bytes: cached * length * many,
    weight_bytes: parameters.total * size,
    training_state_bytes: parameters.total * 16n,
    activation_bytes: 4n * saved,
    decode_bytes: weightsRead(parameters, w, o) * size + cached * length * many,
  };
}

function sequenceLength(options, context = 0) {
  const patches = options.family === "vit" ? Math.floor(options.image / options.patch) ** 2 + 1 : options.context;
  return context || patches || DATA.default_context;
}

// ---- parameters --------------------------------------------------------------------------------------------------

function parametersOf(layers, w, o) {
  const parts = Object.fromEntries([...BODY_PARTS, "embeddings", "head"].map((name) => [name, 0n]));
  for (const { layer, times } of layers) {
    for (const [name, count] of Object.entries(layerParameters(layer, o))) parts[name] += times * count;
  }
  parts.norms += when(o.final_norm, norm(o, w));
  const body = Object.values(parts).reduce((a, b) => a + b);
  parts.embeddings = embeddings(w, o);
  parts.head = head(w, o);
  return { ...parts, body, total: body + parts.embeddings + parts.head };
}

function layerParameters(a, o) {
  const { width: w, heads: h, kv_heads: g, qk_rank: r, v_rank: v, kv_latent: c, q_latent: q, rope_rank: p, mlp } = a;
  const qkv = when(o.bias !== "none", 1n), every = when(o.bias === "all", 1n);
  const norms = (mlp ? 2n : 1n) * (o.norm_place === "sandwich" ? 2n : 1n);
  return {
    query: q ? h * r * q : h * r * (w + qkv),
    key: c ? c * g * (r - p) + p * (w + qkv) : g * r * (w + qkv),
    value: c ? c * g * v : g * v * (w + qkv),
    output: w * (h * v + every),
    latents: (q + c) * (w + qkv + 1n),
    mlp: when(mlp, mlp * (o.mlp_kind === "gated" ? 2n : 1n) * (w + every) + w * (mlp + every)),
    norms: norms * norm(o, w) + when(o.qk_norm === "rms", r + (c ? p : r)) + when(o.logit_scale, h),
  };
}

function norm(o, w) {
  return { layer: 2n * w, rms: w, unit: 1n }[o.norm] ?? 0n;
}

function tokensOf(o) {
  return o.family === "vit" ? (o.image / o.patch) ** 2n + 1n : o.context;
}

function embeddings(w, o) {
  if (o.family === "encoder") return 0n;
  if (o.family === "vit") return (o.channels * o.patch ** 2n + 1n) * w + w + tokensOf(o) * w;
  const places = when(o.positions === "learned", o.context), segments = when(o.family === "bert", o.segments);
  return (o.vocab + places + segments) * w + when(o.embedding_norm, norm(o, w));
}

function head(w, o) {
  const bias = when(o.bias === "all", 1n);
  if (o.family === "decoder") return when(!o.tied, o.vocab * w);
  if (o.family === "vit") return when(o.head === "classes", o.classes * (w + 1n));
  if (o.family !== "bert") return 0n;
  const pooler = when(o.pooler, w * (w + bias));
  if (o.head !== "mlm") return pooler + when(o.head === "classes", o.classes * (w + bias));
  return pooler + w * (w + bias) + norm(o, w) + when(!o.tied, o.vocab * w) + o.vocab * bias;
}

// Numbers that one decoded token reads: every weight but tables that are only looked up.
function weightsRead(parameters, w, o) {
  return parameters.total - parameters.embeddings + when(o.family === "decoder" && o.tied, o.vocab * w);
}

// ---- FLOPs -------------------------------------------------------------------------------------------------------

function layerFlops(a, o, queries, keys, cached = false) {
  const { width: w, heads: h, kv_heads: g, qk_rank: r, v_rank: v, kv_latent: c, q_latent: q, rope_rank: p, mlp } = a;
  let perToken = w * (q || h * r) + q * h * r + h * v * w;
  perToken += c ? w * (c + p) : w * g * (r + v);
  perToken += mlp * w * (o.mlp_kind === "gated" ? 3n : 2n);
  const expansion = c * ((c ? r - p : r) + v);
  const expanded = queries * keys * h * (r + v) + keys * g * expansion;
  const absorbed = queries * keys * h * (2n * c + p) + queries * h * expansion;
  return 2n * (queries * perToken + (cached && c && absorbed < expanded ? absorbed : expanded));
}

function edgeFlops(w, o, tokens) {
  if (o.family === "decoder") return 2n * tokens * w * o.vocab;
  if (o.family === "vit") {
    const patches = (tokens - 1n) * o.channels * o.patch ** 2n * w;
    return 2n * (patches + when(o.head === "classes", w * o.classes));
  }
  if (o.family === "bert" && o.head === "mlm") return 2n * tokens * w * (w + o.vocab);
  if (o.family === "bert" && o.head === "classes") return 2n * w * (when(o.pooler, w) + o.classes);
  return 0n;
}

// ---- bytes -------------------------------------------------------------------------------------------------------

function cachedPerToken(a) {
  return a.kv_latent ? a.kv_latent + a.rope_rank : a.kv_heads * (a.qk_rank + a.v_rank);
}

function layerSaved(a, o, tokens, batch) {
  const parts = a.mlp ? 2n : 1n;
  const norms = normSaved(o, a.width) * (o.norm_place === "sandwich" ? 2n : 1n);
  const perToken = parts * (a.width + norms) + attentionSaved(a, o) + mlpSaved(a.mlp, o);
  const rotations = when(o.positions === "rotary", 2n * tokens * (a.rope_rank - (a.rope_rank % 2n)));
  return batch * tokens * perToken + rotations;
}

function attentionSaved(a, o) {
  const { heads: h, kv_heads: g, qk_rank: r, v_rank: v, kv_latent: c, q_latent: q, rope_rank: p } = a;
  const normed = o.qk_norm !== "none", weighted = when(o.qk_norm === "rms", 1n);
  let saved = h * r + (c ? h : g) * (r + v) + h * v + h;
  if (normed || c || q || o.logit_scale) saved += (q || h * r) + (c ? c + p : g * (r + v));
  if (normed) {
    saved += h * (1n + r * weighted) + (c ? 1n + p * weighted : g * (1n + r * weighted));
    saved += when(q, h * r);
  }
  return saved + 2n * (q + c) + when(o.logit_scale && (normed || q), h * r);
}

function mlpSaved(mlp, o) {
  if (o.mlp_kind === "gated") return mlp * (o.activation === "relu2" ? 5n : 4n);
  return mlp * activationSaved(o);
}

function activationSaved(o) {
  return o.activation === "relu" ? 1n : 2n;
}

function normSaved(o, w) {
  const more = { layer: 2n, "layer-plain": 2n, rms: w + 1n, "rms-plain": 1n, unit: w + 2n }[o.norm];
  return more === undefined ? 0n : w + more;
}

function edgeSaved(w, o) {
  const each = normSaved(o, w), read = when(o.head !== "none", w);
  let saved = when(o.final_norm, each);
  if (o.family === "vit") return saved + o.channels * o.patch ** 2n + read;
  if (o.family === "encoder") return saved;
  saved += 2n + when(o.embedding_norm, each) + read;
  if (o.family === "decoder") return saved + when(o.softcap, o.vocab);
  return saved + when(o.segments, 2n) + when(o.head === "mlm", activationSaved(o) * w + each);
}

// ---- what is held equal ------------------------------------------------------------------------------------------

// Of one layer, as search.py counts it: parameters of the body, training FLOPs, or cached numbers.
function heldCost(hold, layer, options, length) {
  const a = big(layer), o = big(options), tokens = BigInt(length);
  if (hold === "kv") return cachedPerToken(a);
  if (hold === "flops") return layerFlops(a, o, tokens, tokens);
  return Object.values(layerParameters(a, o)).reduce((x, y) => x + y);
}
