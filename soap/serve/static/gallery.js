// Example digits, and the gallery of what worked and what failed.

import { byId, make } from "./elements.js";

const FOLDER = "static/gallery";
const GROUPS = { works: "It works", fails: "It fails" };

export async function readGallery() {
  return (await fetch(`${FOLDER}/gallery.json`)).json();
}

/** Show what the served models can do; returns a function that chooses the example to begin with.

    choose(fetched, label, entry): fetched() gets the picture; entry is null for a plain digit. */
export function fillGallery({ digits, entries }, served, choose) {
  const load = (file, label, entry) =>
    choose(async () => (await fetch(`${FOLDER}/${file}`)).blob(), label, entry);
  byId("digits").replaceChildren(...digits.map(({ file, label }) => {
    const button = make("button", { type: "button", className: "digit" }, small(file, `Example: ${label}`));
    button.addEventListener("click", () => load(file, label, null));
    return make("li", {}, button);
  }));
  const known = entries.filter(({ model }) => served.includes(model));
  byId("gallery").hidden = known.length === 0;
  byId("gallery-groups").replaceChildren(...Object.entries(GROUPS).flatMap(([outcome, title]) => {
    const own = known.filter((entry) => entry.outcome === outcome);
    if (own.length === 0) return [];
    const cards = own.map((entry) => {
      const card = make("button", { type: "button", className: `card ${outcome}` }, ...inside(entry));
      card.addEventListener("click", () => load(entry.input.file, entry.label, entry));
      return make("li", {}, card);
    });
    return [make("h3", {}, title), make("ul", { className: "cards" }, ...cards)];
  }));
  return () => load(digits[7].file, digits[7].label, null);
}

function inside({ model, input, attacked, purified, said }) {
  const stages = { input, attacked, purified };
  const pictures = Object.entries(stages).filter(([, it]) => it).map(([name, it]) =>
    make("span", { className: "step" }, small(it.file, ""), make("span", {}, `${name}: `, make("b", {}, it.name))),
  );
  return [
    make("span", { className: "steps" }, ...pictures),
    make("span", { className: "told" }, said),
    make("span", { className: "hint" }, model),
  ];
}

const small = (file, alt) => make("img", { src: `${FOLDER}/${file}`, alt, width: 28, height: 28 });
