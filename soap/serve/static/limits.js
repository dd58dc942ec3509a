// Worst case of the chosen model under the full suite of attacks, which know the purifier, from bundled results.

import { byId, make } from "./elements.js";

const VERDICTS = {
  "CHECKS PASSED": "all checks passed",
  "CHECKS WARNED": "a check warned: the true value may be lower",
  "INVALID": "a check failed: do not rely on it",
};

export async function readWorstCases() {
  return (await fetch("static/adaptive.json")).json();
}

export function showWorstCase(worstCases, { name, purifiable }) {
  const found = worstCases[name];
  const parts = [];
  if (purifiable) {
    parts.push(make("p", {}, make("strong", {}, "The attacks on this page do not know the purifier."),
      " An attacker who knows it can do much more."));
  }
  const missing = `The full suite of attacks has no bundled result for ${name}, so nothing is claimed for it.`;
  parts.push(found ? worstCase(name, purifiable, found) : make("p", {}, missing));
  parts.push(make("p", {}, "Measure it yourself: ", make("code", {}, `soap evaluate ${name} --suite full`)));
  byId("limits-text").replaceChildren(...parts);
}

function worstCase(name, purifiable, { worst, interval, clean, n, eps, verdict, date }) {
  const percent = (value) => `${(100 * value).toFixed(1)} %`;
  const size = eps < 0.1 ? `${Math.round(255 * eps)} / 255` : eps;
  const defence = purifiable ? `${name} with its purifier` : name;
  const [low, high] = interval.map((end) => (100 * end).toFixed(1));
  return make(
    "p",
    {},
    `${defence} classifies `,
    make("b", { id: "worst" }, percent(worst)),
    ` [${low}, ${high}] of ${n.toLocaleString("en")} test images correctly under the worst attack of the full suite for each `,
    `image (eps ${size}), and ${percent(clean)} without an attack. Verdict: ${verdict} (${VERDICTS[verdict]}), ${date}.`,
  );
}
