// Shapes, as shape.py has them: reading, usual values, checks, the shortest text. Tests hold both equal.
// A shape here: { width, depth, layers: [{ heads, qk_rank, v_rank, kv_heads, kv_latent, q_latent, rope_rank, mlp }] }.
"use strict";
const DATA = JSON.parse(document.getElementById("data").textContent);
const SCALARS = ["width", "depth"];
const MAY_BE_ZERO = ["kv_latent", "q_latent", "rope_rank", "mlp"];
const ATTENTION = ["heads", "qk_rank", "v_rank", "kv_heads", "kv_latent", "q_latent", "rope_rank"];

class ShapeError extends Error {
  constructor(problem, findNearest = () => []) {
    super(problem);
    this.findNearest = findNearest;
  }
  get nearest() {
    const found = this.findNearest();
    return found.length ? found : DATA.examples;
  }
}

class Misfit extends Error {
  constructor(problem, ...fixes) {
    super(problem);
    this.fixes = fixes;
  }
}

function divisors(n) {
  const small = [];
  for (let k = 1; k * k <= n; k++) if (n % k === 0) small.push(k);
  return [...small, ...small.filter((k) => k * k !== n).map((k) => n / k).reverse()];
}

function nearestDivisors(n, target, count = 2) {
  const far = (k) => Math.max(k, target) / Math.min(k, target);
  return divisors(n).sort((a, b) => far(a) - far(b) || a - b).slice(0, count);
}

function checkSize(name, value) {
  if (value > DATA.largest) {
    throw new Misfit(`${name} is ${value}, but the largest size is ${DATA.largest}`, { [name]: null });
  }
  const least = MAY_BE_ZERO.includes(name) ? 0 : 1;
  if (value < least) {
    throw new Misfit(`${name} is ${value}, but must be at least ${least}`, { [name]: null }, { [name]: least });
  }
}

// One layer with its usual values.
function completeLayer(given) {
  const values = Object.fromEntries(Object.entries(given).filter(([, value]) => value !== null && value !== undefined));
  for (const [name, value] of Object.entries(values)) checkSize(name, value);
  if (values.width === undefined) {
    throw new Misfit("the shape has no width (w)", { width: (values.heads ?? 8) * (values.qk_rank ?? 64) });
  }
  const width = values.width;
  const heads = (values.heads ??= headsFromRank(width, values.qk_rank));
  const rank = (values.qk_rank ??= usualRank(width, heads));
  values.v_rank ??= rank;
  const shared = (values.kv_heads ??= heads);
  const rope = (values.rope_rank ??= values.kv_latent ? 0 : rank);
  if (heads % shared) {
    const fixes = nearestDivisors(heads, shared).map((g) => ({ kv_heads: g }));
    throw new Misfit(`${heads} heads cannot share ${shared} key/value heads evenly`, ...fixes);
  }
  if (values.kv_latent && rope >= rank) {
    const problem = `rope_rank ${rope} leaves nothing of qk_rank ${rank} for the latent`;
    throw new Misfit(problem, { rope_rank: Math.floor(rank / 2) }, { qk_rank: rank + rope });
  }
  if (rope > rank) {
    throw new Misfit(`rope_rank ${rope} is more than qk_rank ${rank}`, { rope_rank: rank }, { qk_rank: rope });
  }
  return Object.fromEntries(["width", ...ATTENTION].map((name) => [name, values[name] ?? 0]));
}

function headsFromRank(width, rank) {
  if (rank === undefined) {
    const fixes = nearestDivisors(width, 8).map((h) => ({ heads: h }));
    throw new Misfit("the shape has neither heads (h) nor a rank (r)", ...fixes);
  }
  if (width % rank) {
    const fixes = nearestDivisors(width, rank).map((r) => ({ qk_rank: r }));
    const problem = `rank ${rank} does not divide width ${width}, and no heads (h) are given`;
    throw new Misfit(problem, { heads: Math.max(1, Math.round(width / rank)) }, ...fixes);
  }
  return width / rank;
}

function usualRank(width, heads) {
  if (width % heads) {
    const fixes = nearestDivisors(width, heads).map((h) => ({ heads: h }));
    const problem = `${heads} heads do not divide width ${width}, and no rank (r) is given`;
    throw new Misfit(problem, ...fixes, { qk_rank: Math.max(1, Math.floor(width / heads)) });
  }
  return width / heads;
}

// ---- many layers -------------------------------------------------------------------------------------------------

// A shape from values by name: a number, or a list with one for each layer.
function shapeOf(values) {
  try {
    return stack(values);
  } catch (error) {
    if (!(error instanceof Misfit)) throw error;
    throw new ShapeError(error.message, () => fixedShapes(values, error.fixes));
  }
}

function fixedShapes(values, fixes) {
  const found = [];
  for (const fix of fixes) {
    try {
      found.push(writeShape(stack({ ...values, ...fix })));
    } catch (error) {
      if (!(error instanceof Misfit)) throw error;
    }
  }
  return [...new Set(found)];
}

function stack(values) {
  const given = Object.fromEntries(Object.entries(values).filter(([, value]) => value !== null && value !== undefined));
  const depth = depthOf(given);
  const names = Object.keys(given).filter((name) => !SCALARS.includes(name));
  const columns = Object.fromEntries(names.map((name) => [name, spread(given[name], depth)]));
  const rows = Array.from({ length: depth }, (_, at) => names.map((name) => columns[name][at]).join());
  const kinds = new Set(rows).size;
  const done = new Map();
  rows.forEach((row, at) => {
    if (done.has(row)) return;
    const layer = { width: given.width, ...Object.fromEntries(names.map((name) => [name, columns[name][at]])) };
    const mlp = layer.mlp;
    delete layer.mlp;
    try {
      const complete = completeLayer(layer);
      complete.mlp = mlp ?? 4 * complete.width;
      checkSize("mlp", complete.mlp);
      done.set(row, complete);
    } catch (error) {
      if (!(error instanceof Misfit)) throw error;
      const substitute = (name, value) => {
        if (SCALARS.includes(name) || value === null || !(name in columns) || kinds === 1) return value;
        return columns[name].map((old, place) => (rows[place] === row ? value : old));
      };
      const fixes = error.fixes.map((fix) =>
        Object.fromEntries(Object.entries(fix).map(([name, value]) => [name, substitute(name, value)])));
      throw new Misfit((kinds > 1 ? `layer ${at + 1}: ` : "") + error.message, ...fixes);
    }
  });
  const layers = rows.map((row) => done.get(row));
  return { width: layers[0].width, depth, layers };
}

function depthOf(given) {
  const lists = Object.entries(given).filter(([, value]) => Array.isArray(value));
  const stated = given.depth ?? (lists.length ? lists[0][1].length : 1);
  if (stated < 1 || stated > DATA.deepest) {
    const problem = `depth is ${stated}, but must be a whole number from 1 to ${DATA.deepest}`;
    throw new Misfit(problem, { depth: 1 }, { depth: DATA.deepest });
  }
  if (lists.some(([, value]) => value.length !== stated)) {
    const counts = lists.map(([name, value]) => `${name} lists ${value.length}`);
    if ("depth" in given) counts.push(`depth is ${stated}`);
    const fixes = ["depth", ...lists.map(([name]) => name)].filter((name) => name in given);
    throw new Misfit(`the layers do not add up: ${counts.join(", ")}`, ...fixes.map((name) => ({ [name]: null })));
  }
  return stated;
}

function spread(value, depth) {
  return Array.isArray(value) ? value : Array(depth).fill(value);
}

function uniform(shape) {
  return shape.layers.every((layer) => sameLayer(layer, shape.layers[0]));
}

function sameLayer(one, other) {
  return [...ATTENTION, "mlp"].every((name) => one[name] === other[name]);
}

// ---- notation ----------------------------------------------------------------------------------------------------

function parseShape(text) {
  return shapeOf(readShape(text));
}

function readShape(text) {
  const tokens = text.replaceAll("×", "x").trim().split(/[-_\s]+/).filter(Boolean);
  if (!tokens.length) throw new ShapeError("the shape is empty");
  const names = Object.fromEntries(Object.entries(DATA.letters).map(([letter, name]) => [letter.toLowerCase(), name]));
  const values = {};
  for (const token of tokens) {
    const match = /^([a-z])((?:\d+(?:x\d+)?)(?:,\d+(?:x\d+)?)*)$/i.exec(token);
    if (!match) throw new ShapeError(`cannot read '${token}' in '${text}': a letter and a number are expected`);
    const [letter, number] = [match[1].toLowerCase(), match[2].toLowerCase()];
    const without = () => withoutToken(tokens, token);
    if (!(letter in names)) {
      const meanings = Object.entries(DATA.letters).map(([short, name]) => `${short} ${name}`).join(", ");
      throw new ShapeError(`'${token}': no letter '${letter}' in a shape (${meanings})`, without);
    }
    const name = names[letter];
    if (name in values) throw new ShapeError(`'${text}' gives ${name} twice`, without);
    values[name] = readSizes(name, number);
  }
  return values;
}

function readSizes(name, number) {
  if (!/[x,]/.test(number)) return Number(number);
  if (SCALARS.includes(name)) throw new ShapeError(`${name} is one number for the whole model, not '${number}'`);
  return number.split(",").flatMap((part) => {
    const [size, times] = part.split("x");
    if (times !== undefined && !(1 <= Number(times) && Number(times) <= DATA.deepest)) {
      throw new ShapeError(`'${part}' repeats a layer ${Number(times)} times, but 1 to ${DATA.deepest} is possible`);
    }
    return Array(Number(times ?? 1)).fill(Number(size));
  });
}

function withoutToken(tokens, wrong) {
  const rest = tokens.filter((token, at) => token !== wrong || at < tokens.indexOf(wrong));
  try {
    return rest.length ? [writeShape(parseShape(rest.join("-")))] : [];
  } catch (error) {
    if (!(error instanceof ShapeError)) throw error;
    return [];
  }
}

// The values that need no mention beside a layer's other values.
function usualBeside(layer) {
  return {
    heads: null, qk_rank: layer.width / layer.heads, v_rank: layer.qk_rank, kv_heads: layer.heads, kv_latent: 0,
    q_latent: 0, rope_rank: layer.kv_latent ? 0 : layer.qk_rank, mlp: 4 * layer.width,
  };
}

function writeShape(shape) {
  const usual = shape.layers.map(usualBeside);
  const tokens = [`w${shape.width}`];
  let listed = false;
  for (const [letter, name] of Object.entries(DATA.letters)) {
    if (SCALARS.includes(name)) continue;
    const column = shape.layers.map((layer) => layer[name]);
    if (column.every((value, at) => value === usual[at][name])) continue;
    tokens.push(letter + writeSizes(column));
    listed ||= new Set(column).size > 1;
  }
  if (shape.depth > 1 && !listed) {
    tokens.splice(tokens.length - (tokens.at(-1)[0] === "m" ? 1 : 0), 0, `L${shape.depth}`);
  }
  return tokens.join("-");
}

function writeSizes(column) {
  if (new Set(column).size === 1) return String(column[0]);
  const runs = [];
  for (const size of column) {
    if (runs.length && runs.at(-1)[0] === size) runs.at(-1)[1]++;
    else runs.push([size, 1]);
  }
  return runs.map(([size, times]) => (times === 1 ? size : `${size}x${times}`)).join();
}
