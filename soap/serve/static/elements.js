// HTML and SVG elements; text is set as text, never as HTML.

export const byId = (id) => document.getElementById(id);

/** make("li", { className: "top" }, "text", child ...) */
export function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** A share in per cent; a share below 1 is never shown as 100 %. */
export function percent(share) {
  const text = (100 * share).toFixed(1);
  return text === "100.0" && share < 1 ? "> 99.9 %" : `${text} %`;
}

/** A number with three significant digits. */
export const significant = (value) => String(Number(value.toPrecision(3)));

export const picture = (base64) => `data:image/png;base64,${base64}`;
