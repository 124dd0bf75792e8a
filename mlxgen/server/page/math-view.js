// A formula, set by KaTeX, which is loaded for the first formula there is.
//
// KaTeX makes elements. Until it is there, and if it does not understand a formula, the formula's
// LaTeX is shown as it was written.

import { el, setText } from "./dom.js";
import { soon } from "./soon.js";

const LONGEST = 5_000; // characters; a formula that is longer is shown as it was written
const OPTIONS = { throwOnError: true, strict: "ignore", trust: refuse, maxExpand: 500, maxSize: 50 };

/** KaTeX asks for what leads or loads from elsewhere, or sets classes and styles. */
function refuse({ command }) {
  throw new Error(`${command} is not allowed here.`);
}


let loading = null;
let library = null;

/** The style sheet belongs to it: without, each formula would be seen twice. */
function load() {
  return (loading ??= Promise.all([import("./vendor/katex/katex.mjs"), loadStyle()]).then(([module]) => (library = module.default)));
}

function loadStyle() {
  return new Promise((resolve, reject) => {
    const href = new URL("./vendor/katex/katex.min.css", import.meta.url).href;
    document.head.append(el("link", { rel: "stylesheet", href, load: resolve, error: reject }));
  });
}

export class MathView {
  #wanted = null;
  #display;

  constructor(display) {
    this.#display = display;
    this.element = el("span", { class: display ? "math display" : "math" });
    if (display) this.element.tabIndex = 0;
  }

  show(node) {
    if (node.source === this.#wanted?.source && node.open === this.#wanted.open) return;
    this.#wanted = node;
    if (library && !this.element.childElementCount) setText(this.element, node.source);
    if (library) soon(() => this.#set());
    else {
      setText(this.element, node.source);
      load().then(() => soon(() => this.#set()), () => (loading = null)); // without it, formulas stay as they are
    }
  }

  #set() {
    const { math, source, open } = this.#wanted;
    if (open || math.length > LONGEST) {
      setText(this.element, source);
      return;
    }
    try {
      const tree = library.__renderToDomTree(math, { ...OPTIONS, displayMode: this.#display });
      carryStyles(tree);
      this.element.replaceChildren(tree.toNode());
      this.element.removeAttribute("title");
    } catch (error) {
      setText(this.element, source);
      this.element.title = error.message;
    }
  }
}

/** KaTeX writes some styles as an attribute, which the page's policy refuses; the same styles set on
 *  the element itself are allowed. */
function carryStyles(node) {
  const css = node.attributes?.style;
  if (css) {
    delete node.attributes.style;
    const make = node.toNode;
    node.toNode = () => {
      const made = make.call(node);
      made.style.cssText += css;
      return made;
    };
  }
  for (const child of node.children ?? []) carryStyles(child);
}
