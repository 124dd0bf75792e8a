// Markdown on the page: blocks of elements, code in its colours, and formulas.
//
// Only the end of a text that grows is parsed again, and blocks that are the same are not drawn again, so
// what is selected in them stays. highlight.js and KaTeX are loaded when an answer first needs them, and each piece of
// code and each formula is a task of its own: a long answer opens at once without them.

import { h } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { CopyButton, html, useElement } from "./html.js";
import { grownBlocks } from "./markdown-tree.js";

const LONGEST_CODE = 100_000; // characters; code that is longer has no colours
const LONGEST_MATH = 5_000; // a formula that is longer is shown as it was written
const REST = 10; // times what the colours took is waited until they are drawn again

/** A text as Markdown; `places` gets where each block begins in it. */
export function Blocks({ text, growing = false, places = /** @type {any} */ (null), ...props }) {
  const before = useRef(/** @type {any} */ (null));
  before.current = grownBlocks(before.current, text, growing);
  if (places) places.current = before.current.blocks;
  return html`<div class="blocks" ...${props}>${before.current.blocks.map(({ node }, k) => html`<${Block} key=${k} node=${node} />`)}</div>`;
}

/** One block; it is drawn again only if its node is another one. */
const Block = ({ node }) => useMemo(() => elementOf(node), [node]);

function elementOf(node) {
  if (typeof node === "string") return node;
  if (node.code !== undefined) return html`<${CodeBlock} ...${node} />`;
  if (node.math !== undefined) return html`<${Formula} ...${node} />`;
  return h(node.tag, node.attrs, node.children.map(elementOf));
}

// ---- code ------------------------------------------------------------------------------------

/** @type {Promise<any> | null} */
let highlighter = null;
const loadHighlighter = () =>
  (highlighter ??= import("./vendor/highlight.js/highlight.min.js").then((module) => module.default));

/** Code with a line above it. */
function CodeBlock({ code, language }) {
  return html`<div class="code" dir="ltr">
    <div class="row"><span class="language">${language || "text"}</span><${CopyButton} text=${() => code} aria-label="Copy the code" /></div>
    <pre tabindex="0" role="group" aria-label=${language ? `Code, ${language}` : "Code"}><${Code} text=${code} language=${language.toLowerCase()} /></pre>
  </div>`;
}

/** Code in its colours. While it grows, what is new has none until the colours are drawn again. */
export function Code({ text, language }) {
  const [coloured, setColoured] = useState({ text: "", language: "", runs: /** @type {any[]} */ ([]) });
  const due = useRef(0);
  useEffect(() => {
    if (!language || text.length > LONGEST_CODE || (coloured.text === text && coloured.language === language)) return undefined;
    let gone = false;
    const colour = (library) => !gone && library.getLanguage(language) && setTimeout(() => {
      if (gone) return;
      const start = performance.now();
      setColoured({ text, language, runs: runsOf(library, text, language) });
      due.current = performance.now() + REST * (performance.now() - start);
    });
    const timer = setTimeout(() => loadHighlighter().then(colour, () => (highlighter = null)), Math.max(0, due.current - performance.now()));
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [text, language]);
  const fits = coloured.language === language && text.startsWith(coloured.text);
  const runs = fits ? [...coloured.runs, ["", text.slice(coloured.text.length)]] : [["", text]];
  return html`<code>${runs.map(([scope, part]) => (scope ? html`<span class=${scope}>${part}</span>` : part))}</code>`;
}

/** The code as [class or "", text]: highlight.js makes a tree of scopes. */
function runsOf(library, text, language) {
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

// ---- formulas --------------------------------------------------------------------------------

/** @type {Promise<any> | null} */
let katex = null;
const loadKatex = () =>
  (katex ??= Promise.all([import("./vendor/katex/katex.mjs"), loadStyle()]).then(([module]) => module.default));

/** The style sheet belongs to it: without, each formula would be seen twice. */
function loadStyle() {
  return new Promise((resolve, reject) => {
    const href = new URL("./vendor/katex/katex.min.css", import.meta.url).href;
    const link = Object.assign(document.createElement("link"), { rel: "stylesheet", href, onload: resolve, onerror: reject });
    document.head.append(link);
  });
}

const OPTIONS = {
  throwOnError: true, strict: "ignore", maxExpand: 500, maxSize: 50,
  /** KaTeX asks for what leads or loads from elsewhere, or sets classes and styles. */
  trust: ({ command }) => {
    throw new Error(`${command} is not allowed here.`);
  },
};

/** A formula; until KaTeX is there, and if it does not understand it, its LaTeX as it was written. */
function Formula({ math, source, display, open }) {
  const place = useElement();
  useLayoutEffect(() => {
    let gone = false;
    const element = place.current;
    if (!element.childElementCount) element.textContent = source;
    if (open || math.length > LONGEST_MATH) {
      element.textContent = source;
      return undefined;
    }
    const set = (library) => setTimeout(() => {
      if (gone) return;
      try {
        const tree = library.__renderToDomTree(math, { ...OPTIONS, displayMode: display });
        carryStyles(tree);
        element.replaceChildren(tree.toNode());
        element.removeAttribute("title");
      } catch (error) {
        element.textContent = source;
        element.title = error.message;
      }
    });
    loadKatex().then(set, () => (katex = null));
    return () => (gone = true);
  }, [math, source, open]);
  return html`<span ref=${place} class=${display ? "math display" : "math"} tabindex=${display ? 0 : null}></span>`;
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
