// A tree of nodes drawn into an element: what is there already and need not change is left alone.
//
// Knows the nodes of markdown-tree.js. What an element shows is kept beside it, never read from it.

import { CodeBlock } from "./code-view.js";
import { el } from "./dom.js";
import { MathView } from "./math-view.js";

const shown = new WeakMap(); // the key of an element's node, and the view that draws it, if one does

/** Make `nodes` the children of an element, from the child `start` on. */
export function draw(parent, nodes, start = 0) {
  nodes.forEach((node, k) => {
    const there = parent.childNodes[start + k];
    if (!there) parent.append(made(node));
    else if (!updated(there, node)) there.replaceWith(made(node));
  });
  while (parent.childNodes.length > start + nodes.length) parent.lastChild.remove();
}

function keyOf(node) {
  if (node.code !== undefined) return `code ${node.language}`;
  if (node.math !== undefined) return `math ${node.display}`;
  return `${node.tag} ${JSON.stringify(node.attrs)}`;
}

function made(node) {
  if (typeof node === "string") return document.createTextNode(node);
  const view = viewOf(node);
  const element = view?.element ?? el(node.tag, node.attrs);
  shown.set(element, { key: keyOf(node), view });
  fill(element, view, node);
  return element;
}

function viewOf(node) {
  if (node.code !== undefined) return new CodeBlock(node.language);
  return node.math !== undefined ? new MathView(node.display) : null;
}

function fill(element, view, node) {
  if (view) view.show(node);
  else draw(element, node.children);
}

/** Bring what is there up to date; false if that is not possible. */
function updated(there, node) {
  if (typeof node === "string") return there.nodeType === Node.TEXT_NODE && write(there, node);
  const known = shown.get(there);
  if (known?.key !== keyOf(node)) return false;
  fill(there, known.view, node);
  return true;
}

/** Text that grows is added to, which leaves a selection in it as it is. */
function write(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
  return true;
}
