// The messages of a conversation on the page: what was asked, and what tools returned.
//
// Each view has an `element` and `update()`. What a person does is passed on to `acts` of app.js.

import { AnswerView } from "./answer-view.js";
import { button, el } from "./dom.js";
import { iconButton } from "./icons.js";
import { Walker } from "./walker.js";

/** The view of any node. */
export function viewOf(node, conversation, acts) {
  if (node.role === "assistant") return new AnswerView(node, conversation, acts);
  return node.role === "user" ? new UserView(node, conversation, acts) : new ToolView(node);
}

class UserView {
  #node;
  #acts;
  #walker;
  #text;
  #row;

  constructor(node, conversation, acts) {
    this.#node = node;
    this.#acts = acts;
    this.#walker = new Walker(node, conversation, acts, "message");
    this.#text = el("div", { class: "text", dir: "auto" }, node.text);
    this.#row = el("div", { class: "actions" }, this.#walker.element,
      iconButton("edit", "Edit", () => this.#edit(), { "data-act": "edit" }));
    this.element = el("li", { class: "message user", "data-node": node.id },
      el("article", { "aria-label": "You" }, this.#text, this.#row));
  }

  update() {
    this.#walker.update();
  }

  #edit() {
    const box = el("textarea", { "aria-label": "Edited message", rows: Math.min(12, this.#node.text.split("\n").length + 1) });
    box.value = this.#node.text;
    const close = () => {
      form.replaceWith(this.#text);
      this.#row.hidden = false;
      this.#row.querySelector('[data-act="edit"]').focus();
    };
    const form = el("form", {
      submit: (event) => {
        event.preventDefault();
        close();
        if (box.value.trim()) this.#acts.edit(this.#node, box.value);
      },
      keydown: (event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        close();
      },
    }, box, el("div", { class: "row end" }, button("Cancel", close), el("button", { type: "submit", class: "main" }, "Ask this instead")));
    this.#row.hidden = true;
    this.#text.replaceWith(form);
    box.focus();
  }
}

class ToolView {
  constructor(node) {
    const results = node.results.map(({ name, content }) =>
      el("div", { class: "call" }, el("span", { class: "small" }, "Result of ", el("code", {}, name)), el("pre", { tabindex: "0" }, content)));
    this.element = el("li", { class: "message tool", "data-node": node.id }, el("article", { "aria-label": "Results of tools" }, results));
  }

  update() {}
}
