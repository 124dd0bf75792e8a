// What a person does with the page: each act changes the conversation, says what went wrong, and brings the
// focus where it belongs.

import { continuing, withIds } from "./api.js";
import {
  add, answerNode, branch, branchAt, byHand, childrenOf, forkAgain, forkAt, ownerOf, parentOf, pathOf, shownIn, siblingsOf, toolNode, userNode,
} from "./conversation.js";
import { exported, fileName, imported, transcriptOf } from "./exchange.js";
import { byId } from "./html.js";
import { saveLook } from "./kept.js";
import { answering, loadModel, waitFor } from "./models.js";
import { meantBy, planOf, putByHand, typedFrom } from "./records.js";
import { prepareToGoOn } from "./run.js";
import { anew, anySeed, FieldError, formName, reset } from "./settings.js";
import { drawn } from "./store.js";

const TYPES = { json: "application/json", md: "text/markdown" };
const FULL = 0.75; // of the context that a conversation may have once its oldest exchanges are left out
const SAME = "It came out the same, so there is no other version. With a higher temperature, it can differ.";

/** A button beside a sentence: its label, and what it does. @typedef {[string, () => void] | null} Action */

/** @param {{store: import("./store.js").Store<any>, session: import("./session.js").Session}} page */
export function makeActs({ store, session }) {
  const dismiss = (kind) => store.set({ problems: store.state.problems.filter((one) => one.kind !== kind) });
  /** Say what went wrong. A later problem takes the place of one of its kind; the others stay.
   *  @param {string} kind @param {string} text @param {Action} action */
  const tell = (kind, text, action = null) =>
    store.set({ problems: [...store.state.problems.filter((one) => one.kind !== kind), { kind, text, action }] });
  /** @param {string} text @param {Action} action */
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

  /** A part of a message on the page, after it is drawn. @returns {Promise<HTMLElement | null>} */
  async function partOf(node, place) {
    await drawn();
    return document.querySelector(`.message[data-node="${node.id}"] ${place}`);
  }
  /** Show a version of a message, with the focus at the same place in it. */
  const focusIn = async (node, place) => (await partOf(node, place))?.focus();
  const focusBox = async () => {
    await drawn();
    byId("message").focus();
  };
  /** The list, where it lies over the conversation, goes when something is chosen. */
  const closeList = () => store.set({ listOpen: false });

  /** Add a message, and answer it. */
  const ask = (message, ways = 1) => attempt(async () => {
    const { current } = session;
    await session.halt(current.settings);
    const asked = message(current);
    add(current, asked);
    session.run(Array.from({ length: ways }, () => answerNode(asked, current.settings)));
  });
  /** Generate another answer, unless it comes out the same as one that is there. */
  const another = (make) => attempt(async () => {
    const { current } = session;
    await session.halt(current.settings);
    const node = await make(current);
    if (!current.nodes[node.id]) await session.run([node]);
    await session.runOf(current)?.ended;
    if (session.isTwin(current, node)) say(SAME);
  });
  /** Answers that grow from a place at once, as in `branch`; throws if the server does not take that. */
  async function sample(place, settings, count) {
    await session.halt(settings);
    const nodes = Array.from({ length: count }, () => branch(session.current, place, settings));
    const refusal = await session.take(nodes);
    if (refusal) throw new Error(refusal.refused);
    return nodes;
  }

  const acts = {
    attempt, tell, dismiss, pointAt, focusBox,

    // ---- messages ------------------------------------------------------------------------------

    send(message, ways = 1) {
      store.set({ toEnd: store.state.toEnd + 1 });
      return ask((current) => userNode(shownIn(current).at(-1) ?? null, message), ways);
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
    async edit(node, message) {
      // What is typed stays as long as the settings do not allow to ask it.
      if (await ask((current) => userNode(parentOf(current, node), message))) store.set({ editing: null });
    },
    giveResults: (node, results) => ask(() => toolNode(node, results)),

    // ---- answers -------------------------------------------------------------------------------

    /** A wholly new answer to the same message. */
    retry: (node) => another((current) => {
      // An answer that never began is not kept.
      if (node.finish === "error" && !node.tokens.length && !childrenOf(current, node).length) delete current.nodes[node.id];
      return answerNode(parentOf(current, node), current.settings);
    }),
    /** Whether tokens of an answer were chosen by hand or typed. */
    hasChoice: (node) => Boolean(node.from || byHand(node)),
    /** What was chosen by hand or typed, and what follows it anew. */
    fromHere: (node) => another((current) => forkAgain(current, node)),
    /** An answer anew from the token `at` on. */
    again: (node, at) => another(async (current) => (await sample({ node, at }, anew(node.settings, current.settings), 1))[0]),
    /** Continue an answer where it ended. One of which only the text is known is continued in another version. */
    goOn: (node) => attempt(async () => {
      const { current } = session;
      await session.halt();
      if (!pathOf(current, node).length) {
        const refusal = await acts.retype(node, node.content, { goOn: true });
        if (refusal) throw new Error(refusal.refused);
        return;
      }
      const more = prepareToGoOn(current, node);
      const before = node.tokens.length;
      await session.run([node], more);
      if (node.tokens.length === before && node.finish === "stop") say(`The ${formName(node.settings) || "answer format"} lets nothing follow.`);
    }),
    /** Give an answer another text: what is unchanged at its beginning keeps its tokens. The edited one is another
     *  version, from whose end the model goes on, or which ends there. Resolves, as soon as that is decided, to
     *  nothing or to {refused: sentence, at: place in the text}. */
    async retype(node, text, { goOn, isAnew = false }) {
      try {
        await session.halt();
        const { current } = session;
        const settings = isAnew ? anew(node.settings, current.settings) : node.settings;
        const path = pathOf(current, node);
        const plan = planOf(path, text);
        const { at, typed } = typedFrom(path, plan, plan.rest ? await continuing(plan.rest, settings.model) : []);
        const edited = branch(current, { node, at }, settings, typed);
        if (typed.length) edited.edited = true;
        if (goOn) {
          const refusal = await session.take([edited]);
          if (refusal) return refusal;
        } else {
          Object.assign(edited, { finish: "stop", edited: true });
          add(current, edited);
          session.changed(current);
        }
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
    /** Show the version before or after one, going around. */
    walk(node, by) {
      const siblings = siblingsOf(session.current, node);
      const next = siblings.at((siblings.indexOf(node) + by) % siblings.length);
      session.show(next);
      focusIn(next, `[data-act="${by > 0 ? "forward" : "back"}"]`);
    },
    showVersion(node) {
      session.show(node);
      focusIn(node, ".tree summary");
    },
    compare: (node, other = null) => store.set({ compared: { node, other } }),
    loadOf: (node, state) => waitFor(state.models, node.settings.model),
    /** Leave the oldest exchanges out of what the model sees, and answer again if `node` failed for that. */
    leaveOut: (node = null) => attempt(async () => {
      const { current } = session;
      const context = answering(store.state.models, current.settings.model)?.max_model_len ?? Infinity;
      const shown = shownIn(current);
      const asked = shown.filter(({ role }) => role === "user");
      const before = current.after;
      const from = Math.max(0, asked.findIndex(({ id }) => id === before));
      for (let k = from + 1; k < asked.length; k += 1) {
        current.after = asked[k].id;
        if (k < asked.length - 1 && (await session.count(shown.at(-1))) > FULL * context) continue;
        session.changed(current);
        say(`The model does not see the oldest ${k - from === 1 ? "exchange" : `${k - from} exchanges`} any more; they stay here.`);
        if (node) await acts.retry(node);
        return;
      }
      current.after = before;
      throw new Error("Even without the exchanges before it, the last one is too long. Make the message shorter.");
    }),
    /** Let the model see all of the conversation again. */
    seeAll() {
      delete session.current.after;
      session.changed();
    },

    // ---- tokens and the map --------------------------------------------------------------------

    openToken: (node, index, anchor) => store.set({ token: { node, index, anchor } }),
    closeToken({ refocus }) {
      const { token } = store.state;
      if (!token) return;
      store.set({ token: null });
      if (refocus) token.anchor.focus();
    },
    /** Put something else in a token's place: the id of an alternative, or what was typed. Resolves, as soon as
     *  that is decided, to nothing or to a sentence that says why it is not allowed. */
    async putInstead({ node, index }, what) {
      try {
        const { current } = session;
        const isAlternative = typeof what === "number";
        const pieces = isAlternative ? [{ id: what }] : await piecesOf(what, node.settings.model);
        if (session.current !== current) return "Another conversation was opened meanwhile.";
        const ids = pieces.map(({ id }) => id);
        let shown = branchAt(current, node, index, ids);
        if (shown) session.show(shown);
        else {
          await session.halt();
          const path = pathOf(current, node);
          shown = isAlternative ? forkAt(current, node, index, what)
            : branch(current, { node, at: index }, node.settings, putByHand(path.slice(0, index), pieces, path[index], 2));
          const refusal = await session.take([shown]);
          if (refusal) {
            if (ids.length === 1) path[index].x = [...new Set([...(path[index].x ?? []), ids[0]])]; // it is crossed out
            store.touch(ownerOf(current, node, index));
            session.changed(current);
            return refusal.refused;
          }
        }
        store.set({ token: null });
        const token = await partOf(shown, `.token[data-index="${index}"]`);
        const folded = token?.closest("details");
        if (folded) folded.open = true;
        token?.focus();
        return null;
      } catch (error) {
        return error.message;
      }
    },
    /** Several answers at once from a place; resolves to them, or throws. */
    sample(place, settings, count) {
      const heated = { ...settings };
      if (!(Number(settings.temperature) > 0)) heated.temperature = "1"; // others would be the same
      if (settings.seed) heated.seed = anySeed();
      return sample(place, heated, count);
    },
    sampleFrom(node, at) {
      store.set({ mapOpen: true });
      return attempt(() => acts.sample({ node, at }, node.settings, 4));
    },
    /** Bring a node into sight, and the focus to it: with tokens to that at `at`. */
    async goTo(node, at, { focus }) {
      session.show(node);
      const view = await partOf(node, "");
      const tokens = view?.querySelectorAll(".token[data-index]") ?? [];
      const token = at === null ? null : tokens[Math.min(at, tokens.length - 1)];
      const place = /** @type {HTMLElement} */ (token ?? view?.querySelector("article"));
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
      seek(await partOf(node, ""));
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
      return attempt(() => loadModel(store, name));
    },
    setLook(change) {
      store.set({ look: { ...store.state.look, ...change } });
      saveLook(store.state.look);
    },
    /** Open or close the settings or the map; the focus goes back to the button. @param {"settings" | "map"} panel */
    toggle(panel) {
      const open = !store.state[`${panel}Open`];
      store.set({ [`${panel}Open`]: open, complaint: null });
      if (!open) byId(`show-${panel}`).focus();
    },
    /** Over the conversation, the list is closed at first; beside it, open. */
    async toggleList() {
      const { listOpen, listShut, narrow } = store.state;
      if (!narrow) return store.set({ listShut: !listShut });
      store.set({ listOpen: !listOpen });
      await drawn();
      if (!listOpen) byId("new").focus();
    },
    async search() {
      store.set(store.state.narrow ? { listOpen: true } : { listShut: false });
      await drawn();
      byId("find").focus();
    },
  };
  return acts;
}

/** The tokens of a model that are meant by what is typed, as [{id, piece}]; throws with a sentence if there are none. */
async function piecesOf(typed, model) {
  const meant = meantBy(typed);
  if (!meant) throw new Error("Type a token or a text first.");
  return meant.ids ? withIds(meant.ids, model) : continuing(meant.text, model);
}

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
