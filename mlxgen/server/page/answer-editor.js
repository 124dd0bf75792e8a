// The editor of an answer's text.
//
// What it does is decided by the server, so it stays open until that is done: a refusal is shown, with
// the cursor where the text is not allowed.

import { button, el } from "./dom.js";

export class AnswerEditor {
  #box;
  #problem = el("p", { class: "problem small", role: "alert" });
  #buttons;
  #start; // where the cursor is at first
  #acts;

  /** `acts` has `save(text)`, `goOn(text)` and `again(text)`, which resolve to nothing or to {refused, at}, and `close()`. */
  constructor(text, { formed, calls, at = null }, acts) {
    this.#acts = acts;
    this.#box = el("textarea", {
      "aria-label": "Edited answer", class: formed ? "mono" : null, spellcheck: formed ? "false" : null,
      rows: Math.min(20, text.split("\n").length + Math.floor(text.length / 80) + 1), // where the style cannot size it
    });
    this.#box.value = text;
    const upTo = () => this.#box.value.slice(0, this.#box.selectionStart);
    this.#buttons = el("div", { class: "row end" },
      button("Cancel", () => acts.close()),
      button("Generate again from the cursor", () => this.#do("again", upTo()), { class: "again", title: "Keep what is before the cursor, and draw the rest anew" }),
      button("Save", () => this.#do("save", this.#box.value), { title: "Later turns see this text" }),
      el("button", { type: "submit", class: "main", title: "Let the model continue after this text" }, "Go on from here"));
    this.element = el("form", {
      class: "editor",
      submit: (event) => {
        event.preventDefault();
        this.#do("goOn", this.#box.value);
      },
      keydown: (event) => this.#key(event),
    }, this.#box, calls ? el("p", { class: "quiet small" }, "The edited version has no calls.") : null, this.#problem, this.#buttons);
    this.#start = at ?? text.length;
  }

  focus() {
    this.#goTo(this.#start);
  }

  /** Select from `start` on, and bring that into view, which browsers do only for what has no focus yet. */
  #goTo(start, end = start) {
    this.#box.blur();
    this.#box.setSelectionRange(start, end);
    this.#box.focus();
  }

  #key(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.element.requestSubmit();
    } else if (event.key === "Escape") {
      event.stopPropagation();
      this.#acts.close();
    }
  }

  async #do(what, text) {
    this.#problem.textContent = "";
    for (const one of this.#buttons.children) one.disabled = true;
    const refusal = await this.#acts[what](text);
    for (const one of this.#buttons.children) one.disabled = false;
    if (!refusal) return;
    this.#problem.textContent = refusal.refused;
    if (refusal.at === undefined) this.#box.focus();
    else this.#goTo(refusal.at, this.#box.value.length);
  }
}
