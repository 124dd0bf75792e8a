// What a screen reader is told while an answer grows: whole sentences, as they become complete.

import { plainText } from "./markdown-tree.js";

const SENTENCE = /[\s\S]*[.!?。！？:;\n](?=\s|$)/;

/** A function that is given the answer that grows, or null, after every change, and tells `say(sentence)` what is
 *  new of it. `isShown(answer)` says whether one that has ended is still shown. */
export function announcer(say, isShown) {
  let growing = /** @type {any} */ (null);
  let told = ""; // the beginning of the answer that was said
  /** Say the sentences that have become complete, or with `all` whatever is left. */
  const grew = (text, all) => {
    if (!text.startsWith(told)) told = "";
    const rest = text.slice(told.length);
    const ready = all ? rest : (SENTENCE.exec(rest)?.[0] ?? "");
    told += ready;
    const said = plainText(ready).trim();
    if (said) say(said);
  };
  return (node) => {
    if (node && node !== growing) {
      told = node.content;
      say("Answering.");
    }
    if (node) grew(node.content, false);
    else if (growing && isShown(growing)) {
      grew(growing.content, true);
      if (!growing.problem) say(growing.finish === "stopped" ? "Stopped." : "End of the answer.");
    }
    growing = node;
  };
}
