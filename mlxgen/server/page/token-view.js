// The tokens of an answer, tinted by their probability.
//
// Owns their elements and how the keyboard moves among them: one tab stop for each group, and arrow
// keys within. A click on a token calls `open(index, element)`.

import { el, setText } from "./dom.js";
import { DRAFTERS, hex, levelOf, percent, Speller, spoken } from "./records.js";

/** Which of the two groups a token is in: thoughts are folded away, and marks stay in place. */
function groupOf(record, before) {
  if (record.p === "mark") return before ?? "thought";
  return record.p === "reasoning" ? "thought" : "answer";
}

export class TokenView {
  #groups = [];
  #records = [];
  #speller = new Speller();
  #open;

  constructor(open) {
    this.#open = open;
    this.element = el("div", { class: "tokens", click: (event) => this.#click(event), keydown: (event) => this.#key(event) });
  }

  /** Show a path; what is already shown of it stays. */
  update(path) {
    const shown = this.#records;
    if (shown.length > path.length || shown.some((record, k) => record !== path[k])) this.#clear();
    for (let k = this.#records.length; k < path.length; k += 1) this.#add(path[k], k);
    for (const group of this.#groups) group.count?.();
  }

  /** The element of a token. */
  token(index) {
    return this.element.querySelector(`[data-index="${index}"]`);
  }

  focus(index) {
    const token = this.token(index);
    if (!token) return;
    const folded = token.closest("details");
    if (folded) folded.open = true;
    this.#move(token);
  }

  #clear() {
    this.#groups = [];
    this.#records = [];
    this.#speller = new Speller();
    this.element.replaceChildren();
  }

  #add(record, index) {
    const last = this.#groups.at(-1);
    const kind = groupOf(record, last?.kind);
    const group = last?.kind === kind ? last : this.#addGroup(kind);
    const token = tokenElement(record, index, this.#speller.spell(record));
    token.tabIndex = group.inner.childElementCount ? -1 : 0;
    group.inner.append(token);
    this.#records.push(record);
  }

  #addGroup(kind) {
    const label = `${kind === "thought" ? "Tokens of the thoughts" : "Tokens of the answer"}; arrow keys move, Enter shows alternatives`;
    const inner = el("div", { class: "token-text", dir: "auto", role: "group", "aria-label": label });
    const group = { kind, inner };
    if (kind === "thought") {
      const title = el("summary");
      group.count = () => setText(title, `Thoughts, ${inner.childElementCount} tokens`);
      this.element.append(el("details", { class: "reasoning" }, title, inner));
    } else {
      this.element.append(inner);
    }
    this.#groups.push(group);
    return group;
  }

  #click(event) {
    const token = event.target.closest(".token");
    // A click that ends a selection is meant to select.
    if (!token || String(getSelection())) return;
    this.#move(token);
    this.#open(Number(token.dataset.index), token);
  }

  #key(event) {
    const token = event.target.closest(".token");
    if (!token || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.key === "Enter" || event.key === " ") {
      this.#open(Number(token.dataset.index), token);
    } else {
      const next = neighbour(token, event.key);
      if (!next) return;
      this.#move(next);
    }
    event.preventDefault();
  }

  #move(token) {
    for (const other of token.parentElement.querySelectorAll('[tabindex="0"]')) other.tabIndex = -1;
    token.tabIndex = 0;
    token.focus();
  }
}

/** The token that a key leads to, or null. */
function neighbour(token, key) {
  const group = token.parentElement;
  switch (key) {
    case "ArrowLeft": return token.previousElementSibling;
    case "ArrowRight": return token.nextElementSibling;
    case "Home": return group.firstElementChild;
    case "End": return group.lastElementChild;
    case "ArrowUp": return inLine(token, "previousElementSibling", -1);
    case "ArrowDown": return inLine(token, "nextElementSibling", 1);
    default: return null;
  }
}

/** The token of the next line that is most directly above or below. */
function inLine(token, step, sign) {
  const from = token.getClientRects()[0] ?? token.getBoundingClientRect();
  let best = null;
  let line = null;
  for (let other = token[step]; other; other = other[step]) {
    const box = other.getClientRects()[0];
    if (!box || (box.top - from.top) * sign < from.height / 2) continue;
    line ??= box.top;
    if (Math.abs(box.top - line) > from.height / 2) break;
    const away = Math.abs(box.left - from.left);
    if (!best || away < best.away) best = { away, other };
  }
  return best?.other ?? null;
}

/** One token; `text` are the characters that it completes. */
export function tokenElement(record, index, text, props = {}) {
  const token = el("span", {
    class: classesOf(record, text), role: "button", "data-index": index,
    "aria-haspopup": "dialog", "aria-label": labelOf(record), ...props,
  }, text);
  if (!text) token.dataset.hex = typeof record.b === "string" ? "∅" : hex(record.b);
  return token;
}

function classesOf(record, text) {
  const classes = ["token"];
  const level = levelOf(record.l);
  if (level !== null) classes.push(`level-${level}`);
  if (record.f === 1) classes.push("forced");
  if (record.f === 2) classes.push("drafted", ...(record.d in DRAFTERS ? [`by-${record.d}`] : []));
  if (record.n) classes.push("redrawn");
  if (record.h) classes.push("picked");
  if (record.p === null) classes.push("outside");
  if (record.p === "mark") classes.push("mark");
  if (text.startsWith("\n")) classes.push("line-break");
  return classes.join(" ");
}

function labelOf(record) {
  const said = [spoken(record.b), percent(record.l), ...marksOf(record)];
  return said.join(", ");
}

/** How a token came about, in words. */
export function marksOf(record) {
  const marks = [];
  if (record.h) marks.push(record.h === 2 ? "typed" : "chosen by hand");
  if (record.f === 1) marks.push("forced");
  if (record.f === 2) marks.push(`drafted ${DRAFTERS[record.d] ?? ""}`.trim());
  if (record.n) marks.push(record.n === 1 ? "drawn again once" : `drawn again ${record.n} times`);
  if (record.p === null) marks.push("not part of the answer");
  return marks;
}

/** What the tints and lines mean. */
export function legend() {
  const steps = ["over 90 %", "70 to 90 %", "40 to 70 %", "15 to 40 %", "3 to 15 %", "under 3 %"];
  const marks = [["forced", "forced by the format"], ["redrawn", "drawn again after a rejection"],
    ...Object.entries(DRAFTERS).map(([name, how]) => [`drafted by-${name}`, `drafted ${how}`]),
    ["picked", "chosen by hand"], ["outside", "not part of the answer"]];
  const sample = (name, text) => el("li", {}, el("span", { class: `token ${name}`, "aria-hidden": "true" }, "abc"), ` ${text}`);
  return el("details", { class: "legend" },
    el("summary", {}, "What the colours and lines mean"),
    el("ul", {}, steps.map((text, k) => sample(`level-${k}`, text))),
    el("ul", {}, marks.map(([name, text]) => sample(name, text))),
    el("p", { class: "quiet small" },
      "Probabilities are the model's own, before temperature, truncation and the answer format."));
}
