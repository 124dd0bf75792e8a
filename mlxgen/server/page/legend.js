// What the tints and marks of tokens mean: always there while tokens are shown.
//
// All tints are in it, and those marks that the shown answers have.

import { el } from "./dom.js";
import { LEVELS } from "./records.js";
import { MARKS } from "./token-element.js";

const TICKS = [0.9999, 0.99, 0.9, 0.5, 0.1, 0.01, 0.001];

export class Legend {
  #marks;
  #key = null;

  constructor(element) {
    const steps = LEVELS.map((least, level) =>
      el("span", { class: `token level-${level}` }, TICKS.includes(least) ? `${+(least * 100).toFixed(2)}` : ""));
    this.#marks = Object.entries(MARKS).map(([name, text]) =>
      el("li", { "data-mark": name }, el("span", { class: `token ${name}${name.startsWith("by-") ? " drafted" : ""}`, "aria-hidden": "true" }, "abc"), ` ${text}`));
    element.setAttribute("role", "group");
    element.setAttribute("aria-label", "What the colors and marks of tokens mean");
    element.append(el("div", {},
      el("p", { class: "unseen" }, "The darker or brighter a token than the page, the less likely the model found it; "
        + "lines below say the same. Probabilities are the model's own, before temperature, truncation and the answer format."),
      el("p", { class: "scale", "aria-hidden": "true", title: "The model's own probability of a token, before temperature, truncation and the answer format" },
        el("span", {}, "likely, %"), el("span", { class: "steps" }, steps), el("span", {}, "unlikely")),
      el("ul", { role: "list" }, this.#marks)));
  }

  /** Show these marks, names of `MARKS`. */
  update(names) {
    const key = [...names].sort().join();
    if (key === this.#key) return;
    this.#key = key;
    for (const mark of this.#marks) mark.hidden = !names.has(mark.dataset.mark);
  }
}
