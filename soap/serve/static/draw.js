// The pad: draw with mouse, pen or finger. `onStroke` is called at the end of each stroke.

import { SIZE, centred } from "./centre.js";

const PEN_WIDTH = 22; // pixels of the pad's 280: about as thick as the strokes of MNIST after scaling

export class Pad {
  constructor(canvas, onStroke) {
    this.canvas = canvas;
    this.ink = canvas.getContext("2d", { willReadFrequently: true });
    this.onStroke = onStroke;
    this.clear();
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => this.#draw(event));
    canvas.addEventListener("pointerup", (event) => this.#end(event));
    canvas.addEventListener("pointercancel", (event) => this.#end(event));
  }

  clear() {
    this.ink.fillStyle = "#000";
    this.ink.fillRect(0, 0, this.canvas.width, this.canvas.height);
    Object.assign(this.ink, { strokeStyle: "#fff", lineWidth: PEN_WIDTH, lineCap: "round", lineJoin: "round" });
  }

  /** The drawing as a 28 x 28 PNG, or null if the pad is empty. */
  async digit() {
    const { width, height } = this.canvas;
    const { data } = this.ink.getImageData(0, 0, width, height);
    const levels = centred(Uint8Array.from({ length: width * height }, (_, i) => data[4 * i]), width, height);
    if (levels === null) return null;
    const small = new OffscreenCanvas(SIZE, SIZE);
    const pixels = new ImageData(SIZE, SIZE);
    levels.forEach((level, i) => pixels.data.set([level, level, level, 255], 4 * i));
    small.getContext("2d").putImageData(pixels, 0, 0);
    return small.convertToBlob({ type: "image/png" });
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    const scale = this.canvas.width / box.width;
    return [(event.clientX - box.left) * scale, (event.clientY - box.top) * scale];
  }

  #begin(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.pointer = event.pointerId;
    this.last = this.#place(event);
    this.#draw(event);
  }

  #draw(event) {
    if (event.pointerId !== this.pointer) return;
    const passed = event.getCoalescedEvents?.() ?? []; // one event may cover several positions of a fast stroke
    for (const [x, y] of [...passed, event].map((each) => this.#place(each))) {
      this.ink.beginPath();
      this.ink.moveTo(...this.last);
      this.ink.lineTo(x + 0.01, y); // a line of length 0 draws no dot
      this.ink.stroke();
      this.last = [x, y];
    }
  }

  #end(event) {
    if (event.pointerId !== this.pointer) return;
    this.pointer = undefined;
    this.onStroke();
  }
}
