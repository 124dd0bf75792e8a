// What can be done with the conversations of the list: deleting and its undo, files, and searching.

import { el } from "./dom.js";
import { exported, fileName, imported } from "./exchange.js";
import { findIn } from "./finding.js";
import { transcriptOf } from "./transcript.js";

const TYPES = { json: "application/json", md: "text/markdown" };

/** The acts of the sidebar that need no more than the session; `refuse(sentence)` says what went wrong. */
export function libraryActs({ session, notice, render, refuse }) {
  return {
    async removeConversation(id) {
      const removed = await session.remove(id);
      render();
      const undo = () => session.restore(removed);
      notice.say(`Deleted “${removed.conversation.title || "New conversation"}”.`, ["Undo", undo], () => session.purge(id));
    },
    renameConversation: (id, title) => session.rename(id, title),
    async download(ids, kind) {
      const whole = await session.whole(ids);
      if (!whole.length) return refuse("There are no conversations to download.");
      const text = kind === "md" ? whole.map(transcriptOf).join("\n") : exported(whole);
      save(text, fileName(whole.length === 1 ? whole[0].title : "conversations", kind), TYPES[kind]);
    },
    async importFiles(files) {
      try {
        const found = [];
        for (const file of files) found.push(...imported(await file.text(), file.name));
        if (!found.length) return refuse("There are no conversations in this file.");
        await session.import(found);
        notice.say(found.length === 1 ? `Imported “${found[0].title}”.` : `Imported ${found.length} conversations.`);
      } catch (error) {
        refuse(error.message);
      }
    },
    async search(pattern) {
      const texts = await session.texts();
      const found = new Map();
      for (const { id, title } of session.conversations) {
        const result = findIn(title, texts.get(id) ?? [], pattern);
        if (result) found.set(id, result);
      }
      return found;
    },
  };
}

/** Give the browser a file to keep. */
function save(text, name, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the download has begun by then
}
