// One of the three pictures, with what the network sees in it.

import { figure, make, percent, picture } from "./elements.js";

const MOST = 10; // bars

export class Stage {
  constructor(figureElement) {
    this.image = figureElement.querySelector("img");
    this.wait = figureElement.querySelector(".wait");
    this.answer = figureElement.querySelector(".answer");
    this.change = figureElement.querySelector(".change");
    this.told = this.wait.textContent;
  }

  clear(words = this.told) {
    this.image.hidden = true;
    this.wait.hidden = false;
    this.wait.textContent = words;
    this.answer.replaceChildren();
    this.change?.replaceChildren();
  }

  /** point: picture (base64), class, name, probabilities, aux_loss. right: the class that it should be. */
  show(point, classes, right) {
    this.image.src = picture(point.picture);
    this.image.hidden = false;
    this.wait.hidden = true;
    const seen = point.class;
    const head = make("p", { className: seen === right ? "seen right" : "seen wrong" });
    const mark = make("span", { ariaHidden: "true" }, seen === right ? "✓" : "✗");
    head.append(make("b", {}, point.name), ` ${percent(point.probabilities[seen])} `, mark);
    const loss = point.aux_loss === null ? "" : `auxiliary loss ${figure(point.aux_loss)}`;
    const below = make("p", { className: "hint" }, loss);
    this.answer.replaceChildren(head, below, bars(point.probabilities, classes, right));
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

function bars(probabilities, classes, right) {
  let shown = probabilities.map((_, label) => label);
  if (shown.length > MOST) {
    shown = shown.sort((a, b) => probabilities[b] - probabilities[a]).slice(0, MOST).sort((a, b) => a - b);
  }
  const top = Math.max(...probabilities);
  const lines = shown.map((label) => {
    const fill = make("span", { className: "fill" });
    fill.style.width = `${100 * probabilities[label]}%`;
    const kind = probabilities[label] < top ? "" : label === right ? "top right" : "top wrong";
    const track = make("span", { className: "track" }, fill);
    const share = make("span", { className: "share" }, `${Math.round(100 * probabilities[label])} %`);
    return make("li", { className: kind }, make("span", {}, classes[label]), track, share);
  });
  const list = make("ul", { className: "bars" }, ...lines);
  list.setAttribute("aria-label", "Probability of each class");
  return list;
}
