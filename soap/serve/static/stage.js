// One of the three pictures, with its prediction.

import { make, percent, picture, significant } from "./elements.js";

const MAX_BARS = 10;

export class Stage {
  constructor(figureElement) {
    this.image = figureElement.querySelector("img");
    this.wait = figureElement.querySelector(".wait");
    this.prediction = figureElement.querySelector(".prediction");
    this.change = figureElement.querySelector(".change");
    this.emptyText = this.wait.textContent;
  }

  clear(text = this.emptyText) {
    this.image.hidden = true;
    this.wait.hidden = false;
    this.wait.textContent = text;
    this.prediction.replaceChildren();
    this.change?.replaceChildren();
  }

  /** point: picture (base64), class, name, probabilities, aux_loss. expected: the correct class. */
  show(point, classes, expected) {
    this.image.src = picture(point.picture);
    this.image.hidden = false;
    this.wait.hidden = true;
    const head = make("p", { className: point.class === expected ? "seen correct" : "seen wrong" });
    const mark = make("span", { ariaHidden: "true" }, point.class === expected ? "✓" : "✗");
    head.append(make("b", {}, point.name), ` ${percent(point.probabilities[point.class])} `, mark);
    const loss = point.aux_loss === null ? "" : `auxiliary loss ${significant(point.aux_loss)}`;
    const below = make("p", { className: "hint" }, loss);
    this.prediction.replaceChildren(head, below, bars(point.probabilities, classes, expected));
  }

  /** The difference to the picture before, magnified. */
  showChange(base64, magnification, words) {
    const caption = `${words}, × ${magnification.toFixed(magnification < 10 ? 1 : 0)}`;
    this.change.replaceChildren(
      make("img", { src: picture(base64), alt: `${caption}, about mid grey` }),
      make("span", { className: "hint" }, caption),
    );
  }
}

function bars(probabilities, classes, expected) {
  let shown = probabilities.map((_, label) => label);
  if (shown.length > MAX_BARS) {
    shown = shown.sort((a, b) => probabilities[b] - probabilities[a]).slice(0, MAX_BARS).sort((a, b) => a - b);
  }
  const top = Math.max(...probabilities);
  const lines = shown.map((label) => {
    const fill = make("span", { className: "fill" });
    fill.style.width = `${100 * probabilities[label]}%`;
    const kind = probabilities[label] < top ? "" : label === expected ? "top correct" : "top wrong";
    const track = make("span", { className: "track" }, fill);
    const share = make("span", { className: "share" }, `${Math.round(100 * probabilities[label])} %`);
    return make("li", { className: kind }, make("span", {}, classes[label]), track, share);
  });
  const list = make("ul", { className: "bars" }, ...lines);
  list.setAttribute("aria-label", "Probability of each class");
  return list;
}
