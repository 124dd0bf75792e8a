// Code with its language, its colours and a button that copies it.
//
// The colours come from highlight.js, which is loaded for the first code that has a language. It
// makes a tree of scopes, from which this makes elements. While code grows, it is coloured again so
// rarely that this takes a tenth of the time at most, and elements that come out alike stay.

import { copyButton, el } from "./dom.js";
import { icon } from "./icons.js";
import { soon } from "./soon.js";

const LONGEST = 100_000; // characters; code that is longer has no colours
const REST = 10; // times what the colours took is waited until they are drawn again

let loading = null;
let library = null;

const load = () =>
  (loading ??= import("./vendor/highlight.js/highlight.min.js").then((module) => (library = module.default)));

/** The code as [class or "", text], in a language that the library knows. */
function runsOf(text, language) {
  const runs = [];
  const walk = (node, scope) => {
    if (typeof node === "string") {
      if (runs.at(-1)?.[0] === scope) runs.at(-1)[1] += node;
      else if (node) runs.push([scope, node]);
      return;
    }
    const own = node.scope && !node.scope.startsWith("language:") ? `hl-${node.scope.split(".")[0]}` : scope;
    for (const child of node.children) walk(child, own);
  };
  walk(library.highlight(text, { language, ignoreIllegals: true })._emitter.root, "");
  return runs;
}

/** Code in its colours, without anything around it. */
export class CodeText {
  #text = "";
  #runs = []; // what each child of the element shows
  #language = "";
  #due = 0;
  #timer = 0;

  constructor() {
    this.element = el("code");
  }

  show(text, language) {
    if (text === this.#text && language === this.#language) return;
    if (language === this.#language && text.startsWith(this.#text)) this.#grow(text.slice(this.#text.length));
    else this.#draw([["", text]]);
    this.#text = text;
    this.#language = language;
    if (!this.#timer) this.#colour();
  }

  get text() {
    return this.#text;
  }

  #colour() {
    this.#timer = 0;
    if (!this.#language || this.#text.length > LONGEST) return;
    if (!library) {
      this.#timer = 1;
      load().then(() => this.#colour(), () => (loading = null)); // without it, code has no colours
      return;
    }
    if (!library.getLanguage(this.#language)) return;
    const now = performance.now();
    if (now < this.#due) {
      this.#timer = setTimeout(() => this.#colour(), this.#due - now);
      return;
    }
    this.#timer = 1;
    soon(() => {
      this.#timer = 0;
      const start = performance.now();
      this.#draw(runsOf(this.#text, this.#language));
      const end = performance.now();
      this.#due = end + REST * (end - start);
    });
  }

  #grow(more) {
    const last = this.#runs.at(-1);
    if (last && !last[0]) {
      last[1] += more;
      this.element.lastChild.appendData(more);
    } else {
      this.#runs.push(["", more]);
      this.element.append(more);
    }
  }

  #draw(runs) {
    let same = 0;
    while (same < runs.length && this.#runs[same]?.[0] === runs[same][0] && this.#runs[same][1] === runs[same][1]) same += 1;
    while (this.element.childNodes.length > same) this.element.lastChild.remove();
    this.element.append(...runs.slice(same).map(([scope, text]) => (scope ? el("span", { class: scope }, text) : text)));
    this.#runs = runs;
  }
}

/** A block of code, with a line above it. */
export class CodeBlock {
  #code = new CodeText();

  constructor(language) {
    const copy = copyButton("Copy", () => this.#code.text, { "aria-label": "Copy the code" }, icon("copy"));
    this.element = el("div", { class: "code", dir: "ltr" },
      el("div", { class: "row" }, el("span", { class: "language" }, language || "text"), copy),
      el("pre", { tabindex: "0", role: "group", "aria-label": language ? `Code, ${language}` : "Code" }, this.#code.element));
  }

  show({ code, language }) {
    this.#code.show(code, language.toLowerCase());
  }
}
