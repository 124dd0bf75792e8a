// What a screen reader is told while an answer grows: whole sentences, as they become complete.

import { byId, el } from "./dom.js";
import { plainText } from "./markdown-tree.js";

const SENTENCE = /[\s\S]*[.!?。！？:;\n](?=\s|$)/;

let told = ""; // the beginning of the answer that was said

export function announce(text) {
  const box = byId("announcer");
  box.append(el("p", {}, text));
  while (box.childElementCount > 20) box.firstElementChild.remove();
}

export function announceStart(said) {
  told = said;
  announce("Answering.");
}

/** Say the sentences that have become complete in `text`, or with `all` whatever is left. */
export function announceText(text, { all = false } = {}) {
  if (!text.startsWith(told)) told = "";
  const rest = text.slice(told.length);
  const ready = all ? rest : (SENTENCE.exec(rest)?.[0] ?? "");
  if (!ready.trim()) return;
  told += ready;
  const said = plainText(ready).trim();
  if (said) announce(said);
}
