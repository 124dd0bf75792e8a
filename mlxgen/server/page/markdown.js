// An answer's Markdown on the page.
//
// While the text grows, only its last two blocks are parsed again, and within them only what differs
// is drawn again: all else keeps its elements, and with them what is selected in it. (A new line can
// change the meaning of no more than these two: "#" after a paragraph is a heading, "#a" is part of
// the paragraph.) The end of the text is parsed with all of it, since links may be defined anywhere.

import { CodeText } from "./code-view.js";
import { draw } from "./draw.js";
import { el } from "./dom.js";
import { blocksOf } from "./markdown-tree.js";

export class Markdown {
  #text = null;
  #growing = false;
  #starts = []; // where each block that is shown begins in the text
  #code = null; // in the place of all blocks, if the text is code as a whole
  #later;
  #due = 0;
  #timer = 0;

  /** `later()` is called when a text should be shown that came too soon after the last one: while
   *  a text grows, drawing it takes at most a quarter of the time. Without it, each is drawn. */
  constructor(later = null) {
    this.#later = later;
    this.element = el("div", { class: "blocks" });
  }

  /** Show a text, which may be the beginning of one that grows. */
  show(given, { growing = false } = {}) {
    const text = given.includes("\r") ? given.replace(/\r\n?/g, "\n") : given; // as the parser counts lines
    if (text === this.#text && growing === this.#growing && !this.#code) return;
    if (this.#code) this.#empty();
    clearTimeout(this.#timer);
    const now = performance.now();
    if (this.#later && growing && this.#growing && now < this.#due) {
      this.#timer = setTimeout(this.#later, this.#due - now);
      return;
    }
    this.#draw(text, growing);
    this.#due = now + 4 * (performance.now() - now);
  }

  #draw(text, growing) {
    const grows = growing && this.#growing && text.startsWith(this.#text);
    const kept = grows ? Math.max(0, this.#starts.length - 2) : 0;
    const start = kept ? this.#starts[kept] : 0;
    const rest = text.slice(start);
    const blocks = blocksOf(rest, { growing });
    const lines = lineStarts(rest);
    this.#starts = [...this.#starts.slice(0, kept), ...blocks.map(({ line }) => start + lines[line])];
    draw(this.element, blocks.map(({ node }) => node), kept);
    this.#text = text;
    this.#growing = growing;
  }

  /** Where the block that holds an element or a text begins in the text; null if none does. */
  startOf(inner) {
    const block = [...this.element.children].findIndex((child) => child.contains(inner));
    return this.#starts[block] ?? null;
  }

  /** Show a text as what it is, in the colours of a language if one is given. */
  showCode(text, language = "") {
    if (!this.#code) {
      this.#empty();
      this.#code = new CodeText();
      this.element.append(this.#code.element);
    }
    this.#code.show(text, language);
  }

  #empty() {
    clearTimeout(this.#timer);
    this.element.replaceChildren();
    this.#starts = [];
    this.#text = this.#code = null;
    this.#growing = false;
  }
}

function lineStarts(text) {
  const starts = [0];
  for (let at = text.indexOf("\n"); at >= 0; at = text.indexOf("\n", at + 1)) starts.push(at + 1);
  return starts;
}
