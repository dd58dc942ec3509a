// The steps of an attack and of a purification: drawn as a chart, played, stepped through, and told as a table.

import { chart } from "./chart.js";
import { byId, figure, make, percent } from "./elements.js";

const PLAY = 1600; // milliseconds for one walk, or so
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Walk {
  /** show(kind, point) draws one point into its stage. */
  constructor(show) {
    this.show = show;
    this.phases = [];
    this.turn = null; // that of the play under way
    byId("replay").addEventListener("click", () => this.play(0));
    byId("step").addEventListener("input", (event) => {
      this.stop();
      this.#go(Number(event.target.value));
    });
    let width = 0;
    new ResizeObserver(([entry]) => {
      if (Math.abs(entry.contentRect.width - width) < 1) return; // drawing changes the height, and only that
      width = entry.contentRect.width;
      this.#draw();
    }).observe(byId("chart"));
  }

  /** phases: [{ name, kind, points }]; right: the class that the picture should be seen as. */
  set(phases, right) {
    this.stop();
    Object.assign(this, { phases, right });
    this.points = phases.flatMap(({ kind, name, points }) =>
      points.map((point) => ({ kind, phase: name, last: points.length - 1, ...point })),
    );
    this.at = Math.max(0, this.points.length - 1);
    byId("walk").hidden = this.points.length === 0;
    if (this.points.length === 0) return;
    byId("step").max = this.points.length - 1;
    byId("steps").replaceChildren(...rows(this.points));
    const lossless = this.points[0].aux_loss === null;
    byId("chart-said").textContent = lossless
      ? "This model has no auxiliary task, hence no auxiliary loss. The strip shows the class seen at each step."
      : "The line is the auxiliary loss, which purification lowers; the strip shows the class seen at each step.";
    this.#draw();
  }

  /** Go through the steps from the first of phase number `phase` on; resolves at the end, or when stopped. */
  async play(phase) {
    this.stop();
    for (const { kind, points } of this.phases) this.show(kind, points.at(-1)); // one may have been left half-way
    const turn = (this.turn = {});
    const from = this.phases.slice(0, phase).reduce((sum, { points }) => sum + points.length, 0);
    const pause = Math.min(260, Math.max(30, PLAY / (this.points.length - from)));
    for (let index = still.matches ? this.points.length - 1 : from; index < this.points.length; index++) {
      this.#go(index);
      if (!still.matches) await new Promise((resolve) => setTimeout(resolve, pause));
      if (turn !== this.turn) return;
    }
    this.turn = null;
  }

  stop() {
    this.turn = null;
  }

  /** Stop, at the end of what was being played. */
  finish() {
    if (this.turn) this.#go(this.points.length - 1);
    this.stop();
  }

  #go(index) {
    this.at = index;
    const point = this.points[index];
    this.show(point.kind, point);
    this.chart?.point(index);
    const words = `${point.phase}, step ${point.step} of ${point.last}: ${point.name} ${percent(point.probability)}`;
    byId("step").value = index;
    byId("step").setAttribute("aria-valuetext", words);
    byId("step-said").textContent = words;
  }

  #draw() {
    const box = byId("chart");
    if (!this.points?.length || box.clientWidth === 0) return;
    this.chart = chart(this.phases, box.clientWidth, this.right);
    box.replaceChildren(this.chart.element);
    this.chart.point(this.at);
  }
}

function rows(points) {
  const head = ["", "step", "sees", "probability", "auxiliary loss"].map((text) => make("th", { scope: "col" }, text));
  const body = points.map((point) => {
    const loss = point.aux_loss === null ? "none" : figure(point.aux_loss);
    const cells = [point.phase, point.step, point.name, percent(point.probability), loss];
    return make("tr", {}, ...cells.map((text) => make("td", {}, String(text))));
  });
  return [make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)];
}
