// The network in this browser: onnxruntime-web runs the exported parts, and the answers look like the service's.

import { Refusal } from "./api.js";
import { decode, encode, magnified } from "./levels.js";

const FOLDER = "static/vendor";
const PIECE = 2 ** 20; // bytes asked for at a time: a request may take only so long, however slow the line
const PARTS = ["classifier", "loss", "step"];
const TIE = 1e-5; // losses this close (relative) are ties: radii that never bind end at one point but for rounding
const networks = new Map(); // promises, by the model's name
let runtime = null; // a promise

/** What the network sees in a picture (a Blob). tell(done, total): bytes, while it is being loaded. */
export async function predict(model, { invert }, picture, signal, tell) {
  const network = await ready(model, tell);
  signal.throwIfAborted();
  const [point] = await looked(network, model, [await decode(picture, model.input_shape, invert)]);
  return { ...point, input: point.picture };
}

/** Algorithm 2 at every radius of the grid side by side, then the smallest radius of the least auxiliary loss. */
export async function purify(model, { eps_pfy }, picture, signal, tell) {
  const network = await ready(model, tell);
  const { grid, step_size, steps } = model.purification;
  const radii = eps_pfy === "min-aux" ? distinct(grid, steps * step_size) : [Number(eps_pfy)];
  const x = await decode(picture, model.input_shape);
  const x0 = joined(radii.map(() => x));
  const [gamma, eps] = [Float32Array.of(step_size), Float32Array.from(radii)];
  const trail = [x0];
  for (let step = 0; step < steps; step++) {
    signal.throwIfAborted();
    trail.push(await network.step({ x: trail.at(-1), x0, step_size: gamma, eps }));
  }
  const losses = await network.loss({ x: trail.at(-1) });
  const least = Math.min(...losses);
  const chosen = losses.findIndex((loss) => loss <= least + TIE * Math.abs(least));
  const points = trail.map((images) => images.slice(chosen * x.length, (chosen + 1) * x.length));
  const told = await looked(network, model, points);
  const { difference, magnification } = magnified(x, points.at(-1));
  const shown = { difference: await encode(difference, model.input_shape), magnification };
  return { ...told.at(-1), before: told[0], eps: radii[chosen], steps: told, ...shown };
}

/** The parts of a model, loaded once; where that fails, the next who asks tries again. */
export function ready(model, tell) {
  if (!networks.has(model.name)) {
    networks.set(model.name, load(model, tell));
    networks.get(model.name).catch(() => networks.delete(model.name));
  }
  return networks.get(model.name);
}

async function load({ name, input_shape, browser_bytes }, tell) {
  let done = 0;
  const count = (bytes) => tell((done += bytes), browser_bytes);
  count(0);
  try {
    runtime ??= start(count);
    runtime.catch(() => (runtime = null));
    const network = {};
    for (const part of PARTS) network[part] = await opened(await runtime, `${name}/${part}.onnx`, input_shape, count);
    return network;
  } catch (error) {
    if (error instanceof Refusal) throw error;
    const advice = "Switch “Run in this browser” off to ask the service.";
    throw new Refusal(0, `This browser cannot run the network (${error.message}). ${advice}`);
  }
}

async function start(count) {
  const ort = await import("./vendor/ort.wasm.min.mjs");
  ort.env.wasm.numThreads = 1; // more would take a page that is isolated from all others
  ort.env.wasm.wasmBinary = await read("ort-wasm-simd-threaded.wasm", count);
  return ort;
}

/** A function of a part's inputs by name; it gives its first output. */
async function opened({ InferenceSession, Tensor }, file, image, count) {
  const session = await InferenceSession.create(await read(file, count));
  return async (inputs) => {
    const tensor = ([key, values]) => [key, new Tensor("float32", values, shape(key, values, image))];
    const found = await session.run(Object.fromEntries(Object.entries(inputs).map(tensor)));
    return found[session.outputNames[0]].data;
  };
}

/** Of an input: one number, one a row, or images. */
function shape(key, values, image) {
  if (key === "step_size") return [];
  return key === "eps" ? [values.length] : [values.length / image.reduce((a, b) => a * b), ...image];
}

/** The bytes of a file, piece by piece. */
async function read(file, count) {
  const pieces = [];
  for (let got = 0, size = 1; got < size; ) {
    const piece = await ranged(`${FOLDER}/${file}`, got);
    pieces.push(piece.bytes);
    size = piece.size;
    got += piece.bytes.byteLength;
    count(piece.bytes.byteLength);
  }
  return new Uint8Array(await new Blob(pieces).arrayBuffer());
}

/** A piece of a file from a byte on, and the size of the whole. */
async function ranged(address, from) {
  let answer;
  try {
    answer = await fetch(address, { headers: { Range: `bytes=${from}-${from + PIECE - 1}` } });
  } catch {
    throw new Refusal(0, "The service does not answer. Is it still running?");
  }
  if (!answer.ok) {
    const advice = "Make it again with make browser, or switch “Run in this browser” off.";
    throw new Refusal(answer.status, `The service does not give ${address} (status ${answer.status}). ${advice}`);
  }
  const bytes = await answer.arrayBuffer();
  const size = answer.status === 206 ? Number(answer.headers.get("Content-Range").split("/")[1]) : bytes.byteLength;
  return { bytes, size };
}

/** Radii without those that end where a smaller one does, since no walk reaches so far. */
function distinct(grid, reach) {
  const far = grid.findIndex((radius) => radius >= reach * (1 - 1e-6));
  return far < 0 ? grid : grid.slice(0, far + 1);
}

function joined(images) {
  const all = new Float32Array(images.length * images[0].length);
  images.forEach((image, i) => all.set(image, i * image.length));
  return all;
}

/** What the network sees at each point, as the service tells it. */
async function looked({ classifier, loss }, { classes, input_shape }, points) {
  const x = joined(points);
  const [logits, losses] = [await classifier({ x }), await loss({ x })];
  return Promise.all(points.map(async (point, step) => {
    const probabilities = softmax([...logits.slice(step * classes.length, (step + 1) * classes.length)]);
    const probability = Math.max(...probabilities);
    const seen = probabilities.indexOf(probability);
    const picture = await encode(point, input_shape);
    return { step, class: seen, name: classes[seen], probability, probabilities, aux_loss: losses[step], picture };
  }));
}

/** To six digits, as the service has them. */
function softmax(logits) {
  const most = Math.max(...logits);
  const parts = logits.map((logit) => Math.exp(logit - most));
  const sum = parts.reduce((a, b) => a + b);
  return parts.map((part) => Number((part / sum).toFixed(6)));
}
