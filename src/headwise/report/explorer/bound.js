// The certified bound of theory/bounds.py (scalar values): no H heads of rank r in dimension d have a smaller error at
// finding the nearer of two points. Degrees above the last count as captured at its share: it stays a lower bound.
"use strict";
function scalarBound(dim, rank, heads) {
  if (rank >= dim || (rank === dim - 1 && heads > 1)) return 0;
  const top = 4 * dim + 2001;
  let energy = dim * firstCoefficient(dim) ** 2; // of the sign at degree 1
  let logShare = Math.log(rank / dim); // log of m(l, r) / N(d, l), at l = 1
  let captured = 0, whole = 0;
  const logHeads = Math.log(heads);
  for (let degree = 1; degree < top; degree += 2) {
    captured += energy * Math.exp(Math.min(0, logHeads + logShare));
    whole += energy;
    energy *= (((2 * degree + dim + 2) / (2 * degree + dim - 2)) * (degree + dim - 2)) / (degree + 1);
    energy *= ((degree + dim - 1) / (degree + 2)) * (degree / (degree + dim)) ** 2;
    logShare += logShareStep(dim, rank, degree) + logShareStep(dim, rank, degree + 1);
  }
  captured += Math.max(0, 1 - whole) * Math.exp(Math.min(0, logHeads + logShare));
  return Math.max(0, 0.5 * (1 - captured));
}

// From degree l to l + 1: m(l, r) = C(l + r - 1, l), N(d, l) = (2l + d - 2) / (l + d - 2) · C(l + d - 2, l).
function logShareStep(dim, rank, l) {
  const seen = Math.log((l + rank) / (l + 1));
  const all = Math.log(((2 * l + dim) / (2 * l + dim - 2)) * ((l + dim - 2) / (l + 1)));
  return seen - all;
}

function firstCoefficient(dim) {
  let product = dim % 2 ? 1 : 2 / Math.PI;
  for (let step = dim % 2 ? 1 : 2; step < dim - 1; step += 2) product *= step / (step + 1);
  return product;
}
