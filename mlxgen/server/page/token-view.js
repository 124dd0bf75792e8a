// The tokens of an answer, tinted by their probability, under a strip of the whole answer.
//
// Owns their elements and how the keyboard moves among them: one tab stop for each group, and arrow
// keys within. A click on a token calls `open(index, element)`. Lines of text are boxes of their own,
// of which the browser lays out only those that can be seen. What is seen as one character, but is
// several tokens, is one box that spans them.

import { el, setText } from "./dom.js";
import { Speller } from "./records.js";
import { markNames, tokenElement } from "./token-element.js";
import { TokenStrip } from "./token-strip.js";

const BOX = 48; // tokens in a box at least; it ends where a line does

/** Which of the two groups a token is in: thoughts are folded away, and marks stay in place. */
function groupOf(record, before) {
  if (record.p === "mark") return before ?? "thought";
  return record.p === "reasoning" ? "thought" : "answer";
}

export class TokenView {
  #groups = [];
  #records = [];
  #tokens = []; // the element of each record
  #speller = new Speller();
  #strip = new TokenStrip({ goTo: (index) => this.#goTo(index), enter: (index) => this.focus(index) });
  #open;
  #unfolded;
  #frame = 0;
  #scrolled = () => (this.#frame ||= requestAnimationFrame(() => this.#markWindow()));

  /** The names of the marks that its tokens have. */
  marks = new Set();

  /** `unfolded`: whether thoughts are shown from the beginning. */
  constructor(open, { unfolded = false } = {}) {
    this.#open = open;
    this.#unfolded = unfolded;
    this.element = el("div", { class: "tokens", click: (event) => this.#click(event), keydown: (event) => this.#key(event) },
      this.#strip.element);
    // The strip follows the page only where somebody can see it.
    new IntersectionObserver(([{ isIntersecting }]) => {
      document.removeEventListener("scroll", this.#scrolled, { capture: true });
      if (!isIntersecting) return;
      document.addEventListener("scroll", this.#scrolled, { capture: true, passive: true });
      this.#scrolled();
    }).observe(this.element);
    new ResizeObserver(this.#scrolled).observe(this.element);
  }

  /** Show a path; what is already shown of it stays. */
  update(path) {
    const shown = this.#records;
    if (shown.length > path.length || shown.some((record, k) => record !== path[k])) this.#clear();
    else if (shown.length === path.length) return;
    for (let k = shown === this.#records ? shown.length : 0; k < path.length; k += 1) this.#add(path[k], k);
    for (const group of this.#groups) group.count?.();
    this.#strip.element.hidden = path.length < 2;
    this.#strip.update(path.map((record) => record.l));
  }

  /** Whether thoughts are shown. */
  get isUnfolded() {
    return this.#groups.some(({ folded }) => folded?.open);
  }

  /** The element of a token. */
  token(index) {
    return this.#tokens[index] ?? null;
  }

  focus(index) {
    const token = this.token(index);
    if (!token) return;
    unfold(token);
    this.#move(token);
  }

  #clear() {
    this.#groups = [];
    this.#records = [];
    this.#tokens = [];
    this.#speller = new Speller();
    this.marks = new Set();
    this.element.replaceChildren(this.#strip.element);
  }

  #add(record, index) {
    const last = this.#groups.at(-1);
    const kind = groupOf(record, last?.kind);
    const group = last?.kind === kind ? last : this.#addGroup(kind);
    const box = group.boxes.at(-1)?.open ? group.boxes.at(-1) : addBox(group, index);
    const before = record.p !== null && this.#speller.isOpen;
    const text = this.#speller.spell(record);
    const after = record.p !== null && this.#speller.isOpen;
    const isPart = before || after || belongs(text, box.element.lastElementChild);
    const names = markNames(record);
    for (const name of names) this.marks.add(name);
    const token = tokenElement(record, index, isPart ? "" : text, names);
    if (!group.first) {
      group.first = group.stop = token;
      token.tabIndex = 0;
    }
    if (isPart) addPart(box, token, text, { before, after });
    else box.element.append(token);
    this.#records.push(record);
    this.#tokens.push(token);
    group.end = box.end = index + 1;
    box.open = box.end - box.start < BOX || !text.endsWith("\n");
  }

  #addGroup(kind) {
    const label = `${kind === "thought" ? "Tokens of the thoughts" : "Tokens of the answer"}; arrow keys move, Enter shows alternatives`;
    const inner = el("div", { class: "token-text", role: "group", "aria-label": label });
    const group = { kind, inner, boxes: [], start: this.#tokens.length, end: this.#tokens.length, first: null, stop: null };
    if (kind === "thought") {
      const title = el("summary");
      group.count = () => setText(title, `Thoughts, ${group.end - group.start} tokens`);
      group.folded = el("details", { class: "reasoning", open: this.#unfolded, toggle: this.#scrolled }, title, inner);
      this.element.append(group.folded);
    } else {
      this.element.append(inner);
    }
    this.#groups.push(group);
    return group;
  }

  #click(event) {
    const token = event.target.closest(".token") ?? event.target.closest(".character")?.querySelector(".token");
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
      const next = this.#neighbour(Number(token.dataset.index), event.key);
      if (!next) return;
      this.#move(next);
    }
    event.preventDefault();
  }

  #groupAt(index) {
    return this.#groups.find(({ end }) => index < end);
  }

  #move(token) {
    const group = this.#groupAt(Number(token.dataset.index));
    group.stop.tabIndex = -1;
    group.stop = token;
    token.tabIndex = 0;
    token.focus();
  }

  /** The token that a key leads to, or undefined. */
  #neighbour(index, key) {
    const { start, end } = this.#groupAt(index);
    switch (key) {
      case "ArrowLeft": return this.#tokens[Math.max(start, index - 1)];
      case "ArrowRight": return this.#tokens[Math.min(end - 1, index + 1)];
      case "Home": return this.#tokens[start];
      case "End": return this.#tokens[end - 1];
      case "ArrowUp": return this.#inLine(index, -1, start - 1);
      case "ArrowDown": return this.#inLine(index, 1, end);
      default: return undefined;
    }
  }

  /** The token of the next line that is most directly above or below. */
  #inLine(index, sign, end) {
    const from = placeOf(this.#tokens[index]);
    let best = null;
    let line = null;
    for (let other = index + sign; other !== end; other += sign) {
      const box = placeOf(this.#tokens[other]);
      if (!box || (box.top - from.top) * sign < from.height / 2) continue;
      line ??= box.top;
      if (Math.abs(box.top - line) > from.height / 2) break;
      const away = Math.abs(box.left - from.left);
      if (!best || away < best.away) best = { away, other };
    }
    return best ? this.#tokens[best.other] : undefined;
  }

  // ---- the strip -----------------------------------------------------------------------------

  #goTo(index) {
    const token = this.token(index);
    if (!token) return;
    unfold(token);
    token.scrollIntoView({ block: "center", inline: "nearest" });
  }

  #markWindow() {
    this.#frame = 0;
    const view = (this.element.closest("#scroll") ?? document.documentElement).getBoundingClientRect();
    const top = Math.max(view.top, this.#strip.element.getBoundingClientRect().bottom);
    const seen = [];
    for (const { boxes, folded } of this.#groups) {
      if (folded && !folded.open) continue;
      for (const { element, start, end } of boxes) {
        const box = element.getBoundingClientRect();
        if (box.bottom <= top) continue;
        if (box.top >= view.bottom) break;
        const first = box.top >= top ? start : this.#search(start, end, ({ bottom }) => bottom > top);
        const last = box.bottom <= view.bottom ? end : this.#search(first, end, (place) => place.top >= view.bottom);
        if (last > first) seen.push(first, last - 1);
      }
    }
    this.#strip.showWindow(seen[0] ?? null, seen.at(-1));
  }

  /** The first of some tokens for whose place `isThere` is true; they follow each other downwards. */
  #search(start, end, isThere) {
    while (start < end) {
      const middle = (start + end) >> 1;
      if (isThere(this.#tokens[middle].getBoundingClientRect())) end = middle;
      else start = middle + 1;
    }
    return start;
  }
}

function addBox(group, index) {
  const box = { element: el("div", { class: "lines" }), start: index, end: index, open: true, character: null };
  group.inner.append(box.element);
  group.boxes.push(box);
  return box;
}

/** A token that has a part of a character goes into the box of that character. */
function addPart(box, token, text, { before, after }) {
  if (!before || !box.character) {
    box.character = el("span", { class: "character" }, el("span", { class: "whole" }), el("span", { class: "parts" }));
    box.element.append(box.character);
  }
  const own = box.character;
  own.lastChild.append(token);
  if (text) own.firstChild.append(text);
  if (after) return;
  box.character = null;
  const last = own.previousElementSibling;
  if (!belongs(text, last)) return;
  last.firstChild.append(text);
  last.lastChild.append(...own.lastChild.childNodes);
  own.remove();
}

const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Whether a text is seen as one with the character of several tokens before it, as the parts of many emoji are. */
function belongs(text, last) {
  if (!text || !last?.classList.contains("character")) return false;
  return [...graphemes.segment(last.firstChild.textContent + text)].length === 1;
}

function unfold(token) {
  const folded = token.closest("details");
  if (folded) folded.open = true;
}

/** Where a token begins; a part of a character is where that is. */
const placeOf = (token) => (token.closest(".character") ?? token).getClientRects()[0];
