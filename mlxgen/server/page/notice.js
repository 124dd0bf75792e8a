// A sentence about something that was done, with a button to undo it. It goes away by itself, but not
// under the mouse or with the focus in it.

import { button, el } from "./dom.js";
import { icon } from "./icons.js";

const STAYS = 12_000; // milliseconds

export class Notice {
  #place;
  #timer = 0;
  #gone = () => {};

  constructor(place) {
    this.#place = place;
    for (const event of ["focusout", "pointerleave"]) place.addEventListener(event, () => this.#wait());
  }

  /** Say something. `action` is [label, function] or null; `gone()` is called if it was not taken. */
  say(sentence, action = null, gone = () => {}) {
    this.close();
    this.#gone = gone;
    const act = action && button(action[0], () => {
      this.#gone = () => {};
      this.close();
      action[1]();
    });
    this.#place.replaceChildren(el("p", {}, sentence),
      ...(act ? [act] : []), button([icon("close")], () => this.close(), { class: "icon", "aria-label": "Dismiss" }));
    act?.focus();
    this.#wait();
  }

  close() {
    clearTimeout(this.#timer);
    this.#place.replaceChildren();
    this.#gone();
    this.#gone = () => {};
  }

  #wait() {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => (this.#place.matches(":hover, :focus-within") ? this.#wait() : this.close()), STAYS);
  }
}
