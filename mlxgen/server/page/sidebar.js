// The list of conversations: opening, renaming, deleting, downloading and searching them.

import { ago, fullDate } from "./dates.js";
import { button, byId, el, setText } from "./dom.js";
import { partsOf, patternOf } from "./finding.js";
import { icon } from "./icons.js";
import { menuButton } from "./menu.js";

const NARROW = matchMedia("(max-width: 46rem)"); // as in style.css: the list lies over the conversation
const MOST = 50; // conversations that a search shows

export class Sidebar {
  #acts;
  #shown = null;
  #given = null; // what `update` was called with
  #found = null; // what a search found, by conversation; null without a search
  #pattern = null;
  #renamed = null; // the conversation whose title is being edited

  /** `acts` has `startConversation()`, `openConversation(id)`, `openMessage(id, node)`,
   *  `renameConversation(id, title)`, `removeConversation(id)`, `download(ids, kind)`,
   *  `importFiles(files)` and `search(pattern)`, which resolves to what was found, by conversation. */
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
    this.#prepareSearch();
    byId("files").addEventListener("change", ({ target }) => {
      acts.importFiles([...target.files]);
      target.value = ""; // the same file can be chosen again
    });
    byId("find").after(menuButton("All conversations", () => [
      { icon: "download", label: "Download all as JSON", act: () => acts.download(this.#given.conversations.map(({ id }) => id), "json") },
      { icon: "upload", label: "Import …", act: () => byId("files").click() },
    ]));
  }

  update(conversations, current, isRunning) {
    this.#given = { conversations, current, isRunning };
    if (!this.#renamed) this.#draw();
  }

  #draw() {
    const { conversations, current, isRunning } = this.#given;
    // Where nothing was said yet, there is nothing to go back to.
    const said = conversations.filter((one) => one.title || !one.nodes || Object.keys(one.nodes).length);
    const found = this.#found;
    const listed = found ? said.filter(({ id }) => found.has(id)).slice(0, MOST) : said;
    setCurrent(byId("new"), !said.includes(current));
    const shown = [this.#pattern, JSON.stringify(listed.map(({ id }) => found?.get(id))), ...listed.map((one) =>
      [one.id, one.title, isRunning(one), one === current, ago(one.changed)].join("\n"))].join("\n\n");
    if (shown === this.#shown) return; // a new list would lose the focus
    this.#shown = shown;
    const focused = document.activeElement?.closest("#conversations [data-id]")?.dataset.id;
    byId("conversations").replaceChildren(...listed.map((one) => this.#entry(one, found?.get(one.id))));
    setText(byId("found"), found ? countOf(said.filter(({ id }) => found.has(id)).length) : "");
    if (focused) this.#focus(focused);
  }

  #focus(id) {
    byId("conversations").querySelector(`[data-id="${id}"]`)?.focus();
  }

  #entry(conversation, result) {
    const { current, isRunning } = this.#given;
    const { id, changed } = conversation;
    const title = conversation.title || "New conversation";
    const running = isRunning(conversation);
    const entry = button([el("span", { class: "title" }, marked(title, this.#pattern)), whenOf(conversation, running)], () => {
      this.close();
      this.#acts.openConversation(id);
    }, {
      class: "entry", "aria-label": running ? `${title} …` : title, title: `${title}\n${fullDate(changed)}`,
      "aria-current": id === current.id ? "page" : null, "data-id": id,
      dblclick: () => this.#rename(conversation), keydown: (event) => event.key === "F2" && this.#rename(conversation),
    });
    return el("li", {}, entry, menuButton(`More for “${title}”`, () => [
      { icon: "edit", label: "Rename", act: () => this.#rename(conversation) },
      { icon: "download", label: "Download as JSON", act: () => this.#acts.download([id], "json") },
      { icon: "download", label: "Download as Markdown", act: () => this.#acts.download([id], "md") },
      { icon: "remove", label: "Delete", act: () => this.#acts.removeConversation(id) },
    ]), result?.hits.length ? this.#hits(id, result) : null);
  }

  #hits(id, { hits, more }) {
    return el("ul", { class: "hits" }, hits.map(({ node, before, match, after }) =>
      el("li", {}, button([el("span", {}, before, el("mark", {}, match), after)], () => {
        this.close();
        this.#acts.openMessage(id, node);
      }))), more ? el("li", {}, el("p", { class: "quiet small" }, `and ${more} more`)) : null);
  }

  // ---- renaming ----------------------------------------------------------------------------------

  #rename({ id, title }) {
    const entry = byId("conversations").querySelector(`[data-id="${id}"]`);
    if (!entry || this.#renamed) return;
    this.#renamed = id;
    const end = (renamed) => {
      if (this.#renamed !== id) return;
      this.#renamed = null;
      this.#shown = null;
      if (renamed.trim() && renamed.trim() !== title) this.#acts.renameConversation(id, renamed.trim());
      this.#draw();
      this.#focus(id);
    };
    const box = el("input", {
      "aria-label": "Title", maxlength: 200, blur: () => end(box.value),
      keydown: (event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        end("");
      },
    });
    box.value = title;
    const submit = (event) => {
      event.preventDefault();
      end(box.value);
    };
    entry.replaceWith(el("form", { submit }, box));
    box.focus();
    box.select();
  }

  // ---- searching ---------------------------------------------------------------------------------

  #prepareSearch() {
    const box = byId("find");
    box.addEventListener("input", () => this.#search(box.value));
    box.addEventListener("keydown", (event) => {
      if (event.key === "ArrowDown") byId("conversations").querySelector("button")?.focus();
      if (event.key !== "Escape" || !box.value) return;
      event.stopPropagation();
      box.value = "";
      this.#search("");
    });
  }

  async #search(query) {
    const pattern = patternOf(query);
    this.#pattern = pattern;
    const found = pattern && await this.#acts.search(pattern);
    if (this.#pattern !== pattern) return; // something else was typed meanwhile
    this.#found = found;
    if (!this.#renamed) this.#draw();
  }

  // ---- the list itself ---------------------------------------------------------------------------

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
}

function setCurrent(element, current) {
  if (current) element.setAttribute("aria-current", "page");
  else element.removeAttribute("aria-current");
}

const countOf = (count) => {
  if (!count) return "Nothing found.";
  const said = count === 1 ? "1 conversation" : `${count} conversations`;
  return count > MOST ? `${said}; the newest ${MOST} are shown.` : `${said}.`;
};

/** A text whose parts that are looked for are marked. */
const marked = (text, pattern) =>
  (pattern ? partsOf(text, pattern).map((part, k) => (k % 2 ? el("mark", {}, part) : part)) : text);

/** When something was last said, or that something is being said. */
function whenOf({ changed }, running) {
  if (running) return el("span", { class: "when running", "aria-hidden": "true" });
  return el("span", { class: "when", "aria-hidden": "true" }, ago(changed));
}
