// A chart that answers: a pointer gets a mark's numbers, Ctrl and the wheel zoom, dragging moves. Drawn in colours for
// paper, as the pictures are; the style turns their lightness round on a dark screen.
"use strict";
const MARGIN = 96; // of a panel: its axis and what stands around it
const LETTER = { title: 8.6, note: 6.8 }; // their width, and the size of letters
const NARROW = 620; // from here legends stand beside the panels
const CHART_HELP = "Point at a mark for its numbers. Ctrl and the wheel zoom, dragging moves, a double click puts it back.";

// Charts are drawn when they come into sight.
function whenSeen(figures, then) {
  const observer = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      then(target);
    }
  }, { rootMargin: "400px" });
  for (const figure of figures) observer.observe(figure);
}

async function liveChart(figure, spec) {
  const host = document.createElement("div"), help = document.createElement("p");
  const touched = matchMedia("(pointer: coarse)").matches; // fingers scroll the page
  const wide = figure.clientWidth - 26;
  figure.append(host);
  await window.vegaEmbed(host, fitted(structuredClone(spec), wide, !touched), {
    mode: "vega-lite", renderer: "svg", actions: false, ast: true, defaultStyle: false, logLevel: 1,
    tooltip: { disableDefaultStyle: true },
  });
  const svg = host.querySelector("svg");
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", spec.description);
  figure.querySelector("img")?.remove();
  help.className = "chart-help";
  help.textContent = touched ? "Touch a mark for its numbers." : CHART_HELP;
  figure.append(help);
}

// The chart in so much room: fewer panels side by side, legends below, titles in more lines.
function fitted(spec, wide, zooms) {
  const side = spec.concat ?? spec.hconcat, panels = side ?? [spec];
  const legend = wide < NARROW ? 0 : 150;
  for (const panel of panels) if (typeof panel.width === "number") panel.width = Math.max(120, Math.min(panel.width, wide - MARGIN - legend));
  if (side) {
    const each = Math.max(...panels.map((panel) => panel.width ?? 300)) + MARGIN - 20;
    spec.columns = Math.max(1, Math.min(panels.length, spec.columns ?? panels.length, Math.floor((wide - legend) / each)));
    spec.concat = side;
    delete spec.hconcat;
  }
  if (!legend) spec.config = { ...spec.config, legend: { ...spec.config?.legend, orient: "bottom", direction: "vertical", columns: 1 } };
  if (zooms) zoomed(spec, panels);
  spec.title = inRoom(spec.title, wide);
  return spec;
}

// Axes of names stay; a panel of layers is zoomed by the first that draws what was measured. Panels that share an axis
// are zoomed along it, all of them together.
function zoomed(spec, panels) {
  const together = panels.length > 1 && spec.resolve?.scale?.y === "shared", views = [];
  panels.forEach((panel, at) => {
    const of = (layer) => ({ ...panel.encoding, ...layer.encoding });
    const plain = (layer) => Object.values(of(layer)).every((one) => !one.aggregate) && of(layer).x && of(layer).y;
    const layer = (panel.layer ?? [panel]).find(plain);
    const axes = ["x", "y"].filter((name) => layer && of(layer)[name].type === "quantitative");
    if (together && axes.includes("y")) views.push((layer.name = `panel${at}`));
    if (!together && axes.length) layer.params = [...(layer.params ?? []), zoomAlong(axes, `zoom${at}`)];
  });
  if (views.length) spec.params = [...(spec.params ?? []), { ...zoomAlong(["y"], "zoom"), views }];
}

function zoomAlong(encodings, name) {
  return { name, select: { type: "interval", encodings, zoom: "wheel![event.ctrlKey || event.metaKey]" }, bind: "scales" };
}

function inRoom(title, wide) {
  if (!title) return title;
  const { text, subtitle, ...rest } = typeof title === "string" ? { text: title } : title;
  const lines = (said, letter) => [said ?? []].flat().flatMap((line) => inLines(line, Math.floor(wide / letter)));
  return { ...rest, text: lines([text].flat().join(" "), LETTER.title), subtitle: lines(subtitle, LETTER.note) };
}

function inLines(text, room) {
  const lines = [];
  for (const word of text.split(" ")) {
    const last = lines.at(-1);
    if (last !== undefined && last.length + word.length < room) lines[lines.length - 1] = `${last} ${word}`;
    else lines.push(word);
  }
  return lines;
}
