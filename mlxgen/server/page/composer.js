// The box in which messages are written.
//
// Owns the form at the bottom of the page. What a person writes is passed to `acts.send(message)`,
// which resolves to whether it was taken; what was not taken comes back into the box.

import { byId } from "./dom.js";

export class Composer {
  #form = byId("composer");
  #box = byId("message");
  #acts;

  /** `acts` has `send({text})`, `isRunning()` and `stop()`. */
  constructor(acts) {
    this.#acts = acts;
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#box.addEventListener("input", () => this.#fit());
    this.#box.addEventListener("keydown", (event) => this.#key(event));
    byId("stop").addEventListener("click", () => {
      acts.stop();
      this.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) acts.stop();
    });
  }

  focus() {
    this.#box.focus();
  }

  /** Show whether an answer is in progress. */
  update(running) {
    byId("send").hidden = running;
    byId("stop").hidden = !running;
  }

  async #send() {
    const text = this.#box.value;
    if (!text.trim()) return;
    this.#write("");
    if (!(await this.#acts.send({ text })) && !this.#box.value) this.#write(text);
  }

  #write(text) {
    this.#box.value = text;
    this.#fit();
  }

  /** As high as the text. */
  #fit() {
    this.#box.style.setProperty("height", "auto");
    this.#box.style.setProperty("height", `${this.#box.scrollHeight + 2}px`);
  }

  #key(event) {
    // While an input method composes a character, Enter belongs to it.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!this.#acts.isRunning()) this.#form.requestSubmit();
  }
}
