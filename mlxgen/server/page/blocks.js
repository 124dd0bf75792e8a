// An answer's text as paragraphs and code blocks, the only Markdown that is interpreted.
//
// All of it becomes text nodes. While the text grows, only what changed is updated.

import { copyButton, el, setText } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;

/** The text as a list of {kind: "text" | "code", text, language}. */
export function blocksOf(text) {
  const blocks = [];
  let open = null; // the fence of the code that is being read
  for (const line of text.split("\n")) {
    const fence = FENCE.exec(line);
    if (open && fence && fence[1].startsWith(open) && !fence[2]) {
      open = null;
    } else if (!open && fence) {
      open = fence[1];
      blocks.push({ kind: "code", language: fence[2], lines: [] });
    } else {
      const kind = open ? "code" : "text";
      if (blocks.at(-1)?.kind === kind) blocks.at(-1).lines.push(line);
      else blocks.push({ kind, lines: [line] });
    }
  }
  return blocks
    .map(({ kind, language, lines }) => ({ kind, language, text: lines.join("\n") }))
    .filter(({ kind, text: own }) => kind === "code" || own.trim() !== "");
}

/** Show `text` in `element`, which nothing else may change. */
export function showBlocks(element, text) {
  const blocks = blocksOf(text);
  blocks.forEach((block, k) => {
    const shown = element.children[k];
    if (shown?.dataset.kind === block.kind) setText(shown.querySelector("[data-text]"), block.text);
    else if (shown) shown.replaceWith(blockElement(block));
    else element.append(blockElement(block));
  });
  while (element.childElementCount > blocks.length) element.lastElementChild.remove();
}

function blockElement({ kind, language, text }) {
  if (kind === "text") {
    return el("p", { "data-kind": kind, dir: "auto" }, el("span", { "data-text": true }, text));
  }
  const code = el("code", { "data-text": true }, text);
  const copy = copyButton("Copy", () => code.textContent, { "aria-label": "Copy the code" });
  return el("div", { class: "code", "data-kind": kind },
    el("div", { class: "row" }, el("span", { class: "quiet small" }, language ?? ""), copy),
    el("pre", { tabindex: "0" }, code));
}
