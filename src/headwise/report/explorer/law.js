// The laws of the ladder: the predicted final loss of A and of B, each with its interval. As comparison/prediction.py
// has it.
"use strict";
const ROUNDING = 1e-9;

// The ladder's variant that a shape is, and that variant at its width; null for every other shape.
function rungOf(shape) {
  for (const variant of DATA.law.variants) {
    const [own, plain] = variant.letters.map((letters) => parsedOrNull(`w${shape.width}-${letters}`));
    if (own && plain && [own, plain].some((one) => writeShape(one) === writeShape(shape))) return { variant, shape: own };
  }
  return null;
}

function parsedOrNull(text) {
  try {
    return parseShape(text);
  } catch (error) {
    if (!(error instanceof ShapeError)) throw error;
    return null; // heads that do not divide this width
  }
}

// A loss with its interval, where it lies beyond the runs, and the law; or why there is none.
function predictedLoss(shape, options) {
  const { law } = DATA;
  if (law.none) return { none: law.none };
  const rung = rungOf(shape);
  if (!rung) return { none: law.others };
  if (![DATA.defaults, law.options].some((one) => sameOptions(one, options))) {
    return { none: "the ladder trained models of its own kind; choose the layers alone to see what that made of this shape" };
  }
  const { why_not: few, law: line } = rung.variant;
  if (few) return { none: few };
  const size = Number(parametersOf(countedLayers(rung.shape, law.options), BigInt(shape.width), big(law.options)).total);
  const beyond = Math.max(size / line.most, line.least / size, 1);
  if (beyond > law.farthest) {
    return { none: `its parameters are ${Math.round(beyond).toLocaleString("en-US")} times those of any run, and a law reaches ${law.farthest} times at most` };
  }
  const outside = beyond > 1 + ROUNDING ? `parameters ${exactly(size)}, the ladder has ${exactly(line.least)} to ${exactly(line.most)}` : "";
  return { ...alongLine(line, size), outside, about: line.about };
}

function alongLine({ centre, coefficients, covariance, variance, quantile }, size) {
  const at = [1, Math.log(size) - centre];
  const dot = (a, b) => a[0] * b[0] + a[1] * b[1];
  const half = quantile * Math.sqrt(variance + dot(at, covariance.map((row) => dot(row, at))));
  const [value, low, high] = [0, -half, half].map((by) => Math.exp(dot(at, coefficients) + by));
  return { value, low, high };
}

function sameOptions(one, other) {
  return Object.keys(DATA.options).every((name) => one[name] === other[name]);
}

function showPredicted(a, b) {
  const host = byId("predicted");
  if (!host) return;
  const { none } = DATA.law;
  if (none) return host.replaceChildren(predictedLine({ none }));
  const models = b.shape && b.text !== a.text ? [a, b] : [a];
  host.replaceChildren(...models.map((model) => predictedLine({ model, ...predictedLoss(model.shape, model.options) })));
}

function predictedLine({ model, none, value, low, high, outside, about }) {
  const of = model ? ` of ${model.name.toUpperCase()}` : "";
  if (none) return make("p", { class: "greyed" }, make("b", {}, `No predicted loss${of}: `), `${none}. What others published is below.`);
  const { level, trained } = DATA.law;
  const trust = outside ? ` Carried on beyond the runs: ${outside}.` : "";
  return make("p", { class: outside ? "greyed" : "" },
    make("b", {}, `Predicted loss${of}: ${value.toFixed(3)} bits per byte [${low.toFixed(3)}, ${high.toFixed(3)}]. `),
    `The interval is for ${Math.round(100 * level)} % of new runs.${trust} Law ${about}; runs: ${trained}.`);
}
