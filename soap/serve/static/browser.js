// Runs the exported network with onnxruntime-web; the results have the fields of the service's responses.

import { PageError } from "./api.js";
import { decode, encode, magnified } from "./levels.js";

const FOLDER = "static/vendor";
const RANGE_BYTES = 2 ** 20; // bytes of one request: on a slow line a larger one would exceed the request timeout
const PARTS = ["classifier", "loss", "step"];
const LOSS_TOLERANCE = 1e-5; // relative; radii that never bind end at the same point up to rounding
const networks = new Map(); // promise by model name
let runtime = null; // a promise of onnxruntime-web
let loads = 0;

/** The prediction for a picture (a Blob). onProgress(done, total): bytes loaded. */
export async function predict(model, { invert }, picture, signal, onProgress) {
  const network = await loadNetwork(model, onProgress);
  signal.throwIfAborted();
  const [point] = await predictions(network, model, [await decode(picture, model.input_shape, invert)]);
  return { ...point, input: point.picture };
}

/** Algorithm 2 at every radius of the grid in one batch, then the smallest radius with the lowest auxiliary loss. */
export async function purify(model, { eps_pfy }, picture, signal, onProgress) {
  const network = await loadNetwork(model, onProgress);
  const { grid, step_size, steps } = model.purification;
  const radii = eps_pfy === "min-aux" ? distinctRadii(grid, steps * step_size) : [Number(eps_pfy)];
  const x = await decode(picture, model.input_shape);
  const x0 = concatenated(radii.map(() => x));
  const [gamma, eps] = [Float32Array.of(step_size), Float32Array.from(radii)];
  const iterates = [x0];
  for (let step = 0; step < steps; step++) {
    signal.throwIfAborted();
    iterates.push(await network.step({ x: iterates.at(-1), x0, step_size: gamma, eps }));
  }
  const losses = await network.loss({ x: iterates.at(-1) });
  const lowest = Math.min(...losses);
  const chosen = losses.findIndex((loss) => loss <= lowest + LOSS_TOLERANCE * Math.abs(lowest));
  const points = iterates.map((images) => images.slice(chosen * x.length, (chosen + 1) * x.length));
  const predicted = await predictions(network, model, points);
  const { difference, magnification } = magnified(x, points.at(-1));
  const change = { difference: await encode(difference, model.input_shape), magnification };
  return { ...predicted.at(-1), before: predicted[0], eps: radii[chosen], steps: predicted, ...change };
}

/** The parts of a model, loaded once; after a failure the next call tries again. */
export function loadNetwork(model, onProgress) {
  if (!networks.has(model.name)) {
    networks.set(model.name, readNetwork(model, onProgress));
    networks.get(model.name).catch(() => networks.delete(model.name));
  }
  return networks.get(model.name);
}

async function readNetwork({ name, input_shape, browser_bytes }, onProgress) {
  let done = 0;
  const count = (bytes) => onProgress((done += bytes), browser_bytes);
  count(0);
  try {
    runtime ??= loadRuntime(count);
    runtime.catch(() => (runtime = null));
    const network = {};
    for (const part of PARTS) network[part] = await openPart(await runtime, `${name}/${part}.onnx`, input_shape, count);
    return network;
  } catch (error) {
    if (error instanceof PageError) throw error;
    const advice = "Switch “Run in this browser” off to use the service.";
    throw new PageError(0, `This browser cannot run the network (${error.message}). ${advice}`);
  }
}

async function loadRuntime(count) {
  const again = loads++ ? `?again=${loads}` : ""; // some browsers keep a failed import under its address
  const ort = await import("./vendor/ort.wasm.min.mjs" + again);
  ort.env.wasm.numThreads = 1; // more threads need a cross-origin isolated page
  ort.env.wasm.wasmBinary = await read("ort-wasm-simd-threaded.wasm", count);
  return ort;
}

/** A function that runs a part on its inputs by name and returns its first output. */
async function openPart({ InferenceSession, Tensor }, file, image, count) {
  const session = await InferenceSession.create(await read(file, count));
  return async (inputs) => {
    const tensor = ([key, values]) => [key, new Tensor("float32", values, shape(key, values, image))];
    const found = await session.run(Object.fromEntries(Object.entries(inputs).map(tensor)));
    return found[session.outputNames[0]].data;
  };
}

/** The shape of an input: a scalar, one value per image, or images. */
function shape(key, values, image) {
  if (key === "step_size") return [];
  return key === "eps" ? [values.length] : [values.length / image.reduce((a, b) => a * b), ...image];
}

/** The bytes of a file, read in ranges. */
async function read(file, count) {
  const ranges = [];
  for (let done = 0, size = 1; done < size; ) {
    const range = await readRange(`${FOLDER}/${file}`, done);
    ranges.push(range.bytes);
    size = range.size;
    done += range.bytes.byteLength;
    count(range.bytes.byteLength);
  }
  return new Uint8Array(await new Blob(ranges).arrayBuffer());
}

/** At most RANGE_BYTES of a file from byte `from`, and the size of the whole file. */
async function readRange(address, from) {
  let response;
  try {
    response = await fetch(address, { headers: { Range: `bytes=${from}-${from + RANGE_BYTES - 1}` } });
  } catch {
    throw new PageError(0, "The service does not respond. Is it still running?");
  }
  if (!response.ok) {
    const advice = "Run `make browser` again, or switch “Run in this browser” off.";
    throw new PageError(response.status, `${address} cannot be loaded (status ${response.status}). ${advice}`);
  }
  const bytes = await response.arrayBuffer();
  const range = response.status === 206 ? response.headers.get("Content-Range") : `/${bytes.byteLength}`;
  return { bytes, size: Number(range.split("/")[1]) };
}

/** The radii up to the first of at least `reach`, the largest change that all steps make; larger ones change nothing. */
function distinctRadii(grid, reach) {
  const unreached = grid.findIndex((radius) => radius >= reach * (1 - 1e-6));
  return unreached < 0 ? grid : grid.slice(0, unreached + 1);
}

function concatenated(images) {
  const all = new Float32Array(images.length * images[0].length);
  images.forEach((image, i) => all.set(image, i * image.length));
  return all;
}

/** The prediction at each point, with the fields of a step in the service's response. */
async function predictions({ classifier, loss }, { classes, input_shape }, points) {
  const x = concatenated(points);
  const [logits, losses] = [await classifier({ x }), await loss({ x })];
  return Promise.all(points.map(async (point, step) => {
    const probabilities = softmax([...logits.slice(step * classes.length, (step + 1) * classes.length)]);
    const probability = Math.max(...probabilities);
    const label = probabilities.indexOf(probability);
    const picture = await encode(point, input_shape);
    return { step, class: label, name: classes[label], probability, probabilities, aux_loss: losses[step], picture };
  }));
}

/** Probabilities rounded to six digits, as the service rounds them. */
function softmax(logits) {
  const largest = Math.max(...logits);
  const parts = logits.map((logit) => Math.exp(logit - largest));
  const sum = parts.reduce((a, b) => a + b);
  return parts.map((part) => Number((part / sum).toFixed(6)));
}
