// Decodes and encodes grey pictures in this browser as the service does.

import { PageError } from "./api.js";

const WEIGHTS = [19595, 38470, 7471]; // of red, green and blue in grey, in 65536ths

/** A picture file (a Blob) as values in [0, 1], scaled to [1, height, width]; `invert` swaps dark and light. */
export async function decode(picture, [, height, width], invert = false) {
  const { levels, width: sourceWidth } = await greyLevels(picture);
  const scaled = scaleRows(scaleRows(levels, sourceWidth, width), levels.length / sourceWidth, height);
  const values = Float32Array.from(scaled, (level) => level / 255);
  return invert ? values.map((value) => 1 - value) : values;
}

/** Values in [0, 1] as base64 PNG. */
export async function encode(values, [, height, width]) {
  const pixels = new ImageData(width, height);
  values.forEach((value, i) => {
    const level = Math.fround(255 * value); // single precision rounds halves as the service does
    pixels.data.set([level, level, level, 255], 4 * i);
  });
  const paper = new OffscreenCanvas(width, height);
  paper.getContext("2d").putImageData(pixels, 0, 0);
  const blob = await paper.convertToBlob({ type: "image/png" });
  return btoa(String.fromCharCode(...new Uint8Array(await blob.arrayBuffer())));
}

/** after - before around mid grey, scaled so that its largest value is black or white, and the factor. */
export function magnified(before, after) {
  const change = after.map((value, i) => value - before[i]);
  const largest = change.reduce((max, value) => Math.max(max, Math.abs(value)), 0);
  if (largest === 0) return { difference: change.fill(0.5), magnification: 1 };
  return { difference: change.map((value) => 0.5 + value / (2 * largest)), magnification: 0.5 / largest };
}

/** Grey levels of a picture, rotated by its EXIF orientation, on a white background. */
async function greyLevels(picture) {
  let image;
  try {
    image = await createImageBitmap(picture, { colorSpaceConversion: "none" });
  } catch {
    throw new PageError(415, "This file is not a picture that this browser can read. Choose a PNG or JPEG.");
  }
  const { width, height } = image;
  const paper = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  paper.fillStyle = "#fff";
  paper.fillRect(0, 0, width, height);
  paper.drawImage(image, 0, 0);
  const { data } = paper.getImageData(0, 0, width, height);
  const level = (i) => (WEIGHTS.reduce((sum, weight, k) => sum + weight * data[4 * i + k], 0) + 32768) >> 16;
  return { levels: Uint8Array.from({ length: width * height }, (_, i) => level(i)), width };
}

/** Rows of `width` levels scaled to rows of `target` levels and transposed; two calls scale both sides. The filter is
    that of the service: bilinear, widened by the factor of the reduction. */
function scaleRows(levels, width, target) {
  const height = levels.length / width;
  const scale = width / target;
  const reach = Math.max(1, scale);
  const found = new Uint8ClampedArray(target * height);
  for (let column = 0; column < target; column++) {
    const centre = (column + 0.5) * scale;
    const first = Math.max(0, Math.floor(centre - reach + 0.5));
    const end = Math.min(width, Math.floor(centre + reach + 0.5));
    const weight = (_, i) => Math.max(0, 1 - Math.abs(first + i + 0.5 - centre) / reach);
    const weights = Array.from({ length: end - first }, weight);
    const total = weights.reduce((sum, part) => sum + part);
    for (let row = 0; row < height; row++) {
      let sum = 0;
      weights.forEach((part, i) => (sum += part * levels[row * width + first + i]));
      found[column * height + row] = sum / total;
    }
  }
  return found;
}
