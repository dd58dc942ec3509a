// What the chosen model is worth against one who knows the purifier, by the bundled figures of the full suite.

import { byId, make } from "./elements.js";

const VERDICTS = {
  "TRUSTED BOUND": "all checks passed",
  "UPPER BOUND ONLY": "a check is in doubt: the truth may be lower",
  "NOT A ROBUSTNESS NUMBER": "a check failed: not to be relied on",
};

export async function readFigures() {
  return (await fetch("static/adaptive.json")).json();
}

export function tellLimits(figures, { name, purifiable }) {
  const found = figures[name];
  const parts = [];
  if (purifiable) {
    parts.push(make("p", {}, make("strong", {}, "An attacker who knows the purifier gets past it."),
      " The attacks on this page do not know it; that is the easy case."));
  }
  const nothing = `The full suite of attacks has no bundled figure for ${name}, so nothing is claimed for it.`;
  parts.push(found ? told(name, purifiable, found) : make("p", {}, nothing));
  parts.push(make("p", {}, "Measure it yourself: ", make("code", {}, `soap evaluate ${name} --suite full`)));
  byId("limits-said").replaceChildren(...parts);
}

function told(name, purifiable, { worst, interval, clean, n, eps, verdict, date }) {
  const share = (value) => `${(100 * value).toFixed(1)} %`;
  const size = eps < 0.1 ? `${Math.round(255 * eps)} / 255` : eps;
  const who = purifiable ? `${name} and its purifier` : name;
  const [low, high] = interval.map((end) => (100 * end).toFixed(1));
  return make(
    "p",
    {},
    `Of ${n.toLocaleString("en")} test pictures, ${who} still gets `,
    make("b", { id: "worst" }, share(worst)),
    ` right [${low}, ${high}] once every attack of the full suite has been tried at strength ${size}, down from `,
    `${share(clean)} without an attack. Verdict on this figure: ${verdict} (${VERDICTS[verdict]}), ${date}.`,
  );
}
