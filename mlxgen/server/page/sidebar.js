// The list of conversations.

import { ago, fullDate } from "./dates.js";
import { button, byId, el } from "./dom.js";
import { icon } from "./icons.js";

const SURE = 4000; // milliseconds in which a second press deletes
const NARROW = matchMedia("(max-width: 46rem)"); // as in style.css: the list lies over the conversation

export class Sidebar {
  #acts;
  #shown = null;

  /** `acts` has `openConversation(id)`, `removeConversation(id)` and `startConversation()`. */
  constructor(acts) {
    this.#acts = acts;
    byId("new").addEventListener("click", () => {
      this.close();
      acts.startConversation();
    });
    byId("show-list").addEventListener("click", () => this.#toggle());
    NARROW.addEventListener("change", () => this.#tell());
    this.#tell();
    byId("main").addEventListener("click", () => this.close());
    byId("list").addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !this.#isOpen) return;
      event.stopPropagation();
      this.close();
      byId("show-list").focus();
    });
  }

  update(conversations, current, isRunning) {
    // Where nothing was said yet, there is nothing to go back to.
    const listed = conversations.filter((one) => one.title || Object.keys(one.nodes).length);
    const shown = listed.map((one) => [one.id, one.title, isRunning(one), one === current, ago(one.changed)].join("\n")).join("\n\n");
    if (shown === this.#shown) return; // a new list would lose the focus
    this.#shown = shown;
    const focused = document.activeElement?.closest("#conversations [data-id]")?.dataset.id;
    byId("conversations").replaceChildren(...listed.map((conversation) => {
      const title = conversation.title || "New conversation";
      const running = isRunning(conversation);
      return el("li", {},
        button([el("span", { class: "title" }, title), whenOf(conversation, running)], () => {
          this.close();
          this.#acts.openConversation(conversation.id);
        }, {
          class: "entry", "aria-label": running ? `${title} …` : title, title: `${title}\n${fullDate(conversation.changed)}`,
          "aria-current": conversation.id === current.id ? "page" : null, "data-id": conversation.id,
        }),
        this.#removeButton(conversation, title));
    }));
    if (listed.includes(current)) byId("new").removeAttribute("aria-current");
    else byId("new").setAttribute("aria-current", "page");
    if (focused) byId("conversations").querySelector(`[data-id="${focused}"]`)?.focus();
  }

  /** Close the list where it lies over the conversation. */
  close() {
    if (this.#isOpen) this.#toggle();
  }

  get #isOpen() {
    return NARROW.matches && document.body.classList.contains("list-open");
  }

  /** Over the conversation, the list is closed at first; beside it, open. */
  #toggle() {
    const changed = document.body.classList.toggle(NARROW.matches ? "list-open" : "list-shut");
    this.#tell();
    if (NARROW.matches && changed) byId("new").focus();
  }

  #tell() {
    const { classList } = document.body;
    const open = NARROW.matches ? classList.contains("list-open") : !classList.contains("list-shut");
    byId("show-list").setAttribute("aria-expanded", String(open));
  }

  #removeButton({ id }, title) {
    let sure = false;
    const remove = button([icon("remove")], () => {
      if (sure) {
        this.#acts.removeConversation(id);
        return;
      }
      sure = true;
      remove.textContent = "Delete?";
      remove.setAttribute("aria-label", `Press again to delete “${title}”`);
      setTimeout(() => {
        sure = false;
        remove.replaceChildren(icon("remove"));
        remove.setAttribute("aria-label", `Delete “${title}”`);
      }, SURE);
    }, { class: "icon", "aria-label": `Delete “${title}”` });
    return remove;
  }
}

/** When something was last said, or that something is being said. */
function whenOf({ changed }, running) {
  if (running) return el("span", { class: "when running", "aria-hidden": "true" });
  return el("span", { class: "when", "aria-hidden": "true" }, ago(changed));
}
