// The steps of an attack and of a purification: a chart, an animation, a slider and a table.

import { chart } from "./chart.js";
import { byId, make, percent, significant } from "./elements.js";

const ANIMATION_MS = 1600; // approximate duration
const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

export class Walk {
  /** show(kind, point) shows a point in its stage. */
  constructor(show) {
    this.show = show;
    this.phases = [];
    this.turn = null; // identifies the running animation
    byId("replay").addEventListener("click", () => this.play(0));
    byId("step").addEventListener("input", (event) => {
      this.stop();
      this.#go(Number(event.target.value));
    });
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) < 1) return; // drawing changes only the height
      width = entry.contentRect.width;
      this.#draw();
    }).observe(byId("chart"));
  }

  /** phases: [{ name, kind, points }]; expected: the correct class. */
  set(phases, expected) {
    this.stop();
    Object.assign(this, { phases, expected });
    this.points = phases.flatMap(({ kind, name, points }) =>
      points.map((point) => ({ kind, phase: name, last: points.length - 1, ...point })),
    );
    this.at = Math.max(0, this.points.length - 1);
    byId("walk").hidden = this.points.length === 0;
    if (this.points.length === 0) return;
    byId("step").max = this.points.length - 1;
    byId("steps").replaceChildren(...rows(this.points));
    const lossless = this.points[0].aux_loss === null;
    byId("chart-hint").textContent = lossless
      ? "This model has no auxiliary task, hence no auxiliary loss. The strip shows the predicted class at each step."
      : "The line is the auxiliary loss, which purification lowers; the strip shows the predicted class at each step.";
    this.#draw();
  }

  /** Animate the steps, beginning with the first of phase number `phase`; resolves at the end, or when stopped. */
  async play(phase) {
    this.stop();
    for (const { kind, points } of this.phases) this.show(kind, points.at(-1)); // an animation may have been stopped
    const turn = (this.turn = {});
    const from = this.phases.slice(0, phase).reduce((sum, { points }) => sum + points.length, 0);
    const pause = Math.min(260, Math.max(30, ANIMATION_MS / (this.points.length - from)));
    for (let index = reducedMotion.matches ? this.points.length - 1 : from; index < this.points.length; index++) {
      this.#go(index);
      if (!reducedMotion.matches) await new Promise((resolve) => setTimeout(resolve, pause));
      if (turn !== this.turn) return;
    }
    this.turn = null;
  }

  stop() {
    this.turn = null;
  }

  /** Stop the animation and show its last step. */
  finish() {
    if (this.turn) this.#go(this.points.length - 1);
    this.stop();
  }

  #go(index) {
    this.at = index;
    const point = this.points[index];
    this.show(point.kind, point);
    this.chart?.point(index);
    const text = `${point.phase}, step ${point.step} of ${point.last}: ${point.name} ${percent(point.probability)}`;
    byId("step").value = index;
    byId("step").setAttribute("aria-valuetext", text);
    byId("step-text").textContent = text;
  }

  #draw() {
    const box = byId("chart");
    if (!this.points?.length || box.clientWidth === 0) return;
    this.chart = chart(this.phases, box.clientWidth, this.expected);
    box.replaceChildren(this.chart.element);
    this.chart.point(this.at);
  }
}

function rows(points) {
  const head = ["", "step", "sees", "probability", "auxiliary loss"].map((text) => make("th", { scope: "col" }, text));
  const body = points.map((point) => {
    const loss = point.aux_loss === null ? "none" : significant(point.aux_loss);
    const cells = [point.phase, point.step, point.name, percent(point.probability), loss];
    return make("tr", {}, ...cells.map((text) => make("td", {}, String(text))));
  });
  return [make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)];
}
