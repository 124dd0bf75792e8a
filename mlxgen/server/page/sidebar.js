// The list of conversations.

import { button, byId, el } from "./dom.js";

const SURE = 4000; // milliseconds in which a second press deletes

export class Sidebar {
  #acts;
  #shown = "";

  /** `acts` has `openConversation(id)`, `removeConversation(id)` and `startConversation()`. */
  constructor(acts) {
    this.#acts = acts;
    byId("new").addEventListener("click", () => {
      this.close();
      acts.startConversation();
    });
    byId("show-list").addEventListener("click", () => this.#toggle());
    byId("main").addEventListener("click", () => this.close());
    byId("list").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.#isOpen) return;
      event.stopPropagation();
      this.close();
      byId("show-list").focus();
    });
  }

  update(conversations, current, isRunning) {
    const shown = conversations.map((one) => [one.id, one.title, isRunning(one), one === current].join("\n")).join("\n\n");
    if (shown === this.#shown) return; // a new list would lose the focus
    this.#shown = shown;
    const focused = document.activeElement?.closest("#conversations [data-id]")?.dataset.id;
    byId("conversations").replaceChildren(...conversations.map((conversation) => {
      const title = conversation.title || "New conversation";
      const running = isRunning(conversation);
      return el("li", {},
        button(running ? `${title} …` : title, () => {
          this.close();
          this.#acts.openConversation(conversation.id);
        }, { class: "title", title, "aria-current": conversation.id === current.id ? "page" : null, "data-id": conversation.id }),
        this.#removeButton(conversation, title));
    }));
    if (focused) byId("conversations").querySelector(`[data-id="${focused}"]`)?.focus();
  }

  /** The list is only ever closed on a phone. */
  close() {
    document.body.classList.remove("list-open");
    byId("show-list").setAttribute("aria-expanded", "false");
  }

  get #isOpen() {
    return document.body.classList.contains("list-open");
  }

  #toggle() {
    const open = document.body.classList.toggle("list-open");
    byId("show-list").setAttribute("aria-expanded", String(open));
    if (open) byId("new").focus();
  }

  #removeButton({ id }, title) {
    let sure = false;
    const remove = button("✕", () => {
      if (sure) {
        this.#acts.removeConversation(id);
        return;
      }
      sure = true;
      remove.textContent = "Delete?";
      remove.setAttribute("aria-label", `Press again to delete “${title}”`);
      setTimeout(() => {
        sure = false;
        remove.textContent = "✕";
        remove.setAttribute("aria-label", `Delete “${title}”`);
      }, SURE);
    }, { class: "icon", "aria-label": `Delete “${title}”` });
    return remove;
  }
}
