// Status sentences of the page.

import { percent } from "./elements.js";

const nameAndShare = ({ name, class: label, probabilities }, suffix = "") =>
  `${name}${suffix} (${percent(probabilities[label])})`;

export function ofInput(response, label, classes) {
  const misclassified = label !== null && label !== response.class;
  return `The network sees ${nameAndShare(response)}${misclassified ? `, but the label is ${classes[label]}` : ""}.`;
}

/** done, total: bytes. The runtime, the largest part, is loaded once for all models. */
export function ofLoading(done, total) {
  return `Loading the network into this browser: ${(done / 1e6).toFixed(0)} of at most ${megabytes(total)}.`;
}

export function ofPlace(inBrowser) {
  return `Pictures are now classified and purified ${inBrowser ? "in this browser" : "by the service"}.`;
}

export const megabytes = (bytes) => `${(bytes / 1e6).toFixed(0)} MB`;

/** inUnits(change): a change of a pixel as text. */
export function ofAttack(response, inUnits) {
  const outcome = response.fooled
    ? `Attacked: the network saw ${response.before.name}, now it sees ${nameAndShare(response)}.`
    : `The attack failed: the network still sees ${nameAndShare(response)}.`;
  return `${outcome} No pixel changed by more than ${inUnits(response.linf)}.`;
}

export function ofPurification(response, expected, classes, inUnits) {
  return `${purificationOutcome(response, expected, classes)} Radius ${inUnits(response.eps)}.`;
}

function purificationOutcome(response, expected, classes) {
  const [before, after] = [response.before.class, response.class];
  if (after === expected && before === expected) return `Purified: the network still sees ${nameAndShare(response)}.`;
  if (after === expected) return `Purified: the network sees ${nameAndShare(response, " again")}.`;
  const when = after === before ? "still" : "now";
  return `Purification failed here: the network ${when} sees ${nameAndShare(response)}, not ${classes[expected]}.`;
}
