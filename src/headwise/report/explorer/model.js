// One model of the two: its form, its text, and what is around its layers.
"use strict";
const SIZE_WORDS = {
  heads: "heads", qk_rank: "QK rank", v_rank: "V rank", kv_heads: "KV heads", kv_latent: "KV latent", q_latent: "Q latent",
  rope_rank: "rotary part", mlp: "MLP",
};

// Options by what they are like: nothing (layers alone), "family:gpt2", or a known model's name; then what was changed.
function optionsOf({ like, changes }) {
  if (!like) return { ...DATA.defaults, ...changes };
  if (like.startsWith("family:")) {
    const name = like.slice("family:".length);
    return presetOptions(name, { ...DATA.family_needs[DATA.presets[name].family ?? "encoder"], ...changes });
  }
  return { ...DATA.known.find((known) => known.name === like).options, ...changes };
}

function differingOptions(options, like) {
  const usual = optionsOf({ like, changes: {} });
  return Object.fromEntries(Object.entries(options).filter(([name, value]) => value !== usual[name]));
}

function kernelOf(shape) {
  const layers = shape.layers.filter((layer, at) => at === 0 || !sameLayer(layer, shape.layers[at - 1]));
  const reasons = layers.map((layer) => {
    if (layer.qk_rank !== layer.v_rank) return "memory-efficient (ranks of QK and V differ)";
    return layer.qk_rank > 256 ? "memory-efficient (rank above 256)" : layer.qk_rank % 8 ? "flash, padded to a multiple of 8" : "flash";
  });
  return [...new Set(reasons)].join("; ");
}

class ModelForm {
  constructor(name, onChange) {
    this.name = name;
    this.onChange = onChange;
    this.like = "";
    this.changes = {};
    this.note = "";
    this.values = null; // as written: only what is not usual
    this.host = byId(`model-${name}`);
    this.build();
  }

  get options() {
    return optionsOf(this);
  }

  get text() {
    return this.shape ? writeShape(this.shape) : "";
  }

  build() {
    const id = (part) => `${this.name}-${part}`;
    const title = this.name.toUpperCase();
    this.start = make("select", { id: id("start") }, make("option", { value: "" }, "choose a known model …"),
      ...DATA.known.map((known) => make("option", { value: known.name }, known.name)));
    this.start.addEventListener("change", () => this.start.value && this.setKnown(this.start.value));
    this.field = make("input", { id: id("shape"), class: "shape", spellcheck: "false", autocapitalize: "off", autocomplete: "off", "aria-describedby": id("problem") });
    this.field.addEventListener("input", () => this.setText(this.field.value, false));
    this.problem = make("div", { id: id("problem"), class: "problem", role: "alert" });
    this.sizes = make("div", { class: "sizes" });
    this.around = make("select", { id: id("like") }, make("option", { value: "" }, "the layers alone"),
      make("optgroup", { label: "a family" }, ...Object.keys(DATA.presets).map((name) => make("option", { value: `family:${name}` }, name))),
      make("optgroup", { label: "as in a known model" }, ...DATA.known.map(({ name }) => make("option", { value: name }, name))));
    this.around.addEventListener("change", () => {
      this.like = this.around.value;
      this.changes = {};
      this.note = DATA.known.find(({ name }) => name === this.like)?.note ?? "";
      this.changedBy();
    });
    this.optionFields = make("div", { class: "options" });
    const pasted = make("textarea", { id: id("config"), rows: 4, spellcheck: "false", placeholder: '{"model_type": "llama", "hidden_size": 2048, …}' });
    const told = make("p", { class: "problem", role: "alert" });
    const read = (text) => {
      try {
        this.setConfig(JSON.parse(text));
        told.textContent = "";
      } catch (error) {
        told.textContent = error instanceof SyntaxError ? "This is not JSON: paste the whole file, braces included." : error.message;
      }
    };
    pasted.addEventListener("input", () => (pasted.value.trim() ? read(pasted.value) : (told.textContent = "")));
    const file = make("input", { type: "file", accept: ".json,application/json", "aria-label": `config.json of ${title}` });
    file.addEventListener("change", () => file.files[0] && readFile(file.files[0], read));
    this.host.replaceChildren(
      make("h3", {}, make("span", { class: `chip ${this.name}` }, title), this.name === "a" ? "Your shape" : "Another shape"),
      make("p", { class: "row" }, make("label", { for: id("start") }, "Start from"), this.start),
      make("p", { class: "row" }, make("label", { for: id("shape") }, "Shape"), this.field),
      this.problem, this.sizes,
      make("p", { class: "row" }, make("label", { for: id("like") }, "Around the layers"), this.around),
      make("details", {}, make("summary", {}, "Vocabulary, norms, biases, tying …"), this.optionFields),
      make("details", {}, make("summary", {}, "Paste a config.json"), make("label", { for: id("config"), class: "hidden-label" }, `config.json of ${title}`), pasted, file, told));
  }

  // ---- what it is told -------------------------------------------------------------------------------------------

  setKnown(name) {
    const known = DATA.known.find((one) => one.name === name);
    this.like = name;
    this.changes = {};
    this.note = known.note;
    this.setText(known.shape);
  }

  setConfig(config) {
    const { shape, options, note } = readConfig(config);
    const family = { decoder: options.positions === "learned" ? "gpt2" : options.softcap && options.norm === "rms-plain" ? "nanochat" : "llama", bert: "bert", vit: "vit" }[options.family];
    this.like = family ? `family:${family}` : "";
    this.changes = differingOptions(options, this.like);
    this.note = note;
    this.setText(writeShape(shape));
  }

  setShape(shape) {
    this.setText(writeShape(shape));
  }

  setText(text, write = true) {
    if (write) this.field.value = text;
    try {
      const known = DATA.known.find(({ name }) => name === text.trim().toLowerCase());
      if (known && known.name !== this.like) return this.setKnown(known.name);
      this.values = readShape(known ? known.shape : text);
      this.shape = shapeOf(this.values);
      this.values = readShape(writeShape(this.shape));
      this.complain(null);
    } catch (error) {
      if (!(error instanceof ShapeError)) throw error;
      this.complain(error);
    }
    this.changedBy();
  }

  setState({ shape, like, changes }) {
    this.like = like && (DATA.known.some(({ name }) => name === like) || DATA.presets[like.replace("family:", "")]) ? like : "";
    this.changes = changes ?? {};
    this.note = DATA.known.find(({ name }) => name === this.like)?.note ?? "";
    this.setText(shape);
  }

  clear() {
    this.shape = this.values = null;
    this.field.value = "";
    this.complain(null);
    this.sizes.replaceChildren();
  }

  complain(error) {
    this.field.setAttribute("aria-invalid", error ? "true" : "false");
    this.problem.replaceChildren();
    if (!error) return;
    this.problem.append(make("p", {}, `${error.message}.`), make("p", {}, "Nearest that works: ",
      ...error.nearest.slice(0, 3).map((text) => make("button", { type: "button", class: "fix", onclick: () => this.setText(text) }, text))));
  }

  changedBy() {
    this.start.value = DATA.known.find((known) => known.name === this.like && this.shape && known.shape === this.text)?.name ?? "";
    this.around.value = this.like;
    if (this.shape) this.showSizes();
    this.showOptions();
    this.onChange();
  }

  // ---- sizes -----------------------------------------------------------------------------------------------------

  // Groups of equal layers: an empty field takes the usual value, which it shows in grey.
  showSizes() {
    const groups = [];
    for (const layer of this.shape.layers) {
      if (groups.length && sameLayer(groups.at(-1).layer, layer)) groups.at(-1).count++;
      else groups.push({ layer, count: 1 });
    }
    const focus = document.activeElement?.dataset.size;
    const rows = groups.map((group, at) => this.groupRow(groups, group, at));
    const more = make("button", { type: "button", class: "plain", onclick: () => {
      const { layer } = groups.at(-1);
      this.useGroups([...groups, { layer: { ...layer, heads: layer.heads > 1 && layer.heads % 2 === 0 ? layer.heads / 2 : layer.heads * 2, qk_rank: null, v_rank: null, kv_heads: null, rope_rank: null }, count: 1 }]);
    } }, "Add layers that differ");
    const width = this.number("width", this.shape.width, null, (value) => this.useGroups(groups.map(({ layer, count }) => ({ layer: this.rescaled(layer, value), count })), value), "width");
    this.sizes.replaceChildren(width, ...rows, more);
    if (focus) this.sizes.querySelector(`[data-size="${focus}"]`)?.focus();
  }

  // At another width what was usual is left to be usual again.
  rescaled(layer, width) {
    const usual = usualBeside(layer), kept = { ...layer, width };
    for (const name of ["qk_rank", "v_rank", "kv_heads", "rope_rank", "mlp"]) if (layer[name] === usual[name]) kept[name] = null;
    return kept;
  }

  groupRow(groups, group, at) {
    const usual = usualBeside(group.layer);
    const set = (name, value) => {
      const layer = this.rescaled(group.layer, this.shape.width);
      layer[name] = value;
      this.useGroups(groups.map((one, place) => (place === at ? { ...one, layer } : one)));
    };
    const many = groups.length > 1;
    const legend = many ? `Layers ${1 + groups.slice(0, at).reduce((sum, one) => sum + one.count, 0)} to ${groups.slice(0, at + 1).reduce((sum, one) => sum + one.count, 0)}` : "Every layer";
    return make("fieldset", {}, make("legend", {}, legend),
      this.number("layers", group.count, null, (value) => this.useGroups(groups.map((one, place) => (place === at ? { ...one, count: value } : one)).filter((one) => one.count)), `layers-${at}`, many ? 0 : 1),
      ...Object.entries(SIZE_WORDS).map(([name, word]) =>
        this.number(word, group.layer[name] === usual[name] ? null : group.layer[name], usual[name], (value) => set(name, value), `${name}-${at}`, MAY_BE_ZERO.includes(name) ? 0 : 1)));
  }

  number(word, value, usual, set, key, least = 1) {
    const id = `${this.name}-${key}`;
    const input = make("input", { id, type: "number", min: least, step: 1, "data-size": key, inputmode: "numeric", value, placeholder: usual === null || usual === undefined ? "" : String(usual) });
    input.addEventListener("change", () => {
      const number = input.value === "" ? null : Number(input.value);
      if (number !== null && (!Number.isInteger(number) || number < 0)) return;
      if (number === null && usual === null) return;
      set(number);
    });
    return make("p", { class: "size" }, make("label", { for: id }, word), input);
  }

  useGroups(groups, width = this.shape.width) {
    const values = { width };
    const depth = groups.reduce((sum, { count }) => sum + count, 0);
    for (const name of [...ATTENTION, "mlp"]) {
      const column = groups.flatMap(({ layer, count }) => Array(count).fill(layer[name]));
      if (column.some((one) => one === null) && groups.length > 1) {
        const filled = groups.flatMap(({ layer, count }) => Array(count).fill(this.filled(layer, width)[name]));
        values[name] = filled;
      } else {
        values[name] = groups.length > 1 ? column : column[0];
      }
    }
    values.depth = depth;
    try {
      this.setShape(shapeOf(values));
    } catch (error) {
      if (!(error instanceof ShapeError)) throw error;
      this.complain(error);
    }
  }

  filled(layer, width) {
    const { mlp, ...sizes } = layer;
    try {
      return { ...completeLayer({ ...sizes, width }), mlp: mlp ?? 4 * width };
    } catch (error) {
      if (error instanceof Misfit) throw new ShapeError(error.message);
      throw error;
    }
  }

  // ---- options ---------------------------------------------------------------------------------------------------

  showOptions() {
    const options = this.options, focus = document.activeElement?.dataset.option;
    this.optionFields.replaceChildren(...Object.entries(DATA.options).map(([name, about]) => {
      const id = `${this.name}-option-${name}`;
      const set = (value) => {
        this.changes = differingOptions({ ...this.options, [name]: value }, this.like);
        this.changedBy();
      };
      let input;
      if (about.choices) {
        input = make("select", { id, "data-option": name }, ...about.choices.map((choice) => make("option", { value: choice, selected: choice === options[name] }, choice)));
        input.addEventListener("change", () => set(input.value));
      } else if (about.type === "boolean") {
        input = make("input", { id, type: "checkbox", checked: options[name], "data-option": name });
        input.addEventListener("change", () => set(input.checked));
      } else {
        input = make("input", { id, type: "number", min: 0, value: options[name], "data-option": name });
        input.addEventListener("change", () => input.value !== "" && set(Number(input.value)));
      }
      return make("p", { class: "size", title: about.about }, make("label", { for: id }, name.replaceAll("_", " ")), input);
    }));
    if (focus && this.name === document.activeElement?.id.split("-")[0]) this.optionFields.querySelector(`[data-option="${focus}"]`)?.focus();
  }
}
