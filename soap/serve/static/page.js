// The page: what is chosen goes to the service, or to the network in this browser; what it answers is shown.

import { Refusal, blobOf, models, post, useToken } from "./api.js";
import * as browser from "./browser.js";
import { Pad } from "./draw.js";
import { byId } from "./elements.js";
import { acceptFiles, isLight } from "./files.js";
import { fillGallery, readGallery } from "./gallery.js";
import { readFigures, tellLimits } from "./limits.js";
import { Settings, drawable } from "./settings.js";
import { Stage } from "./stage.js";
import { Walk } from "./walk.js";
import * as words from "./words.js";

const names = ["input", "attacked", "purified"];
const stages = Object.fromEntries(names.map((name) => [name, new Stage(byId(`stage-${name}`))]));
const walk = new Walk((kind, point) => stages[kind].show(point, settings.model.classes, right()));
const pad = new Pad(byId("pad"), takeDrawing);
let settings, figures, firstExample;
let input = null; // { picture: Blob, label: the true class or null, seen: the answer, shape: of the model }
let attacked = null; // the answer
let purified = null;
let running = new AbortController();
let last = Promise.resolve(); // the end of what is under way or waits
let round = 0; // of `instead`

const right = () => input.label ?? input.seen.class;
const inUnits = (change) => settings.inUnits(change);
const say = (sentence) => (byId("said").textContent = sentence);

/** Run `work(signal)` in place of whatever is under way or waits. */
function instead(work) {
  round += 1;
  running.abort();
  return (last = run(work));
}

/** Run `work(signal)` after what is under way, so that a picture just drawn is the one attacked. */
function next(work) {
  const own = round;
  walk.finish();
  return (last = last.then(() => own === round && run(work)));
}

/** Run `work(signal)`, and tell what goes wrong. */
async function run(work) {
  const own = (running = new AbortController());
  walk.finish();
  byId("trouble").textContent = "";
  document.body.setAttribute("aria-busy", "true");
  try {
    await work(own.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    byId("trouble").textContent = error instanceof Refusal ? error.message : `This page failed: ${error.message}.`;
    if (error.status === 401) askForToken();
  } finally {
    if (running === own) document.body.removeAttribute("aria-busy");
  }
}

// --- Where it is computed ---

const here = () => byId("in-browser").checked;
const tell = (done, most) => here() && say(words.ofLoading(done, most));

/** predict or purify, by the network in this browser or by the service. */
async function ask(route, asked, picture, signal) {
  const { model } = settings;
  if (!here()) return post(route, { model: model.name, ...asked, pictures: true }, picture, signal);
  const answer = await browser[route](model, asked, picture, signal, tell);
  signal.throwIfAborted(); // a newer picture may be under way: this one's answer must not cover it
  return answer;
}

function changePlace() {
  next(async () => {
    if (here()) await browser.ready(settings.model, tell);
    say(words.ofPlace(here()));
  });
}

// --- The picture ---

/** Take a picture: forget what was made of the last one, and ask what the network sees. */
async function take(picture, label, signal, invert = false) {
  const { model } = settings;
  const answer = await ask("predict", { invert }, picture, signal);
  const seen = { ...answer, picture: answer.input };
  input = { picture: blobOf(answer.input), label, seen, shape: String(model.input_shape) };
  forgetWalks();
  stages.input.show(seen, model.classes, right());
  say(words.ofInput(answer, label, model.classes));
}

function takeDrawing() {
  forgetFile();
  instead(async (signal) => {
    const digit = await pad.digit();
    if (digit) await take(digit, null, signal);
  });
}

function takeFile(file) {
  pad.clear();
  const grey = settings.model.input_shape[0] === 1;
  byId("invert").checked = false;
  byId("inversion").hidden = !grey;
  byId("invert").onchange = () => instead((signal) => take(file, null, signal, byId("invert").checked));
  instead(async (signal) => {
    await take(file, null, signal);
    if (grey && (await isLight(input.picture))) {
      byId("invert").checked = true;
      await take(file, null, signal, true);
    }
  });
}

/** Take an example; `entry` is that of the gallery, or null. */
function takeExample(fetched, label, entry) {
  if (entry) {
    settings.load(entry);
    followModel();
    byId("results-title").scrollIntoView();
  }
  pad.clear();
  forgetFile();
  return instead(async (signal) => take(await fetched(), label, signal));
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
  if (input === null) throw new Refusal(0, "There is no picture yet. Draw one, or choose an example or a file.");
  return input.picture;
}

async function attack(signal) {
  const asked = { model: settings.model.name, ...settings.attack, label: input?.label ?? null, pictures: true };
  const answer = await post("attack", asked, chosen(), signal); // the browser has no gradients of the classifier
  forgetWalks();
  attacked = answer;
  stages.attacked.showChange(answer.difference, answer.magnification, "what the attack changed");
  await play();
  if (!signal.aborted) say(words.ofAttack(answer, inUnits));
}

async function purify(signal) {
  const picture = attacked ? blobOf(attacked.image) : chosen();
  const answer = await ask("purify", { eps_pfy: settings.radius }, picture, signal);
  purified = answer;
  stages.purified.showChange(answer.difference, answer.magnification, "what purification changed");
  await play();
  if (!signal.aborted) say(words.ofPurification(answer, right(), settings.model.classes, inUnits));
}

async function play() {
  const phases = [];
  if (attacked) phases.push({ name: "Attack", kind: "attacked", points: attacked.steps });
  if (purified) phases.push({ name: "Purification", kind: "purified", points: purified.steps });
  walk.set(phases, right());
  await walk.play(phases.length - 1);
}

// --- The model, the token, the beginning ---

/** Follow the model; whether the picture was in this browser alone, and this model would have it elsewhere. */
function followModel() {
  const { model } = settings;
  const leaves = here() && model.browser_bytes === null;
  byId("browser").hidden = model.browser_bytes === null;
  byId("browser-size").textContent = words.megabytes(model.browser_bytes ?? 0);
  if (leaves) byId("in-browser").checked = false;
  byId("drawing").hidden = !drawable(model);
  byId("file-title").textContent = `${drawable(model) ? "or drop" : "Drop"} a PNG or JPEG here`;
  byId("do-purify").disabled = !model.purifiable;
  tellLimits(figures, model);
  return leaves;
}

function changeModel() {
  const leaves = followModel();
  forgetFile();
  if (leaves) {
    instead(async () => forgetPicture("This model runs in the service alone: what you choose now is sent there."));
  } else if (input?.shape === String(settings.model.input_shape)) {
    instead((signal) => take(input.picture, input.label, signal));
  } else {
    forgetPicture("Choose a picture.");
    if (drawable(settings.model)) firstExample();
  }
}

function forgetPicture(sentence) {
  input = null;
  stages.input.clear();
  forgetWalks();
  say(sentence);
}

function askForToken() {
  byId("token-form").hidden = false;
  byId("token").focus();
}

async function start() {
  const [served, worst, gallery] = await Promise.all([models(), readFigures(), readGallery()]);
  figures = worst;
  settings = new Settings(served, changeModel);
  firstExample = fillGallery(gallery, served.map(({ name }) => name), takeExample);
  followModel();
  forgetWalks();
  say("Choose a picture.");
  byId("bench").inert = false;
  if (drawable(settings.model)) firstExample();
}

byId("in-browser").addEventListener("change", changePlace);
byId("clear").addEventListener("click", () => pad.clear());
byId("do-attack").addEventListener("click", () => next(attack));
byId("do-purify").addEventListener("click", () => next(purify));
byId("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useToken(byId("token").value);
  byId("token-form").hidden = true;
  instead(start);
});
acceptFiles(takeFile);
instead(start);
