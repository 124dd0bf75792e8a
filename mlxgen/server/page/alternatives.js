// The panel with the alternatives of a token.
//
// Owns the panel's elements, place and focus. Choosing calls `choose(node, index, id)`, and its
// outcome is reported with `say`, `refuse` or `close`.

import { button, el } from "./dom.js";
import { percent, spoken, visible } from "./records.js";
import { formName } from "./settings.js";
import { marksOf } from "./token-view.js";

export class AlternativesPanel {
  #element;
  #choose;
  #anchor = null;
  #note = null;
  #waits = false; // for the server's word on an alternative

  constructor(element, choose) {
    this.#element = element;
    this.#choose = choose;
    element.tabIndex = -1; // a click on its text must not count as leaving it
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("focusout", (event) => {
      if (!element.contains(event.relatedTarget)) this.close({ refocus: false });
    });
    addEventListener("resize", () => this.#place());
    document.addEventListener("scroll", () => this.#place(), { capture: true, passive: true });
  }

  get isOpen() {
    return !this.#element.hidden;
  }

  /** Show the alternatives of the token `index` of `node`; `has(id)` says whether one has a branch. */
  open(anchor, { node, index, record, has }) {
    this.close({ refocus: false });
    this.#anchor = anchor;
    this.#waits = false;
    anchor.setAttribute("aria-expanded", "true");
    this.#note = el("p", { role: "status", class: "small" });
    const rows = rowsOf(record).map((row) => this.#row(row, { node, index, record, has }));
    this.#element.replaceChildren(
      el("h2", { id: "alternatives-title" }, "Instead of ", el("code", {}, visible(record.b))),
      el("p", { class: "small" }, about(record, index, node)),
      el("ul", {}, rows),
      this.#note,
      el("div", { class: "row end" }, button("Close", () => this.close())),
    );
    if (!record.a) this.say("The server was not asked for alternatives, or there was no room to keep them.");
    this.#element.hidden = false;
    this.#place();
    (this.#element.querySelector("li button:enabled") ?? this.#element.querySelector("button")).focus();
  }

  close({ refocus = true } = {}) {
    if (!this.isOpen) return;
    const anchor = this.#anchor;
    this.#anchor = null;
    this.#element.hidden = true;
    anchor.removeAttribute("aria-expanded");
    if (refocus) anchor.focus();
  }

  say(sentence) {
    this.#waits = false;
    this.#note.textContent = sentence;
  }

  /** Cross out an alternative, and say why. */
  refuse(id, sentence) {
    this.say(sentence);
    const row = this.#element.querySelector(`[data-id="${id}"]`);
    row?.classList.add("refused");
    row?.setAttribute("aria-disabled", "true");
  }

  #row({ id, piece, logprob }, { node, index, record, has }) {
    const here = id === record.i;
    const refused = record.x?.includes(id);
    const bar = el("span", { class: "odds", "aria-hidden": "true" });
    bar.style.setProperty("--share", `${Math.exp(logprob ?? -Infinity) * 100}%`);
    const remark = here ? "in this answer" : has(id) ? "has a branch" : "";
    const label = [spoken(piece), percent(logprob), remark, refused ? "not allowed here" : ""];
    const choose = button("", () => {
      if (this.#waits || choose.getAttribute("aria-disabled") === "true") return;
      this.say("Asking the server …");
      this.#waits = true;
      this.#choose(node, index, id);
    }, {
      "data-id": id, class: `alternative${refused ? " refused" : ""}`, disabled: here,
      "aria-disabled": refused ? "true" : null, "aria-label": label.filter(Boolean).join(", "),
    });
    choose.append(el("code", {}, visible(piece)), bar, el("span", { class: "share" }, percent(logprob)),
      el("span", { class: "quiet small" }, remark));
    return el("li", {}, choose);
  }

  #key(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.close();
      return;
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const buttons = [...this.#element.querySelectorAll("button:enabled")];
    const step = event.key === "ArrowDown" ? 1 : -1;
    const next = buttons.indexOf(document.activeElement) + step;
    buttons.at(next % buttons.length)?.focus();
    event.preventDefault();
  }

  /** Below the token, or above if there is no room; on a phone the style puts it at the bottom. */
  #place() {
    if (!this.isOpen) return;
    const box = this.#anchor.getClientRects()[0];
    if (!box) return;
    const own = this.#element;
    const { offsetWidth: width, offsetHeight: height } = own;
    const below = box.bottom + 6 + height <= innerHeight;
    const top = below ? box.bottom + 6 : Math.max(8, box.top - 6 - height);
    own.style.setProperty("--left", `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`);
    own.style.setProperty("--top", `${Math.min(top, Math.max(8, innerHeight - height - 8))}px`);
  }
}

/** The alternatives, and the token itself if it is not one of them. */
function rowsOf(record) {
  const rows = (record.a ?? []).map(([id, piece, logprob]) => ({ id, piece, logprob }));
  if (!rows.some((row) => row.id === record.i)) rows.push({ id: record.i, piece: record.b, logprob: record.l });
  return rows;
}

function about(record, index, node) {
  const marks = marksOf(record).map((mark) => {
    if (mark === "forced") return `forced: the ${formName(node.settings) || "format"} left no other token`;
    if (mark.startsWith("drafted")) return `${mark} and accepted by the model`;
    if (mark.startsWith("drawn")) return `${mark} because earlier draws were rejected`;
    return mark;
  });
  return `${[`Token ${index + 1} of the answer, ${percent(record.l)} likely`, ...marks].join("; ")}.`;
}
