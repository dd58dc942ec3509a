// What came of it, in a sentence each.

import { percent } from "./elements.js";

const sure = ({ name, class: seen, probabilities }, again = "") =>
  `${name}${again} (${percent(probabilities[seen])})`;

export function ofInput(answer, label, classes) {
  const wrongly = label !== null && label !== answer.class;
  return `The network sees ${sure(answer)}${wrongly ? `, though it is ${classes[label]}` : ""}.`;
}

/** In bytes. The runtime, most of it, is loaded but once for all models. */
export function ofLoading(done, most) {
  return `Loading the network into this browser: ${(done / 1e6).toFixed(0)} of at most ${megabytes(most)}.`;
}

export function ofPlace(here) {
  return `Pictures are now looked at and purified ${here ? "in this browser" : "by the service"}.`;
}

export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(0)} MB`;

/** inUnits: a change of a pixel as text. */
export function ofAttack(answer, inUnits) {
  const turned = answer.fooled
    ? `Attacked: the network saw ${answer.before.name}, now it sees ${sure(answer)}.`
    : `The attack failed: the network still sees ${sure(answer)}.`;
  return `${turned} No pixel changed by more than ${inUnits(answer.linf)}.`;
}

export function ofPurification(answer, right, classes, inUnits) {
  return `${turned(answer, right, classes)} Radius ${inUnits(answer.eps)}.`;
}

function turned(answer, right, classes) {
  const [before, after] = [answer.before.class, answer.class];
  if (after === right && before === right) return `Purified: the network still sees ${sure(answer)}.`;
  if (after === right) return `Purified: the network sees ${sure(answer, " again")}.`;
  const when = after === before ? "still" : "now";
  return `Purification failed here: the network ${when} sees ${sure(answer)}, not ${classes[right]}.`;
}
