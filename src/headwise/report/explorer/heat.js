// An `inspect --json` as heat maps: one square per head, its numbers on hover or focus, and a budget of rank.
"use strict";
const HEAT_METRICS = {
  qk_effective_rank: ["QK: part of the rank in use", (head, layer) => head.qk_effective_rank / layer.qk_rank],
  vo_effective_rank: ["VO: part of the rank in use", (head, layer) => head.vo_effective_rank / layer.v_rank],
  qk_rank_99: ["QK: rank that keeps 99 % of the energy", (head, layer) => head.qk_rank_99 / layer.qk_rank],
  vo_rank_99: ["VO: rank that keeps 99 % of the energy", (head, layer) => head.vo_rank_99 / layer.v_rank],
  qk_overlap: ["QK: likeness to another head", (head) => head.qk_overlap],
  vo_overlap: ["VO: likeness to another head", (head) => head.vo_overlap],
};

class HeatMaps {
  constructor(host) {
    this.host = host;
  }

  load(text) {
    const found = JSON.parse(text);
    if (!Array.isArray(found.layers) || !found.layers.length || !found.layers[0].heads?.[0]?.qk_effective_rank) {
      throw new Error("this is not what headwise inspect --json prints: it has no layers with heads");
    }
    this.model = found;
    this.budget = Math.max(...found.layers.map((layer) => Math.max(layer.qk_rank, layer.v_rank)));
    this.draw();
  }

  draw() {
    const { model } = this;
    const most = Math.max(...model.layers.map((layer) => Math.max(layer.qk_rank, layer.v_rank)));
    this.told = make("p", { class: "head-numbers", "aria-live": "polite" }, "Point at a head, or move to it with Tab and the arrow keys.");
    this.kept = make("output", { class: "kept" });
    const slider = make("input", { type: "range", min: 1, max: most, value: this.budget, id: "budget" });
    slider.addEventListener("input", () => {
      this.budget = Number(slider.value);
      this.mark();
    });
    this.maps = make("div", { class: "maps" }, ...Object.entries(HEAT_METRICS).map(([name, [title, of]]) => this.map(name, title, of)));
    this.host.replaceChildren(
      make("p", {}, make("b", {}, model.shape), ` (${model.family ?? "model"})`),
      ...String(model.summary ?? "").split("\n").filter(Boolean).map((line) => make("p", { class: "note" }, line)),
      ...this.advice(),
      make("p", { class: "budget-row" }, make("label", { for: "budget" }, "Rank that each head may keep"), slider, this.kept),
      this.told, this.scale(), this.maps);
    this.mark();
  }

  scale() {
    const stops = Array.from({ length: 11 }, (_, at) => draw("rect", { x: at * 12, y: 0, width: 12, height: 12, fill: heatColour(at / 10) }));
    return make("p", { class: "note" }, "0 ", draw("svg", { width: 132, height: 12, role: "img", "aria-label": "colours from 0 to 1" }, ...stops), " 1: all of the rank, or a copy of another head");
  }

  // What to try, where the file says it.
  advice() {
    const items = Array.isArray(this.model.advice) ? this.model.advice : [];
    const line = ({ text, command }) => make("li", {}, String(text), " ", make("code", {}, String(command)), copyButton(() => command, "command"));
    return items.length ? [make("h3", {}, "What to try"), make("ul", { class: "advice" }, ...items.map(line))] : [];
  }

  map(name, title, of) {
    const { layers } = this.model;
    const most = Math.max(...layers.map((layer) => layer.heads.length));
    const side = Math.max(9, Math.min(26, Math.floor(340 / most), Math.floor(420 / layers.length)));
    const svg = draw("svg", { width: most * side + 34, height: layers.length * side + 20, role: "grid", "aria-label": `${title}, by layer and head` });
    layers.forEach((layer, row) => {
      const line = draw("g", { role: "row" });
      if (layers.length <= 16 || row % 4 === 0) line.append(draw("text", { class: "tick", x: 24, y: row * side + side / 2 + 4, "text-anchor": "end" }, row));
      layer.heads.forEach((head, column) => {
        const value = of(head, layer);
        const square = draw("rect", {
          x: 30 + column * side, y: row * side, width: side - 1, height: side - 1, fill: heatColour(value), role: "gridcell",
          tabindex: row + column ? -1 : 0, "data-row": row, "data-column": column, "data-metric": name,
          "aria-label": `layer ${row}, head ${column}: ${Number.isFinite(value) ? value.toFixed(2) : "none"}`,
        });
        for (const event of ["pointerenter", "focus"]) square.addEventListener(event, () => this.tell(row, column));
        square.addEventListener("keydown", (event) => this.step(event, name, row, column));
        line.append(square);
      });
      svg.append(line);
    });
    svg.append(draw("text", { class: "tick", x: 30, y: layers.length * side + 14 }, "head"));
    return make("figure", {}, make("figcaption", {}, title), make("div", { class: "scroll" }, svg));
  }

  step(event, name, row, column) {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key] ?? [0, 0];
    if (!down && !right) return;
    event.preventDefault();
    this.maps.querySelector(`[data-metric="${name}"][data-row="${row + down}"][data-column="${column + right}"]`)?.focus();
  }

  tell(row, column) {
    const layer = this.model.layers[row], head = layer.heads[column];
    const parts = ["qk", "vo"].map((pair) => {
      const of = pair === "qk" ? layer.qk_rank : layer.v_rank;
      const half = (100 * head[`${pair}_energy_half`]).toFixed(1);
      return `${pair.toUpperCase()} uses ${head[`${pair}_effective_rank`].toFixed(1)} of ${of}; rank ${head[`${pair}_rank_99`]} keeps 99 % of its energy, half the rank ${half} %`;
    });
    this.told.replaceChildren(make("b", {}, `Layer ${row}, head ${column}. `), `${parts.join(". ")}.`, this.spectra(head));
  }

  // Singular values, where the file has them.
  spectra(head) {
    const lines = ["qk", "vo"].filter((pair) => Array.isArray(head[`${pair}_spectrum`])).map((pair) => {
      const values = head[`${pair}_spectrum`], most = Math.max(...values) || 1;
      const path = values.map((value, at) => `${at ? "L" : "M"}${(1 + (118 * at) / Math.max(1, values.length - 1)).toFixed(1)} ${(39 - (38 * value) / most).toFixed(1)}`).join("");
      return draw("svg", { width: 120, height: 40, role: "img", "aria-label": `Spectrum of ${pair.toUpperCase()}` }, draw("path", { class: `curve ${pair}`, d: path }));
    });
    return lines.length ? make("span", { class: "spectra" }, ...lines) : "";
  }

  mark() {
    const heads = this.model.layers.flatMap((layer) => layer.heads.map((head) => ({ layer, head })));
    const fits = { qk: 0, vo: 0 };
    for (const { head } of heads) for (const pair of ["qk", "vo"]) fits[pair] += head[`${pair}_rank_99`] <= this.budget;
    const kept = this.model.layers.reduce((sum, layer) => sum + layer.kv_bytes_per_token * keptPart(layer, this.budget), 0);
    const part = kept / this.model.layers.reduce((sum, layer) => sum + layer.kv_bytes_per_token, 0);
    this.kept.textContent = `${this.budget}: ${fits.qk} of ${heads.length} heads keep 99 % of QK, ${fits.vo} of VO; KV cache ${(100 * part).toFixed(0)} %`;
    for (const square of this.maps.querySelectorAll("[data-metric]")) {
      const head = this.model.layers[square.dataset.row].heads[square.dataset.column];
      const pair = square.dataset.metric.slice(0, 2);
      square.classList.toggle("cut", head[`${pair}_rank_99`] > this.budget);
    }
  }
}

function keptPart(layer, budget) {
  return (Math.min(layer.qk_rank, budget) + Math.min(layer.v_rank, budget)) / (layer.qk_rank + layer.v_rank);
}

// From dark blue over green to yellow: read alike by people who see no red, and in grey.
function heatColour(value) {
  if (!Number.isFinite(value)) return "transparent";
  const stops = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const at = Math.min(0.9999, Math.max(0, value)) * (stops.length - 1), low = Math.floor(at);
  const mixed = stops[low].map((from, channel) => Math.round(from + (at - low) * (stops[low + 1][channel] - from)));
  return `rgb(${mixed.join()})`;
}
