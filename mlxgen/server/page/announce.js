// What a screen reader is told while an answer grows: whole sentences, as they become complete.

import { plainText } from "./markdown-tree.js";

const SENTENCE = /[\s\S]*[.!?。！？:;\n](?=\s|$)/;
const MOST = 20; // sentences that stay on the page

/** Tells `say(sentence)` what is new of an answer. */
export class Announcer {
  #told = ""; // the beginning of the answer that was said
  #say;

  constructor(say) {
    this.#say = say;
  }

  begin(said) {
    this.#told = said;
    this.#say("Answering.");
  }

  /** Say the sentences that have become complete in `text`, or with `all` whatever is left. */
  grew(text, { all = false } = {}) {
    if (!text.startsWith(this.#told)) this.#told = "";
    const rest = text.slice(this.#told.length);
    const ready = all ? rest : (SENTENCE.exec(rest)?.[0] ?? "");
    if (!ready.trim()) return;
    this.#told += ready;
    const said = plainText(ready).trim();
    if (said) this.#say(said);
  }

  end({ content, problem, finish }) {
    this.grew(content, { all: true });
    if (!problem) this.#say(finish === "stopped" ? "Stopped." : "End of the answer.");
  }
}

/** Follow the answer that grows in the conversation that is shown. */
export function announceAnswers(store, box) {
  const announcer = new Announcer((sentence) => {
    const said = document.createElement("p");
    said.textContent = sentence;
    box.append(said);
    while (box.childElementCount > MOST) box.firstElementChild.remove();
  });
  let growing = /** @type {any} */ (null);
  store.subscribe(() => {
    const { current, runs } = store.state;
    const node = runs.get(current?.id)?.node ?? null;
    if (node && node !== growing) announcer.begin(node.content);
    if (node) announcer.grew(node.content);
    if (!node && growing && current.nodes[growing.id]) announcer.end(growing);
    growing = node;
  });
}
