// The auxiliary loss at each step as a line, and below it the predicted class at each step.

import { draw, significant } from "./elements.js";

const HEIGHT = 210;
const EDGE = { left: 60, right: 10, top: 24, bottom: 52 };
const STRIP = 24;

/** phases: [{ name, kind, points }], side by side. Returns { element, point(index) } where point moves the cursor. */
export function chart(phases, width, expected) {
  const losses = phases.flatMap(({ points }) => points.map((point) => point.aux_loss)).filter((loss) => loss !== null);
  const largest = Math.max(...losses, 0) || 1;
  const y = (loss) => EDGE.top + (HEIGHT - EDGE.top - EDGE.bottom) * (1 - loss / (1.08 * largest));
  const size = { viewBox: `0 0 ${width} ${HEIGHT}`, width, height: HEIGHT };
  const element = draw("svg", { ...size, role: "img", "aria-label": description(phases) });
  if (losses.length) element.append(...axis(largest, y, width));
  const phaseWidth = (width - EDGE.left - EDGE.right) / phases.length;
  const places = [];
  phases.forEach((phase, i) => {
    const from = EDGE.left + i * phaseWidth + 8;
    const x = (t) => from + ((phaseWidth - 16) * t) / Math.max(1, phase.points.length - 1);
    const group = draw("g", { class: phase.kind });
    group.append(draw("text", { x: from, y: 14, class: "phase" }, phase.name));
    if (losses.length) {
      const line = phase.points.map((point, t) => `${x(t).toFixed(1)},${y(point.aux_loss).toFixed(1)}`);
      group.append(draw("polyline", { points: line.join(" "), class: "line" }));
      const dots = phase.points.length > 25 ? [0, phase.points.length - 1] : phase.points.keys();
      for (const t of dots) {
        group.append(draw("circle", { cx: x(t), cy: y(phase.points[t].aux_loss), r: 3.2, class: "dot" }));
      }
    }
    group.append(...strip(phase.points, x, from, from + phaseWidth - 16, expected));
    group.append(...ends(phase.points.length - 1, x));
    element.append(group);
    places.push(...phase.points.map((_, t) => x(t)));
  });
  const cursor = draw("line", { y1: EDGE.top - 4, y2: HEIGHT - EDGE.bottom + 10 + STRIP, class: "cursor" });
  element.append(cursor);
  const point = (index) => {
    cursor.setAttribute("x1", places[index]);
    cursor.setAttribute("x2", places[index]);
  };
  return { element, point };
}

function axis(largest, y, width) {
  return [0, largest / 2, largest].flatMap((loss) => [
    draw("line", { x1: EDGE.left, x2: width - EDGE.right, y1: y(loss), y2: y(loss), class: "grid" }),
    draw("text", { x: EDGE.left - 8, y: y(loss) + 4, class: "tick", "text-anchor": "end" }, significant(loss)),
  ]);
}

/** Runs of steps with the same predicted class as cells, with its name if it fits. */
function strip(points, x, left, right, expected) {
  const parts = [];
  const border = (t) => (x(t - 1) + x(t)) / 2;
  for (let start = 0, t = 1; t <= points.length; t++) {
    if (t < points.length && points[t].class === points[start].class) continue;
    const from = start === 0 ? left - 4 : border(start);
    const to = t === points.length ? right + 4 : border(t);
    const { class: label, name } = points[start];
    const top = HEIGHT - EDGE.bottom + 10;
    const cell = draw("rect", { x: from, y: top, width: Math.max(1, to - from - 1), height: STRIP, rx: 2 });
    cell.setAttribute("class", label === expected ? "cell correct" : "cell wrong");
    cell.append(draw("title", {}, name));
    parts.push(cell);
    if (to - from > 9 * name.length + 4) {
      parts.push(draw("text", { x: (from + to) / 2, y: top + 16, class: "seen-here", "text-anchor": "middle" }, name));
    }
    start = t;
  }
  return parts;
}

function ends(last, x) {
  return [
    draw("text", { x: x(0), y: HEIGHT - 3, class: "tick" }, "step 0"),
    draw("text", { x: x(last), y: HEIGHT - 3, class: "tick", "text-anchor": "end" }, String(last)),
  ];
}

function description(phases) {
  const parts = phases.map(({ name, points }) => {
    const [first, last] = [points[0], points.at(-1)];
    const labels = `${name}: from ${first.name} to ${last.name} in ${points.length - 1} steps`;
    if (first.aux_loss === null) return labels;
    return `${labels}, auxiliary loss from ${significant(first.aux_loss)} to ${significant(last.aux_loss)}`;
  });
  return `${parts.join("; ")}. The table below has every step.`;
}
