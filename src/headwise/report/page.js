// Claims are shown by verdict and source, and a study while one of its claims is. Without scripts, everything is.
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
filter(); // a browser may remember a choice from before a reload
