// Small pieces: elements, numbers in words, a button that copies.
"use strict";
const SVG = "http://www.w3.org/2000/svg";

function make(tag, attributes = {}, ...children) {
  return fillIn(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fillIn(document.createElementNS(SVG, tag), attributes, children);
}

function fillIn(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}

function byId(name) {
  return document.getElementById(name);
}

const UNITS = { numbers: ["", "k", "M", "B", "T", "P", "E", "Z"], bytes: ["bytes", "kB", "MB", "GB", "TB", "PB", "EB", "ZB"] };

// Three digits and a unit: 1.24 B, 560 M, 2.47 GB.
function short(number, bytes = false) {
  const units = UNITS[bytes ? "bytes" : "numbers"];
  let value = Number(number), at = 0;
  while (Math.abs(value) >= 999.5 && at < units.length - 1) {
    value /= 1000;
    at++;
  }
  return `${at ? Number(value.toPrecision(3)) : Math.round(value)} ${units[at]}`.trim();
}

function exactly(number) {
  return BigInt(number).toLocaleString("en-US");
}

// B against A: a percentage while it can be read as one, else a factor.
function difference(a, b) {
  if (a === b) return "same";
  if (!a) return "";
  const ratio = Number((b * 1000000n) / a) / 1e6;
  if (ratio >= 2 || ratio <= 0.5) return `${Number(ratio.toPrecision(3))}×`;
  const percent = (ratio - 1) * 100;
  if (Math.abs(percent) < 0.005) return percent < 0 ? "−0.00 %" : "+0.00 %";
  return `${percent < 0 ? "−" : "+"}${Number(Math.abs(percent).toPrecision(3))} %`;
}

function copyButton(text, what) {
  const button = make("button", { type: "button", class: "copy", "aria-label": `Copy ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select it and press Ctrl-C";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
  return button;
}

function readFile(file, then) {
  const reader = new FileReader();
  reader.addEventListener("load", () => then(reader.result));
  reader.readAsText(file);
}
