// The page: two models, their prices, the curve, what to copy, a trained model's heads, the ledger. Its state is its address.
"use strict";
const COSTS = [
  ["Parameters", (cost) => cost.parameters.total, false, "embeddings and head included, where the model has them"],
  ["of the body", (cost) => cost.parameters.body, false, "the layers: what shapes are compared on", true],
  ["of attention", (cost) => ["query", "key", "value", "output", "latents"].reduce((sum, part) => sum + cost.parameters[part], 0n), false, "", true],
  ["of the MLPs", (cost) => cost.parameters.mlp, false, "", true],
  ["Training FLOPs per token", (cost) => cost.flops.train_per_token, false, "forward and backward, at this context"],
  ["Prefill FLOPs", (cost) => cost.flops.prefill, false, "one forward pass over the context"],
  ["Decode FLOPs per token", (cost) => cost.flops.decode, false, "one more token after the context"],
  ["KV cache per token", (cost) => cost.kv_bytes_per_token, true, "all layers"],
  ["KV cache, context × batch", (cost) => cost.kv_bytes, true, ""],
  ["Bytes read per decoded token", (cost) => cost.decode_bytes, true, "every weight once for the whole batch, and the batch's KV cache"],
  ["Weights", (cost) => cost.weight_bytes, true, ""],
  ["Training state", (cost) => cost.training_state_bytes, true, "float32 weights, gradients and AdamW's two moments"],
  ["Activations of a training step", (cost) => cost.activation_bytes, true, "float32, fused attention, nothing recomputed"],
];

const settings = byId("settings");
let loading = true;
const models = { a: new ModelForm("a", refresh), b: new ModelForm("b", refresh) };
const ledger = DATA.claims.length ? new Ledger(remember) : null;
const curve = new CurveChart(byId("curve-chart"), (shape) => {
  if (!models.b.shape) adopt();
  models.b.setShape(shape);
});
const heat = new HeatMaps(byId("heat"));

// B around which the same stands as around A.
function adopt() {
  models.b.like = models.a.like;
  models.b.changes = { ...models.a.changes };
  models.b.note = models.a.note;
}

function asked() {
  const value = (name) => Number(settings.elements[name].value) || 0;
  return { context: value("context"), batch: Math.max(1, value("batch")), dtype: settings.elements.dtype.value };
}

// ---- what is shown -----------------------------------------------------------------------------------------------

function refresh() {
  if (loading) return;
  const { a, b } = models;
  byId("model-b").hidden = !b.shape && !b.field.value;
  byId("add-b").hidden = !byId("model-b").hidden;
  byId("drop-b").hidden = byId("model-b").hidden;
  if (a.shape) {
    settings.elements.context.placeholder = String(sequenceLength(a.options));
    showCosts();
    showCurve();
    showCopies();
    showEvidence(a.shape, b.shape);
    if (DATA.law) showPredicted(a, b);
  }
  remember();
}

function priced(model) {
  try {
    return priceOf(model.shape, model.options, asked());
  } catch (error) {
    if (error instanceof RangeError) return null; // an option that makes no sense, such as a patch of 0
    throw error;
  }
}

function showCosts() {
  const { a, b } = models;
  const first = priced(a), second = b.shape ? priced(b) : null;
  const cell = (amount, bytes) => make("td", { class: "number" }, short(amount, bytes), make("small", {}, exactly(amount)));
  const rows = first ? COSTS.map(([name, of, bytes, about, part]) => make("tr", { class: part ? "part" : "" },
    make("th", { scope: "row" }, name, about ? make("small", {}, about) : ""), cell(of(first), bytes),
    ...(second ? [cell(of(second), bytes), make("td", { class: "number change" }, difference(of(first), of(second)))] : []))) : [];
  rows.push(
    make("tr", {}, make("th", { scope: "row" }, "PyTorch's kernel on a GPU", make("small", {}, "headwise doctor says it for your machine")),
      make("td", { class: "number" }, kernelOf(a.shape)), ...(second ? [make("td", { class: "number" }, kernelOf(b.shape)), make("td", {})] : [])),
    make("tr", {}, make("th", { scope: "row" }, "Certified least error", make("small", {}, "nearest of two points, one layer of these heads with scalar values; 0.5 is guessing")),
      make("td", { class: "number" }, leastError(a.shape)), ...(second ? [make("td", { class: "number" }, leastError(b.shape)), make("td", {})] : [])));
  byId("costs").replaceChildren(
    make("thead", {}, make("tr", {}, make("th", { scope: "col" }), make("th", { scope: "col", class: "number" }, make("span", { class: "chip a" }, "A")),
      ...(second ? [make("th", { scope: "col", class: "number" }, make("span", { class: "chip b" }, "B")), make("th", { scope: "col", class: "number" }, "B against A")] : []))),
    make("tbody", {}, ...rows));
  const { context, batch } = { ...asked(), context: first?.context ?? 0n };
  const notes = Object.values(models).filter((model) => model.shape && model.note).map((model) => `${model.name.toUpperCase()}: ${model.note}.`);
  byId("costs-about").textContent = [`${short(first?.parameters.total ?? 0n)} parameters in ${a.text}; sequences of ${exactly(context)} tokens, batches of ${batch}.`, ...notes].join(" ");
}

// Only different key spaces count: a latent makes all of them one.
function leastError(shape) {
  const layer = shape.layers[0];
  const [rank, heads] = layer.kv_latent ? [Math.min(shape.width, layer.kv_latent + layer.rope_rank), 1] : [Math.min(shape.width, layer.qk_rank), layer.kv_heads];
  return scalarBound(shape.width, rank, heads).toFixed(3);
}

function showCurve() {
  const { a, b } = models;
  const [x, y] = settings.elements.trade.value.split("-");
  const of = (shape, name) => (name === "depth" ? shape.depth : name === "width" ? shape.width : shape.layers[0][name]);
  const words = (shape) => `${AXIS_WORDS[x]} ${of(shape, x)}, ${AXIS_WORDS[y]} ${of(shape, y)}`;
  byId("curve-title").textContent = b.shape && b.text !== a.text ? `A: ${words(a.shape)}. B: ${words(b.shape)}` : `Where the ${HELD_WORDS[settings.elements.hold.value]} of A would also buy something else: move B`;
  curve.show({
    a: a.shape, b: b.shape, options: a.options, length: sequenceLength(a.options, asked().context), hold: settings.elements.hold.value,
    trade: settings.elements.trade.value, onKnown: (name) => models.b.setKnown(name),
  });
}

function showCopies() {
  const chosen = models.b.shape ? models.b : models.a;
  const { config, why } = writeConfig(chosen.shape, chosen.options);
  const nanochat = nanochatFlags(chosen.shape);
  const items = [
    ["Shape", chosen.text],
    ["Compare them, on your text", compareCommand(models.a.text, models.b.shape && models.b.text, settings.elements.hold.value)],
    ["Its price", `headwise cost ${DATA.known.some(({ name, shape }) => name === chosen.like && shape === chosen.text) ? chosen.like : chosen.text}`],
    ["nanochat's flags", nanochat.flags, nanochat.why],
    ["config.json", config && JSON.stringify(config, null, 2), why],
  ];
  byId("copies").replaceChildren(...items.flatMap(([name, text, reason]) => [
    make("dt", {}, name), make("dd", {}, ...(text ? [make("pre", { tabindex: 0 }, text), copyButton(() => text, name)] : [make("p", { class: "note" }, `None: ${reason}.`)])),
  ]));
  byId("copies-of").replaceChildren("Of ", make("span", { class: `chip ${chosen.name}` }, chosen.name.toUpperCase()), ".");
}

// ---- the address -------------------------------------------------------------------------------------------------

function remember() {
  if (loading) return;
  const state = new URLSearchParams();
  for (const model of Object.values(models)) {
    if (!model.shape) continue;
    state.set(model.name, model.text);
    if (model.like !== (model.name === "b" ? models.a.like : "")) state.set(`${model.name}.like`, model.like);
    for (const [name, value] of Object.entries(model.changes)) state.set(`${model.name}.${name}`, value);
  }
  for (const name of ["context", "batch", "dtype", "hold", "trade"]) {
    const { value, defaultValue, options } = settings.elements[name];
    const usual = options ? [...options].find((option) => option.defaultSelected)?.value ?? options[0].value : defaultValue;
    if (value !== usual) state.set(name, value);
  }
  for (const [name, value] of Object.entries(ledger?.state ?? {})) if (value && value !== "ledger") state.set(name, value);
  history.replaceState(null, "", `#${state}`);
}

function typed(name, text) {
  const about = DATA.options[name];
  return about.choices ? text : about.type === "boolean" ? text === "true" : Number(text);
}

function recall() {
  const state = new URLSearchParams(location.hash.slice(1));
  loading = true;
  for (const name of ["context", "batch", "dtype", "hold", "trade"]) if (state.has(name)) settings.elements[name].value = state.get(name);
  const shapes = { a: state.get("a") ?? DATA.start[0] ?? "w512-h8-L6", b: state.get("b") ?? (state.has("a") ? null : DATA.start[1]) };
  for (const [name, text] of Object.entries(shapes)) {
    if (!text) {
      models[name].clear();
      continue;
    }
    const changes = {};
    for (const option of Object.keys(DATA.options)) if (state.has(`${name}.${option}`)) changes[option] = typed(option, state.get(`${name}.${option}`));
    const known = DATA.known.find((one) => one.name === text);
    const around = name === "b" ? models.a.like : ""; // what is around A, unless the address says it
    models[name].setState({ shape: known ? known.shape : text, like: state.get(`${name}.like`) ?? (known ? text : around), changes });
  }
  if (ledger) ledger.state = Object.fromEntries(state);
  loading = false;
  refresh();
}

settings.addEventListener("input", refresh);
settings.addEventListener("submit", (event) => event.preventDefault());
byId("add-b").addEventListener("click", () => {
  adopt();
  models.b.setShape(models.a.shape);
  models.b.field.focus();
});
byId("drop-b").addEventListener("click", () => {
  models.b.clear();
  refresh();
});
byId("swap").addEventListener("click", () => {
  if (!models.b.shape) return;
  const state = ({ text, like, changes }) => ({ shape: text, like, changes });
  const [a, b] = [state(models.a), state(models.b)];
  loading = true;
  models.a.setState(b);
  models.b.setState(a);
  loading = false;
  refresh();
});
for (const link of document.querySelectorAll("nav a")) {
  link.addEventListener("click", (event) => {
    event.preventDefault();
    const section = document.querySelector(link.getAttribute("href"));
    section.scrollIntoView();
    section.querySelector("h2").focus({ preventScroll: true });
  });
}
window.addEventListener("hashchange", recall);

// ---- an inspection -----------------------------------------------------------------------------------------------

function loadInspection(text) {
  const told = byId("inspect-problem");
  try {
    heat.load(text);
    told.textContent = "";
  } catch (error) {
    told.textContent = error instanceof SyntaxError ? "This is not JSON: give the file that headwise inspect --json printed." : error.message;
  }
}
byId("inspect-file").addEventListener("change", (event) => event.target.files[0] && readFile(event.target.files[0], loadInspection));
for (const kind of ["dragover", "drop"]) {
  document.addEventListener(kind, (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    if (kind === "drop" && event.dataTransfer.files[0]) readFile(event.dataTransfer.files[0], loadInspection);
  });
}
if (DATA.inspection) heat.load(JSON.stringify(DATA.inspection));
recall();
