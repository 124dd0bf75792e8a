// Steps from a message to its other versions.

import { siblingsOf } from "./conversation.js";
import { button, el, setText } from "./dom.js";
import { icon } from "./icons.js";

/** The place of a node among its siblings, with steps to the next ones. */
export class Walker {
  #node;
  #conversation;
  #place = el("span", { class: "small" });

  constructor(node, conversation, acts, what) {
    this.#node = node;
    this.#conversation = conversation;
    const step = (by) => () => acts.walk(node, by);
    this.element = el("span", { class: "walker", role: "group", "aria-label": `Other versions of this ${what}` },
      button([icon("left")], step(-1), { "aria-label": "Previous version", "data-act": "back" }),
      this.#place,
      button([icon("right")], step(1), { "aria-label": "Next version", "data-act": "forward" }));
  }

  update() {
    const siblings = siblingsOf(this.#conversation, this.#node);
    this.element.hidden = siblings.length < 2;
    setText(this.#place, `${siblings.indexOf(this.#node) + 1} of ${siblings.length}`);
  }
}
