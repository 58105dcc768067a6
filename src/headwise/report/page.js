// Claims are shown by verdict and source, and a study while one of its claims is; charts come to life where they are
// seen. Without scripts, everything is shown, and charts are pictures.
"use strict";
const form = document.querySelector(".filter");
const claims = document.querySelectorAll("[data-verdict]");

function filter() {
  const wanted = { verdict: form.elements.verdict.value, source: form.elements.source.value };
  for (const claim of claims) {
    claim.hidden = Object.entries(wanted).some(([name, value]) => value && claim.dataset[name] !== value);
  }
  for (const study of document.querySelectorAll(".study")) {
    study.hidden = !study.querySelector("[data-verdict]:not([hidden])");
  }
  const rows = [...document.querySelectorAll(".ledger [data-verdict]")];
  form.elements.shown.value = `${rows.filter((row) => !row.hidden).length} of ${rows.length} claims`;
}

form.addEventListener("change", filter);
form.addEventListener("submit", (event) => event.preventDefault());
form.hidden = false;
if (document.getElementById("charts")) {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  whenSeen(document.querySelectorAll("[data-chart]"), (figure) => liveChart(figure, charts[figure.dataset.chart]));
}
filter(); // a browser may remember a choice from before a reload
