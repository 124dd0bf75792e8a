// What a person does with the page: each act goes through the session, says what went wrong, and brings the
// focus where it belongs.

import { shownIn } from "./conversation.js";
import { exported, fileName, imported } from "./exchange.js";
import { byId, drawn } from "./html.js";
import { saveLook } from "./kept.js";
import { answering, waitFor } from "./models.js";
import { SAME } from "./session.js";
import { FieldError, formName, reset } from "./settings.js";
import { transcriptOf } from "./transcript.js";

const TYPES = { json: "application/json", md: "text/markdown" };

/** @param {{store: import("./store.js").Store<any>, session: import("./session.js").Session, models: import("./models.js").Models}} page */
export function makeActs({ store, session, models }) {
  const dismiss = (kind) => store.set({ problems: store.state.problems.filter((one) => one.kind !== kind) });
  /** Say what went wrong. A later problem takes the place of one of its kind; the others stay. */
  const tell = (kind, text, action = null) =>
    store.set({ problems: [...store.state.problems.filter((one) => one.kind !== kind), { kind, text, action }] });
  const say = (text, action = null) => store.set({ done: { text, action } });
  const pointAt = (field, message) => store.set({ settingsOpen: true, complaint: { field, message } });

  /** Do something that the settings or the server may refuse, and show what went wrong. */
  async function attempt(work) {
    dismiss("act");
    try {
      await work();
      return true;
    } catch (error) {
      if (error instanceof FieldError) pointAt(error.field, error.message);
      else tell("act", error.message);
      return false;
    }
  }

  const viewOf = (node) => document.querySelector(`.message[data-node="${node.id}"]`);
  /** Show a version of a message, with the focus at the same place in it. */
  async function focusIn(node, place) {
    await drawn();
    /** @type {HTMLElement | null | undefined} */ (viewOf(node)?.querySelector(place))?.focus();
  }
  const sameAgain = (isSame) => isSame && say(SAME);
  const focusBox = async () => {
    await drawn();
    byId("message").focus();
  };
  /** Where the list lies over the conversation, it goes when something is chosen. */
  const closeList = () => store.set({ listOpen: false });

  const acts = {
    attempt, tell, dismiss, pointAt,

    // ---- messages ------------------------------------------------------------------------------

    send(message, ways = 1) {
      store.set({ toEnd: store.state.toEnd + 1 });
      return attempt(() => session.send(message, ways));
    },
    useExample(example) {
      Object.assign(reset(session.current.settings), example.settings);
      session.settingsChanged();
      if (example.tokens) acts.setLook({ tokens: true });
      if (example.ways) store.set({ mapOpen: true });
      acts.send({ text: example.text }, example.ways);
    },
    /** Edit a message in its place; with null, stop editing `before`. */
    editMessage(node, before = null) {
      store.set({ editing: node?.id ?? null });
      if (before) focusIn(before, '[data-act="edit"]');
    },
    editLast() {
      const last = shownIn(session.current).findLast(({ role }) => role === "user");
      if (last) acts.editMessage(last);
      return Boolean(last);
    },
    edit(node, message) {
      store.set({ editing: null });
      return attempt(() => session.edit(node, message));
    },
    giveResults: (node, results) => attempt(() => session.giveResults(node, results)),

    // ---- answers -------------------------------------------------------------------------------

    retry: (node) => attempt(async () => sameAgain(await session.retry(node))),
    fromHere: (node) => attempt(async () => sameAgain(await session.fromHere(node))),
    again: (node, at) => attempt(async () => sameAgain(await session.again(node, at))),
    goOn: (node) => attempt(async () => {
      if (!(await session.goOn(node))) say(`The ${formName(node.settings) || "answer format"} lets nothing follow.`);
    }),
    /** Give an answer another text; resolves to nothing, or to {refused, at}. */
    async retype(node, text, options) {
      try {
        const { node: edited, ...refusal } = await session.retype(node, text, options);
        if (!edited) return refusal;
        focusIn(edited, '[data-act="edit"]');
        return null;
      } catch (error) {
        return { refused: error.message };
      }
    },
    async remove(node) {
      const back = await session.prune([node]);
      await focusBox();
      say("Deleted.", ["Undo", async () => {
        await back();
        focusIn(node, '[data-act="remove"]');
      }]);
    },
    walk(node, by) {
      session.walk(node, by);
      focusIn(session.current.nodes[session.current.chosen[node.parent]], `[data-act="${by > 0 ? "forward" : "back"}"]`);
    },
    showVersion(node) {
      session.show(node);
      focusIn(node, ".tree summary");
    },
    compare: (node, other = null) => store.set({ compared: { node, other } }),
    loadOf: (node, state) => waitFor(state.models, node.settings.model),
    /** Leave the oldest exchanges out, and answer again if `node` failed for that. */
    leaveOut: (node = null) => attempt(async () => {
      const context = answering(store.state.models, session.current.settings.model)?.max_model_len ?? Infinity;
      const count = await session.leaveOut(context);
      if (!count) throw new Error("Even without the exchanges before it, the last one is too long. Make the message shorter.");
      say(`The model does not see the oldest ${count === 1 ? "exchange" : `${count} exchanges`} any more; they stay here.`);
      if (node) await session.retry(node);
    }),
    seeAll: () => session.seeAll(),

    // ---- tokens and the map --------------------------------------------------------------------

    openToken: (node, index, anchor) => store.set({ token: { node, index, anchor } }),
    closeToken({ refocus }) {
      const { token } = store.state;
      if (!token) return;
      store.set({ token: null });
      if (refocus) token.anchor.focus();
    },
    /** Put something else in a token's place; resolves to a sentence if that was refused. */
    async putInstead(index, work) {
      try {
        const { node, refused } = await work();
        if (refused) return refused;
        store.set({ token: null });
        await drawn();
        const token = /** @type {HTMLElement | undefined} */ (viewOf(node)?.querySelectorAll(".token[data-index]")[index]);
        const folded = token?.closest("details");
        if (folded) folded.open = true;
        token?.focus();
        return null;
      } catch (error) {
        return error.message;
      }
    },
    /** Several answers at once from a place; resolves to them. */
    sample(place, settings, count) {
      const heated = { ...settings };
      if (!(Number(settings.temperature) > 0)) heated.temperature = "1"; // others would be the same
      if (settings.seed) heated.seed = String(Math.floor(Math.random() * 2 ** 31));
      return session.sample(place, count, heated);
    },
    sampleFrom(node, at) {
      store.set({ mapOpen: true });
      return attempt(() => acts.sample({ node, at }, node.settings, 4));
    },
    /** Bring a node into sight, and the focus to it: with tokens to that at `at`. */
    async goTo(node, at, { focus }) {
      session.show(node);
      await drawn();
      const tokens = viewOf(node)?.querySelectorAll(".token[data-index]") ?? [];
      const token = at === null ? null : tokens[Math.min(at, tokens.length - 1)];
      const place = /** @type {HTMLElement} */ (token ?? viewOf(node)?.querySelector("article"));
      place?.scrollIntoView({ block: "nearest" });
      if (!focus || !place) return;
      if (!token) place.tabIndex = -1;
      place.focus({ preventScroll: true });
    },

    // ---- conversations -------------------------------------------------------------------------

    startConversation() {
      closeList();
      store.set({ mapOpen: false });
      session.start();
      return focusBox();
    },
    openConversation(id) {
      closeList();
      return session.open(id);
    },
    async openMessage(id, nodeId) {
      closeList();
      await session.open(id);
      const node = session.current.nodes[nodeId];
      if (!node) return;
      session.show(node);
      await drawn();
      seek(viewOf(node));
    },
    rename: (id, title) => session.rename(id, title),
    async removeConversation(id, title) {
      const back = await session.remove(id);
      store.set({ notice: { text: `Deleted “${title}”.`, action: ["Undo", back] } });
    },
    async download(ids, kind) {
      const whole = await session.whole(ids);
      if (!whole.length) return tell("act", "There are no conversations to download.");
      const text = kind === "md" ? whole.map(transcriptOf).join("\n") : exported(whole);
      save(text, fileName(whole.length === 1 ? whole[0].title : "conversations", kind), TYPES[kind]);
    },
    importFiles: (files) => attempt(async () => {
      const found = [];
      for (const file of files) found.push(...imported(await file.text(), file.name));
      if (!found.length) throw new Error("There are no conversations in this file.");
      await session.import(found);
      store.set({ notice: { text: found.length === 1 ? `Imported “${found[0].title}”.` : `Imported ${found.length} conversations.` } });
    }),

    // ---- the page ------------------------------------------------------------------------------

    chooseModel(name) {
      session.current.settings.model = name;
      session.settingsChanged();
      return attempt(() => models.load(name));
    },
    setLook(change) {
      store.set({ look: { ...store.state.look, ...change } });
      saveLook(store.state.look);
    },
    toggleSettings() {
      const settingsOpen = !store.state.settingsOpen;
      store.set({ settingsOpen, complaint: null });
      if (!settingsOpen) byId("show-settings").focus();
    },
    toggleMap() {
      const mapOpen = !store.state.mapOpen;
      store.set({ mapOpen });
      if (!mapOpen) byId("show-map").focus();
    },
    /** Over the conversation, the list is closed at first; beside it, open. */
    async toggleList() {
      const { listOpen, listShut } = store.state;
      if (!isOver()) return store.set({ listShut: !listShut });
      store.set({ listOpen: !listOpen });
      await drawn();
      if (!listOpen) byId("new").focus();
    },
    async search() {
      store.set(isOver() ? { listOpen: true } : { listShut: false });
      await drawn();
      byId("find").focus();
    },
    focusBox,
  };
  return acts;
}

const isOver = () => matchMedia("(max-width: 46rem)").matches; // as in style.css

/** Bring a message into view, and mark it until something else is done. */
function seek(element) {
  if (!element) return;
  element.scrollIntoView({ block: "center" });
  element.classList.add("sought");
  for (const event of ["pointerdown", "keydown"]) addEventListener(event, () => element.classList.remove("sought"), { once: true });
}

/** Give the browser a file to keep. */
function save(text, name, type) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000); // the download has begun by then
}
