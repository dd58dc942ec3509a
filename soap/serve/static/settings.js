// Model, attack, strength and radius; the defaults are the paper's values.

import { byId, make, significant } from "./elements.js";

const ATTACKS = { pgd: "PGD: many small steps", fgsm: "FGSM: one step", df: "DeepFool: as small a change as it finds" };
const LEVELS = 255;

export class Settings {
  constructor(models, onModel) {
    this.models = models;
    const names = models.map(({ name }) => make("option", { value: name }, name));
    byId("model").replaceChildren(...names);
    byId("model").addEventListener("change", () => {
      this.#showModel();
      onModel();
    });
    byId("attack").addEventListener("change", () => this.#showAttack());
    byId("strength").addEventListener("input", () => (byId("strength-number").value = byId("strength").value));
    byId("strength-number").addEventListener("input", () => (byId("strength").value = byId("strength-number").value));
    const pure = models.filter((model) => model.purifiable);
    const first = pure.find(drawable) ?? pure[0];
    byId("model").value = (first ?? models[0]).name;
    this.#showModel();
  }

  get model() {
    return this.models.find(({ name }) => name === byId("model").value);
  }

  get attack() {
    const strength = byId("strength-number");
    const eps = strength.disabled || strength.value === "" ? null : Number(strength.value) / this.unit;
    return { attack: byId("attack").value, eps };
  }

  get radius() {
    return byId("radius").value;
  }

  /** Apply the settings of an entry of the gallery. */
  load({ model, attack, eps, eps_pfy }) {
    byId("model").value = model;
    this.#showModel();
    byId("attack").value = attack;
    this.#showAttack();
    if (eps !== null) this.#setStrength(eps);
    byId("radius").value = String(eps_pfy);
  }

  #showModel() {
    const { attacks, purification, task, purifiable } = this.model;
    const chosen = byId("attack").value;
    const known = Object.keys(ATTACKS).filter((name) => name in attacks);
    byId("attack").replaceChildren(...known.map((name) => make("option", { value: name }, ATTACKS[name])));
    if (known.includes(chosen)) byId("attack").value = chosen;
    const noTask = "It has no auxiliary task: it can be attacked, not purified.";
    byId("model-hint").textContent = purifiable ? `Its auxiliary task: ${task}.` : noTask;
    const grid = (purification?.grid ?? []).filter((eps) => eps > 0);
    const options = grid.map((eps) => make("option", { value: String(eps) }, this.inUnits(eps)));
    byId("radius").replaceChildren(make("option", { value: "min-aux" }, "chosen for each picture"), ...options);
    byId("radius").disabled = !purifiable;
    this.#showAttack();
  }

  #showAttack() {
    const { eps } = this.model.attacks[byId("attack").value];
    const none = eps === undefined;
    for (const id of ["strength", "strength-number"]) byId(id).disabled = none;
    byId("strength-hint").textContent = none
      ? "This attack finds its own strength."
      : `The largest change of a pixel; white is ${this.unit}. The paper uses ${this.inUnits(eps)}.`;
    byId("strength-unit").textContent = this.unit === 1 ? "" : `/ ${this.unit}`;
    if (!none) this.#setStrength(eps);
  }

  /** Small strengths, those of colour pictures, are shown in 255ths. */
  get unit() {
    return this.model.attacks.pgd.eps < 0.1 ? LEVELS : 1;
  }

  /** A change of a pixel, as text. */
  inUnits(eps) {
    return this.unit === 1 ? significant(eps) : `${significant(eps * this.unit)} / ${this.unit}`;
  }

  #setStrength(eps) {
    const range = this.unit === 1 ? { min: 0, max: 0.5, step: 0.01 } : { min: 0, max: 32, step: 1 };
    Object.assign(byId("strength"), range);
    Object.assign(byId("strength-number"), { ...range, max: this.unit });
    for (const id of ["strength", "strength-number"]) byId(id).value = Number((eps * this.unit).toFixed(4));
  }
}

/** Whether the model classifies drawn digits. */
export function drawable({ data, input_shape }) {
  return data.startsWith("mnist") && input_shape.join() === "1,28,28";
}
