// Equal-cost curves: what else A's price buys. B is a handle on A's curve: drag it, or use the arrow keys.
"use strict";
const TRADES = {
  "heads-qk_rank": "heads against rank",
  "qk_rank-mlp": "rank against MLP",
  "depth-mlp": "depth against MLP",
  "depth-width": "depth against width",
  "kv_heads-qk_rank": "key/value heads against rank",
};
const AXIS_WORDS = {
  heads: "query heads", qk_rank: "rank of a head", mlp: "hidden width of the MLP", depth: "layers", width: "width",
  kv_heads: "key/value heads",
};
const HELD_WORDS = { params: "parameters of the body", flops: "training FLOPs", kv: "KV cache" };

// A's layer with one size changed; what usually follows it follows.
function changed(model, sizes) {
  const layer = { ...model.layer };
  let depth = model.depth;
  for (const [name, value] of Object.entries(sizes)) {
    if (name === "depth") depth = value;
    if (name === "mlp" || name === "kv_heads") layer[name] = value;
    if (name === "qk_rank") {
      const same = layer.v_rank === layer.qk_rank, turned = layer.rope_rank === layer.qk_rank;
      layer.qk_rank = value;
      if (same) layer.v_rank = value;
      layer.rope_rank = turned ? value : Math.min(layer.rope_rank, layer.kv_latent ? value - 1 : value);
    }
    if (name === "heads") setHeads(layer, value);
    if (name === "width") {
      layer.mlp = Math.max(layer.mlp ? 1 : 0, Math.round((layer.mlp * value) / layer.width));
      setHeads(layer, Math.max(1, Math.round((layer.heads * value) / layer.width)));
      layer.width = value;
    }
  }
  return { layer, depth };
}

function setHeads(layer, heads) {
  const group = layer.heads / layer.kv_heads;
  layer.heads = heads;
  layer.kv_heads = nearestDivisors(heads, Math.max(1, Math.round(heads / group)), 1)[0];
}

function heldBy(model, hold, options, length) {
  return heldCost(hold, model.layer, options, length) * BigInt(model.depth);
}

function sizeOf(model, name) {
  return name === "depth" ? model.depth : model.layer[name];
}

// The y at which the price is met, as a real number between two whole ones; null where none is.
function solve(model, x, y, at, budget, hold, options, length) {
  const cost = (value) => heldBy(changed(model, { [x]: at, [y]: value }), hold, options, length);
  let low = 1, high = 2;
  if (cost(low) > budget) return null;
  while (cost(high) <= budget) {
    high *= 2;
    if (high > 4_000_000) return null;
  }
  low = high / 2;
  while (high - low > 1) {
    const middle = Math.floor((low + high) / 2);
    if (cost(middle) <= budget) low = middle;
    else high = middle;
  }
  const below = cost(low), above = cost(high);
  return low + Number(((budget - below) * 1000n) / (above - below)) / 1000;
}

// Sizes that hardware likes, where they are large enough to be near.
function snapped(name, value) {
  if (name === "depth" || name === "kv_heads" || name === "heads") return Math.max(1, Math.round(value));
  return value >= 64 ? Math.round(value / 8) * 8 : Math.max(1, Math.round(value));
}

function candidatesAlong(model, x, low, high) {
  if (x === "kv_heads") return divisors(model.layer.heads);
  const values = [];
  for (let value = Math.max(1, Math.floor(low)); value <= high; value += 1) {
    if (x !== "qk_rank" || value % 8 === 0 || value < 16 || value === model.layer.qk_rank) values.push(value);
  }
  return values;
}

class CurveChart {
  constructor(host, onMove) {
    this.host = host;
    this.onMove = onMove; // given a shape of equal cost
    new ResizeObserver(() => this.draw()).observe(host);
  }

  show(view) {
    this.view = view;
    this.draw();
  }

  draw() {
    if (!this.view || !this.host.clientWidth) return;
    const { a, b, options, length, hold, trade } = this.view;
    const [x, y] = trade.split("-");
    this.focused = document.activeElement?.classList.contains("handle");
    this.host.replaceChildren();
    if (!uniform(a)) return this.say("Curves need equal layers; the layers of A differ.");
    const model = { layer: a.layers[0], depth: a.depth };
    const budget = heldBy(model, hold, options, length);
    const at = sizeOf(model, x);
    const probe = (value) => heldBy(changed(model, { [x]: at, [y]: value }), hold, options, length);
    if (!budget || probe(8) === probe(4096)) {
      return this.say(`The ${HELD_WORDS[hold]} does not depend on the ${AXIS_WORDS[y]}: choose another trade, or hold something else.`);
    }
    const dots = this.known(x, y);
    const low = Math.max(1, at / 16), high = x === "kv_heads" ? model.layer.heads : Math.max(at * 16, 8);
    const xs = x === "kv_heads" ? divisors(model.layer.heads) : spaced(low, high, 48);
    const asked = JSON.stringify([model, options, hold, trade, length]);
    if (this.asked !== asked) { // B may move without them
      this.asked = asked;
      this.curves = [["half", budget / 2n], ["same", budget], ["twice", budget * 2n]].map(([name, price]) => ({
        name,
        points: xs.map((value) => [value, solve(model, x, y, value, price, hold, options, length)]).filter(([, v]) => v),
      }));
    }
    const { curves } = this;
    this.model = model;
    this.budget = budget;
    const own = curves[1].points;
    const known = dots.filter((dot) => dot.x >= low / 1.2 && dot.x <= high * 1.2);
    const ys = [...curves.flatMap((curve) => curve.points.map((point) => point[1])), ...known.map((dot) => dot.y)];
    const middle = sizeOf(model, y);
    const range = [Math.max(Math.min(...ys, middle), middle / 40), Math.min(Math.max(...ys, middle), middle * 40)];
    this.frame(x, y, [low, high], range);
    const visible = known.filter((dot) => dot.y >= range[0] / 1.1 && dot.y <= range[1] * 1.1);
    this.taken = [...visible.map((dot) => [dot.x, dot.y]), [at, middle]].map(([px, py]) => ({ x: this.x(px) - 6, y: this.y(py) - 6, width: 12, height: 12 }));
    for (const { name, points } of curves) this.line(name, points, hold);
    for (const dot of visible) this.dot(dot);
    this.labels();
    this.point("A", at, middle, "a");
    const second = b && uniform(b) ? { layer: b.layers[0], depth: b.depth } : model;
    this.handle(x, y, sizeOf(second, x), sizeOf(second, y), own);
  }

  say(text) {
    this.host.append(make("p", { class: "note" }, text));
  }

  known(x, y) {
    return DATA.known.map(({ name, shape }) => {
      const read = parseShape(shape), first = { layer: read.layers[0], depth: read.depth };
      return { name, x: sizeOf(first, x), y: sizeOf(first, y) };
    }).filter((dot) => dot.x && dot.y);
  }

  frame(x, y, xs, ys) {
    const width = Math.max(300, this.host.clientWidth), height = Math.min(440, Math.max(300, width * 0.6));
    const left = 58, right = 24, top = 14, bottom = 48;
    const place = (value, [low, high], from, to) => {
      const part = (Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low) || 1);
      return from + part * (to - from);
    };
    const wide = [ys[0] / 1.15, ys[1] * 1.15];
    this.x = (value) => place(value, [xs[0] / 1.05, xs[1] * 1.05], left, width - right);
    this.y = (value) => place(value, wide, height - bottom, top);
    this.xAt = (pixel) => Math.exp(Math.log(xs[0] / 1.05) + ((pixel - left) / (width - right - left)) * Math.log((xs[1] / xs[0]) * 1.1025));
    this.size = { width, height, left, right, top, bottom };
    this.svg = draw("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-labelledby": "curve-title" });
    for (const tick of ticks(xs[0], xs[1])) {
      this.svg.append(
        draw("line", { class: "grid", x1: this.x(tick), x2: this.x(tick), y1: top, y2: height - bottom }),
        draw("text", { class: "tick", x: this.x(tick), y: height - bottom + 16, "text-anchor": "middle" }, tick.toLocaleString("en-US")));
    }
    for (const tick of ticks(wide[0], wide[1])) {
      this.svg.append(
        draw("line", { class: "grid", x1: left, x2: width - right, y1: this.y(tick), y2: this.y(tick) }),
        draw("text", { class: "tick", x: left - 8, y: this.y(tick) + 4, "text-anchor": "end" }, tick.toLocaleString("en-US")));
    }
    this.svg.append(
      draw("text", { class: "axis", x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, AXIS_WORDS[x]),
      draw("text", { class: "axis", transform: `translate(14 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, AXIS_WORDS[y]));
    this.host.append(this.svg);
  }

  line(name, points, hold) {
    const inside = points.filter(([, y]) => this.y(y) >= this.size.top - 1 && this.y(y) <= this.size.height - this.size.bottom + 1);
    if (!inside.length) return;
    const path = inside.map(([x, y], at) => `${at ? "L" : "M"}${this.x(x).toFixed(1)} ${this.y(y).toFixed(1)}`).join("");
    this.svg.append(draw("path", { class: `curve ${name}`, d: path }));
    this.taken.push(...inside.map(([px, py]) => ({ x: this.x(px) - 4, y: this.y(py) - 4, width: 8, height: 8 })));
    const text = { half: "half", same: `same ${HELD_WORDS[hold].replace(" of the body", "")}`, twice: "twice" }[name];
    for (const part of [0.75, 0.85, 0.6, 0.3, 0.15]) {
      const [x, y] = inside[Math.floor(inside.length * part)];
      const box = this.room(this.x(x) + 2, this.y(y) - 10, 7.2 * text.length);
      if (!box) continue;
      this.taken.push(box);
      this.svg.append(draw("text", { class: `label ${name}`, x: box.x, y: box.y + 11 }, text));
      return;
    }
  }

  dot({ name, x, y }) {
    (this.dots ??= []).push({ name, x, y });
    const circle = draw("circle", {
      class: "known", cx: this.x(x), cy: this.y(y), r: 5, tabindex: 0, role: "button", "aria-label": `Make ${name} B`,
      onclick: () => this.view.onKnown(name),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); this.view.onKnown(name); } },
    }, draw("title", {}, `${name}: ${x.toLocaleString("en-US")} and ${y.toLocaleString("en-US")}. Press to make it B.`));
    this.svg.append(circle);
  }

  // Names beside dots, where they fit beside those that are there; the others are in the dots' titles.
  labels() {
    const places = new Map();
    for (const dot of this.dots ?? []) {
      const key = `${Math.round(this.x(dot.x))},${Math.round(this.y(dot.y))}`;
      places.set(key, [...(places.get(key) ?? []), dot]);
    }
    this.dots = [];
    for (const dots of places.values()) {
      const text = dots.length > 1 ? `${dots[0].name} +${dots.length - 1}` : dots[0].name;
      const box = this.room(this.x(dots[0].x), this.y(dots[0].y), 6.4 * text.length);
      if (!box) continue;
      this.taken.push(box);
      this.svg.append(draw("text", { class: "name", x: box.x, y: box.y + 11 }, text));
    }
  }

  // A free place beside, above or below a dot.
  room(x, y, width) {
    const size = { width, height: 14 };
    const places = [[x + 8, y - 7], [x - 8 - width, y - 7], [x - width / 2, y - 22], [x - width / 2, y + 8]];
    const { left, right, top, bottom } = this.size;
    const free = (box) => box.x >= left && box.x + width <= this.size.width - right / 2 && box.y >= top && box.y + 14 <= this.size.height - bottom
      && !this.taken.some((o) => box.x < o.x + o.width && o.x < box.x + box.width && box.y < o.y + o.height && o.y < box.y + box.height);
    return places.map(([left, top]) => ({ x: left, y: top, ...size })).find(free);
  }

  point(name, x, y, kind) {
    this.svg.append(draw("circle", { class: `point ${kind}`, cx: this.x(x), cy: this.y(y), r: 8 }),
      draw("text", { class: `point-label ${kind}`, x: this.x(x) - 12, y: this.y(y) - 10, "text-anchor": "end" }, name));
  }

  handle(x, y, atX, atY, own) {
    const inside = (value, low, high) => Math.min(high, Math.max(low, value));
    const cx = inside(this.x(atX), this.size.left, this.size.width - this.size.right);
    const cy = inside(this.y(atY), this.size.top, this.size.height - this.size.bottom);
    const handle = draw("circle", {
      class: "point b handle", cx, cy, r: 11, tabindex: 0, role: "slider", "aria-label": `B: ${AXIS_WORDS[x]}, along A's curve`,
      "aria-valuenow": atX, "aria-valuemin": 1, "aria-valuemax": Math.round(own.at(-1)?.[0] ?? atX),
      "aria-valuetext": `${AXIS_WORDS[x]} ${atX}, ${AXIS_WORDS[y]} ${atY}`,
    });
    const steps = candidatesAlong(this.model, x, 1, own.at(-1)?.[0] ?? atX);
    const move = (value) => {
      const { options, length, hold } = this.view;
      const found = solve(this.model, x, y, value, this.budget, hold, options, length);
      if (found === null) return;
      const { layer, depth } = changed(this.model, { [x]: value, [y]: snapped(y, found) });
      try {
        this.onMove(shapeOf({ ...layer, depth }));
      } catch (error) {
        if (!(error instanceof ShapeError)) throw error; // such a shape is not possible: the handle stays
      }
    };
    const nearest = (value) => steps.reduce((best, one) =>
      Math.abs(Math.log(one / value)) < Math.abs(Math.log(best / value)) ? one : best, steps[0]);
    handle.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const here = steps.indexOf(nearest(atX));
      const next = steps[here + step];
      if (next) move(next);
    });
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      handle.focus();
      const drag = (moved) => move(nearest(this.xAt(moved.clientX - this.svg.getBoundingClientRect().left)));
      const stop = () => {
        window.removeEventListener("pointermove", drag);
        window.removeEventListener("pointerup", stop);
      };
      window.addEventListener("pointermove", drag);
      window.addEventListener("pointerup", stop);
    });
    this.svg.append(handle, draw("text", { class: "point-label b", x: cx + 14, y: cy + 18 }, "B"));
    if (this.focused) handle.focus();
  }
}

function spaced(low, high, count) {
  const values = Array.from({ length: count }, (_, at) => Math.round(low * (high / low) ** (at / (count - 1))));
  return [...new Set(values)];
}

function ticks(low, high) {
  const powers = Array.from({ length: 24 }, (_, at) => 2 ** at).filter((power) => power >= low * 0.999 && power <= high * 1.001);
  return powers.length > 8 ? powers.filter((_, at) => at % 2 === 0) : powers;
}
