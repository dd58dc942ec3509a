// The page: runs the chosen picture and settings on the service, or in this browser, and shows the results.

import { PageError, blobOf, models, post, setToken } from "./api.js";
import * as browser from "./browser.js";
import { Pad } from "./draw.js";
import { byId } from "./elements.js";
import { acceptFiles, isLight } from "./files.js";
import { fillGallery, readGallery } from "./gallery.js";
import { readWorstCases, showWorstCase } from "./limits.js";
import { Settings, drawable } from "./settings.js";
import { Stage } from "./stage.js";
import { Walk } from "./walk.js";
import * as words from "./words.js";

const names = ["input", "attacked", "purified"];
const stages = Object.fromEntries(names.map((name) => [name, new Stage(byId(`stage-${name}`))]));
const walk = new Walk((kind, point) => stages[kind].show(point, settings.model.classes, expected()));
const pad = new Pad(byId("pad"), takeDrawing);
let settings, worstCases, firstExample;
let input = null; // { picture: Blob, label: the true class or null, seen: prediction, shape: of the model's input }
let attacked = null; // the response to the last attack
let purified = null; // the response to the last purification
let running = new AbortController();
let last = Promise.resolve(); // resolves after all running and waiting work
let round = 0; // number of calls of `replaceWork`

const expected = () => input.label ?? input.seen.class;
const inUnits = (change) => settings.inUnits(change);
const showStatus = (sentence) => (byId("status").textContent = sentence);

/** Run `work(signal)` instead of all running and waiting work. */
function replaceWork(work) {
  round += 1;
  running.abort();
  return (last = run(work));
}

/** Run `work(signal)` after the running work, so that an attack uses the picture just drawn. */
function queueWork(work) {
  const own = round;
  walk.finish();
  return (last = last.then(() => own === round && run(work)));
}

/** Run `work(signal)` and show its error, if any. */
async function run(work) {
  const own = (running = new AbortController());
  walk.finish();
  byId("trouble").textContent = "";
  document.body.setAttribute("aria-busy", "true");
  try {
    await work(own.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("trouble").textContent = error instanceof PageError ? error.message : `This page failed: ${error.message}.`;
    if (error.status === 401) askForToken();
  } finally {
    if (running === own) document.body.removeAttribute("aria-busy");
  }
}

// --- Service or browser ---

const inBrowser = () => byId("in-browser").checked;
const showLoading = (done, total) => inBrowser() && showStatus(words.ofLoading(done, total));

/** The response of predict or purify, computed in this browser or by the service. */
async function compute(route, query, picture, signal) {
  const { model } = settings;
  if (!inBrowser()) return post(route, { model: model.name, ...query, pictures: true }, picture, signal);
  const response = await browser[route](model, query, picture, signal, showLoading);
  signal.throwIfAborted(); // newer work may be running: its result must not be overwritten
  return response;
}

function changePlace() {
  queueWork(async () => {
    if (inBrowser()) await browser.loadNetwork(settings.model, showLoading);
    showStatus(words.ofPlace(inBrowser()));
  });
}

// --- The picture ---

/** Classify a picture and show it as the input; remove the results of the previous one. */
async function take(picture, label, signal, invert = false) {
  const { model } = settings;
  const response = await compute("predict", { invert }, picture, signal);
  const seen = { ...response, picture: response.input };
  input = { picture: blobOf(response.input), label, seen, shape: String(model.input_shape) };
  forgetWalks();
  stages.input.show(seen, model.classes, expected());
  showStatus(words.ofInput(response, label, model.classes));
}

function takeDrawing() {
  forgetFile();
  replaceWork(async (signal) => {
    const digit = await pad.digit();
    if (digit) await take(digit, null, signal);
  });
}

function takeFile(file) {
  pad.clear();
  const grey = settings.model.input_shape[0] === 1;
  byId("invert").checked = false;
  byId("inversion").hidden = !grey;
  byId("invert").onchange = () => replaceWork((signal) => take(file, null, signal, byId("invert").checked));
  replaceWork(async (signal) => {
    await take(file, null, signal);
    if (grey && (await isLight(input.picture))) {
      byId("invert").checked = true;
      await take(file, null, signal, true);
    }
  });
}

/** Take an example; `entry` is its entry of the gallery, or null for a digit. */
function takeExample(fetched, label, entry) {
  if (entry) {
    settings.load(entry);
    showModel();
    byId("results-title").scrollIntoView();
  }
  pad.clear();
  forgetFile();
  return replaceWork(async (signal) => take(await fetched(), label, signal));
}

function forgetFile() {
  byId("file").value = "";
  byId("inversion").hidden = true;
}

function forgetWalks() {
  attacked = purified = null;
  stages.attacked.clear();
  stages.purified.clear(settings.model.purifiable ? undefined : "this model cannot purify");
  walk.set([], null);
}

// --- Attack and purification ---

function chosen() {
  if (input === null) throw new PageError(0, "There is no picture yet. Draw one, or choose an example or a file.");
  return input.picture;
}

async function attack(signal) {
  const query = { model: settings.model.name, ...settings.attack, label: input?.label ?? null, pictures: true };
  const response = await post("attack", query, chosen(), signal); // the browser has no gradients of the classifier
  forgetWalks();
  attacked = response;
  stages.attacked.showChange(response.difference, response.magnification, "what the attack changed");
  await play();
  if (!signal.aborted) showStatus(words.ofAttack(response, inUnits));
}

async function purify(signal) {
  const picture = attacked ? blobOf(attacked.image) : chosen();
  const response = await compute("purify", { eps_pfy: settings.radius }, picture, signal);
  purified = response;
  stages.purified.showChange(response.difference, response.magnification, "what purification changed");
  await play();
  if (!signal.aborted) showStatus(words.ofPurification(response, expected(), settings.model.classes, inUnits));
}

async function play() {
  const phases = [];
  if (attacked) phases.push({ name: "Attack", kind: "attacked", points: attacked.steps });
  if (purified) phases.push({ name: "Purification", kind: "purified", points: purified.steps });
  walk.set(phases, expected());
  await walk.play(phases.length - 1);
}

// --- Model, token, start ---

/** Adapt the page to the model. Return whether pictures stayed in this browser, but this model runs in the service. */
function showModel() {
  const { model } = settings;
  const leavesBrowser = inBrowser() && model.browser_bytes === null;
  byId("browser").hidden = model.browser_bytes === null;
  byId("browser-size").textContent = words.megabytes(model.browser_bytes ?? 0);
  if (leavesBrowser) byId("in-browser").checked = false;
  byId("drawing").hidden = !drawable(model);
  byId("file-title").textContent = `${drawable(model) ? "or drop" : "Drop"} a PNG or JPEG here`;
  byId("do-purify").disabled = !model.purifiable;
  showWorstCase(worstCases, model);
  return leavesBrowser;
}

function changeModel() {
  const leavesBrowser = showModel();
  forgetFile();
  if (leavesBrowser) {
    replaceWork(async () => forgetPicture("This model runs in the service alone: what you choose now is sent there."));
  } else if (input?.shape === String(settings.model.input_shape)) {
    replaceWork((signal) => take(input.picture, input.label, signal));
  } else {
    forgetPicture("Choose a picture.");
    if (drawable(settings.model)) firstExample();
  }
}

function forgetPicture(sentence) {
  input = null;
  stages.input.clear();
  forgetWalks();
  showStatus(sentence);
}

function askForToken() {
  byId("token-form").hidden = false;
  byId("token").focus();
}

async function start() {
  const [served, worst, gallery] = await Promise.all([models(), readWorstCases(), readGallery()]);
  worstCases = worst;
  settings = new Settings(served, changeModel);
  firstExample = fillGallery(gallery, served.map(({ name }) => name), takeExample);
  showModel();
  forgetWalks();
  showStatus("Choose a picture.");
  byId("bench").inert = false;
  if (drawable(settings.model)) firstExample();
}

byId("in-browser").addEventListener("change", changePlace);
byId("clear").addEventListener("click", () => pad.clear());
byId("do-attack").addEventListener("click", () => queueWork(attack));
byId("do-purify").addEventListener("click", () => queueWork(purify));
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setToken(byId("token").value);
  byId("token-form").hidden = true;
  replaceWork(start);
});
acceptFiles(takeFile);
replaceWork(start);
