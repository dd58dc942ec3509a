// Files chosen or dropped anywhere on the page.

import { byId } from "./elements.js";

/** Call onFile(file) for each file. */
export function acceptFiles(onFile) {
  const zone = byId("picture");
  byId("file").addEventListener("change", ({ target }) => target.files[0] && onFile(target.files[0]));
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    zone.classList.add("over");
  });
  document.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget ?? zone.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("over");
    if (event.dataTransfer.files[0]) onFile(event.dataTransfer.files[0]);
  });
}

/** Whether the border of a picture is light, like paper. */
export async function isLight(picture) {
  const image = await createImageBitmap(picture);
  const { width, height } = image;
  const paper = new OffscreenCanvas(width, height).getContext("2d");
  paper.drawImage(image, 0, 0);
  const { data } = paper.getImageData(0, 0, width, height);
  let [sum, count] = [0, 0];
  for (let i = 0; i < width * height; i++) {
    const [row, column] = [Math.floor(i / width), i % width];
    if (row % (height - 1) && column % (width - 1)) continue;
    sum += data[4 * i];
    count += 1;
  }
  return sum / count > 127;
}
