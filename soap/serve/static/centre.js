// Centre a drawing like MNIST: the ink scaled into 20 x 20, its centre of mass in the middle of 28 x 28.

export const SIZE = 28;
const BOX = 20;
const INK_LEVEL = 32; // of 255; darker pixels count as empty

/** Grey levels [28 * 28] of grey levels [width * height]; null for an empty drawing. */
export function centred(levels, width, height) {
  const ink = extent(levels, width, height);
  if (ink === null) return null;
  const pixel = ink.side / BOX; // width of a target pixel in the drawing
  const found = new Uint8ClampedArray(SIZE * SIZE);
  for (let row = 0; row < SIZE; row++) {
    for (let column = 0; column < SIZE; column++) {
      const left = ink.x + (column - SIZE / 2) * pixel;
      const top = ink.y + (row - SIZE / 2) * pixel;
      found[row * SIZE + column] = mean(levels, width, height, left, top, pixel);
    }
  }
  return found;
}

/** The ink's centre of mass and the longer side of the box around it. */
function extent(levels, width, height) {
  let [mass, x, y, left, right, top, bottom] = [0, 0, 0, width, -1, height, -1];
  for (let row = 0; row < height; row++) {
    for (let column = 0; column < width; column++) {
      const level = levels[row * width + column];
      mass += level;
      x += level * (column + 0.5);
      y += level * (row + 0.5);
      if (level >= INK_LEVEL) {
        [left, right] = [Math.min(left, column), Math.max(right, column)];
        [top, bottom] = [Math.min(top, row), Math.max(bottom, row)];
      }
    }
  }
  if (right < 0) return null;
  return { x: x / mass, y: y / mass, side: Math.max(right - left, bottom - top) + 1 };
}

/** Mean level of the square at (left, top); pixels outside the drawing are 0. */
function mean(levels, width, height, left, top, side) {
  const samples = Math.max(1, Math.round(side));
  let sum = 0;
  for (let i = 0; i < samples; i++) {
    for (let j = 0; j < samples; j++) {
      const row = Math.floor(top + ((i + 0.5) * side) / samples);
      const column = Math.floor(left + ((j + 0.5) * side) / samples);
      if (row >= 0 && row < height && column >= 0 && column < width) sum += levels[row * width + column];
    }
  }
  return sum / samples ** 2;
}
