// Example digits, and the gallery of successes and failures.

import { byId, make } from "./elements.js";

const FOLDER = "static/gallery";
const GROUPS = { works: "It works", fails: "It fails" };

export async function readGallery() {
  return (await fetch(`${FOLDER}/gallery.json`)).json();
}

/** Show the examples of the served models; returns a function that chooses the first example.

    choose(fetchPicture, label, entry): entry is null for a digit that is not in the gallery. */
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
      const card = make("button", { type: "button", className: `card ${outcome}` }, ...cardContent(entry));
      card.addEventListener("click", () => load(entry.input.file, entry.label, entry));
      return make("li", {}, card);
    });
    return [make("h3", {}, title), make("ul", { className: "cards" }, ...cards)];
  }));
  return () => load(digits[7].file, digits[7].label, null);
}

function cardContent({ model, input, attacked, purified, description }) {
  const stages = { input, attacked, purified };
  const pictures = Object.entries(stages).filter(([, it]) => it).map(([name, it]) =>
    make("span", { className: "step" }, small(it.file, ""), make("span", {}, `${name}: `, make("b", {}, it.name))),
  );
  return [
    make("span", { className: "steps" }, ...pictures),
    make("span", { className: "description" }, description),
    make("span", { className: "hint" }, model),
  ];
}

const small = (file, alt) => make("img", { src: `${FOLDER}/${file}`, alt, width: 28, height: 28 });
