// The ledger and the published rows: search, filter, sort; a claim opens with everything behind its verdict.
"use strict";
const VERDICT_ORDER = ["holds", "fails", "cannot tell", "open"];

class Ledger {
  constructor(onChange) {
    this.onChange = onChange;
    this.form = byId("ledger-form");
    this.body = byId("claims");
    this.open = "";
    this.rows = DATA.claims.map((claim, place) => ({ claim, place, element: this.row(claim) }));
    for (const name of ["verdict", "source"]) this.offer(name);
    this.form.addEventListener("input", () => this.filter());
    this.form.addEventListener("submit", (event) => event.preventDefault());
  }

  offer(name) {
    const counts = new Map();
    for (const claim of DATA.claims) counts.set(claim[name], (counts.get(claim[name]) ?? 0) + 1);
    for (const [value, count] of counts) {
      const words = name === "source" ? `${value}: ${DATA.sources[value] ?? "other"}` : value;
      this.form.elements[name].append(make("option", { value }, `${words} (${count})`));
    }
  }

  get state() {
    const values = Object.fromEntries(["search", "verdict", "source", "sort"].map((name) => [name, this.form.elements[name].value]));
    return { ...values, claim: this.open };
  }

  set state(state) {
    for (const name of ["search", "verdict", "source"]) this.form.elements[name].value = state[name] ?? "";
    this.form.elements.sort.value = state.sort || "ledger";
    this.open = state.claim ?? "";
    this.filter(false);
    const wanted = this.rows.find((row) => row.claim.id === this.open);
    if (wanted) {
      wanted.element.open = true;
      wanted.element.scrollIntoView();
    }
  }

  filter(told = true) {
    const { search, verdict, source, sort } = this.state;
    const words = search.toLowerCase().split(/\s+/).filter(Boolean);
    const order = {
      ledger: (a, b) => a.place - b.place,
      verdict: (a, b) => VERDICT_ORDER.indexOf(a.claim.verdict) - VERDICT_ORDER.indexOf(b.claim.verdict) || a.place - b.place,
      scale: (a, b) => b.claim.largest - a.claim.largest || a.place - b.place,
      study: (a, b) => a.claim.study.localeCompare(b.claim.study) || a.place - b.place,
    }[sort] ?? ((a, b) => a.place - b.place);
    this.body.replaceChildren(...[...this.rows].sort(order).map((row) => row.element));
    let shown = 0;
    for (const { claim, element } of this.rows) {
      const text = JSON.stringify([claim.id, claim.claim, claim.from, claim.study, claim.comparisons, claim.measured]).toLowerCase();
      const fits = (!verdict || claim.verdict === verdict) && (!source || claim.source === source) && words.every((word) => text.includes(word));
      element.hidden = !fits;
      shown += fits;
    }
    byId("claims-shown").value = `${shown} of ${this.rows.length} claims`;
    if (told) this.onChange();
  }

  row(claim) {
    const row = make("details", { class: "claim", id: `claim-${claim.id}` },
      make("summary", {}, make("b", {}, claim.id), make("span", { class: `verdict ${claim.verdict.replace(" ", "-")}` }, claim.verdict),
        make("span", { class: "sentence" }, claim.claim),
        claim.shown ? make("span", { class: "effect" }, `${claim.shown.metric} ${claim.shown.effect}`) : ""));
    row.addEventListener("toggle", () => {
      if (row.open && row.children.length === 1) {
        row.append(this.inside(claim));
        const figure = row.querySelector(".chart");
        if (figure) liveChart(figure, DATA.charts[claim.study]);
      }
      if (row.open) this.open = claim.id;
      else if (this.open === claim.id) this.open = "";
      this.onChange();
    });
    return row;
  }

  inside(claim) {
    const link = make("a", { href: `#claim=${encodeURIComponent(claim.id)}` }, "link to this claim");
    const chart = DATA.charts[claim.study];
    return make("div", { class: "inside" },
      ...claim.comparisons.map((one) => make("p", {}, `${one.subject}: ${one.metric} ${one.effect}${one.beside ? ` (${one.beside})` : ""}; required: ${one.required}: `, make("b", {}, one.answer))),
      make("p", { class: "note" }, claim.measured),
      claim.caveat ? make("p", { class: "note" }, `Caveat: ${claim.caveat}`) : "",
      claim.settle ? make("p", { class: "note" }, "To resolve it: ", make("code", {}, claim.settle)) : "",
      claim.registered ? make("p", { class: "note" }, `Registered: ${claim.registered}`) : "",
      make("p", { class: "note" }, `From: ${claim.from}. Study: ${claim.study}. `, make("code", {}, `headwise study run ${claim.study}`), ". ", link),
      chart ? make("figure", { class: "chart", tabindex: 0 }) : "",
      claim.runs.length ? make("details", {}, make("summary", {}, `${claim.runs.length} runs behind it`), make("p", { class: "keys" }, make("code", {}, claim.runs.join(" ")))) : "");
  }
}

// ---- published evidence ------------------------------------------------------------------------------------------

const EVIDENCE_AXES = {
  head_dim: ["qk_rank", "v_rank"], depth_vs_heads: ["depth"], depth_vs_width: ["depth", "width"], mlp_vs_heads: ["mlp"],
  kv_latent: ["kv_latent", "q_latent"], convert: ["kv_heads", "kv_latent"],
}; // an axis that is not here is a word of the vocabulary itself

const FEW_ROWS = 12; // until all are asked for

// The words of the vocabulary in which B differs from A.
function changedSizes(a, b) {
  const names = ["heads", "qk_rank", "v_rank", "kv_heads", "kv_latent", "q_latent", "rope_rank", "mlp"];
  const found = names.filter((name) => writeSizes(a.layers.map((l) => l[name])) !== writeSizes(b.layers.map((l) => l[name])));
  return [...(a.width === b.width ? [] : ["width"]), ...(a.depth === b.depth ? [] : ["depth"]), ...found];
}

function showEvidence(a, b) {
  const host = byId("evidence-rows");
  if (!host || !DATA.evidence) return;
  const differing = b ? changedSizes(a, b) : [];
  const axes = (row) => EVIDENCE_AXES[row.axis] ?? [row.axis];
  const rows = DATA.evidence.filter((row) => !b || axes(row).some((axis) => differing.includes(axis)));
  rows.sort((one, other) => Number(other.params_base || 0) - Number(one.params_base || 0));
  byId("evidence-about").textContent = !b ? `${rows.length} published comparisons and claims of our own; choose a B to see those about its move.`
    : rows.length ? `${rows.filter((row) => !row.own).length} published comparisons and ${rows.filter((row) => row.own).length} claims of our own about ${differing.join(", ")}, the largest models first.`
      : `No published comparison in the list is about ${differing.join(", ") || "this move"}.`;
  const more = byId("evidence-more");
  more.hidden = rows.length <= FEW_ROWS;
  more.textContent = `Show all ${rows.length}`;
  more.onclick = () => {
    host.replaceChildren(...rows.map(evidenceRow));
    more.hidden = true;
  };
  host.replaceChildren(...rows.slice(0, FEW_ROWS).map(evidenceRow));
}

function evidenceRow(row) {
  return make("tr", {},
    make("td", { class: "number" }, row.params_base ? short(row.params_base) : ""),
    make("td", {}, `${row.base_shape || row.base} → ${row.arm_shape || row.note}`, make("small", {}, `held: ${row.held}`)),
    make("td", {}, row.value_base === null ? row.metric : `${row.metric}: ${row.value_base} → ${row.value_arm}`, row.effect ? make("small", {}, row.effect) : ""),
    make("td", {}, row.task),
    make("td", {}, /^https:/.test(row.url) ? make("a", { href: row.url, rel: "noreferrer" }, row.source) : row.source));
}
