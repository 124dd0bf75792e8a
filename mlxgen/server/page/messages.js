// The messages of a conversation on the page: what was asked, and what tools returned.
//
// Each view has an `element` and `update()`. What a person does is passed on to `acts` of app.js.

import { AnswerView } from "./answer-view.js";
import { attachmentsElement, Tray } from "./attachments.js";
import { button, el } from "./dom.js";
import { iconButton } from "./icons.js";
import { Walker } from "./walker.js";

/** The view of any node. */
export function viewOf(node, conversation, acts) {
  if (node.role === "assistant") return new AnswerView(node, conversation, acts);
  return node.role === "user" ? new UserView(node, conversation, acts) : new ToolView(node, acts);
}

const removeButton = (node, acts) =>
  iconButton("remove", "Delete", () => acts.remove(node), { "data-act": "remove", title: "Delete this and what follows it" });

class UserView {
  #node;
  #acts;
  #walker;
  #text;
  #row;
  #form = null;

  constructor(node, conversation, acts) {
    this.#node = node;
    this.#acts = acts;
    this.#walker = new Walker(node, conversation, acts, "message");
    this.#text = el("div", { class: "said" },
      node.files || node.images ? attachmentsElement(node) : null,
      node.text ? el("div", { class: "text", dir: "auto" }, node.text) : null);
    this.#row = el("div", { class: "actions" }, this.#walker.element,
      iconButton("edit", "Edit", () => this.edit(), { "data-act": "edit" }), removeButton(node, acts));
    this.element = el("li", { class: "message user", "data-node": node.id },
      el("article", { "aria-label": "You" }, this.#text, this.#row));
  }

  update() {
    this.#walker.update();
  }

  /** Edit the message in its place; sending it makes another version. */
  edit() {
    if (this.#form) return;
    const { text, files, images } = this.#node;
    const box = el("textarea", { "aria-label": "Edited message", rows: Math.min(12, text.split("\n").length + 1) });
    const tray = new Tray();
    box.value = text;
    tray.show({ files, images });
    const close = () => {
      this.#form.replaceWith(this.#text);
      this.#form = null;
      this.#row.hidden = false;
      this.#row.querySelector('[data-act="edit"]').focus();
    };
    const send = () => {
      if (!box.value.trim() && tray.isEmpty) return;
      close();
      this.#acts.edit(this.#node, { text: box.value, ...tray.kept });
    };
    this.#form = el("form", {
      submit: (event) => {
        event.preventDefault();
        send();
      },
      keydown: (event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        close();
      },
    }, tray.element, box,
    el("div", { class: "row end" }, button("Cancel", close), el("button", { type: "submit", class: "main" }, "Ask this instead")));
    this.#row.hidden = true;
    this.#text.replaceWith(this.#form);
    box.focus();
  }
}

class ToolView {
  constructor(node, acts) {
    const results = node.results.map(({ name, content }) =>
      el("div", { class: "call" }, el("span", { class: "small" }, "Result of ", el("code", {}, name)), el("pre", { tabindex: "0" }, content)));
    this.element = el("li", { class: "message tool", "data-node": node.id }, 
      el("article", { "aria-label": "Results of tools" }, results, el("div", { class: "actions" }, removeButton(node, acts))));
  }

  update() {}
}
