// The conversations and the answers in progress, without the page: opening, keeping, generating.
//
// The store has the list of conversations, the one that is shown, and the answers in progress. What is
// opened stays loaded, is changed at once, and is written to the database soon after. Each conversation has
// one answer in progress at most, which continues while another conversation is shown.

import { post } from "./api.js";
import { add, messagesFor, newConversation, newId, pathOf, prune, putBack, select, twinOf } from "./conversation.js";
import { isFull } from "./database.js";
import { findIn, saidIn } from "./finding.js";
import { loadStart } from "./kept.js";
import { endThere, isEnd, refusalOf, Run } from "./run.js";
import { bodyOf, fieldOfParam } from "./settings.js";

const SOON = 1000; // milliseconds of an answer that grows, after which it is written
const REST = 10; // times what writing it took, the next time waits

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {import("./conversation.js").Node} Node */

export class Session {
  #store;
  #database;
  #loaded = new Map(); // by id
  #dirty = new Map(); // by id: the timer after which it is written
  #texts = new Map(); // by id: {changed, texts}, for the search
  #cost = new Map(); // by id: milliseconds that writing it took
  #tell;
  #wanted = ""; // the conversation that was opened last, which may still be loading

  /** `tell(kind, sentence)` says what happens without being asked for: a conversation that could not be
   *  written, one that cannot be read, or that another tab has changed. */
  constructor(store, database, tell) {
    this.#store = store;
    this.#database = database;
    this.#tell = tell;
    database.onChangedElsewhere((id) => this.#reload(id));
  }

  /** Show what is stored: the conversation `id` if there is one, else the newest, or a new one. */
  async begin(id, { anew }) {
    this.#store.set({ conversations: await this.#database.heads() });
    if (anew) return this.start();
    if (id && (await this.open(id))) return;
    await this.#openNewest();
  }

  get keepsNothing() {
    return this.#database.keepsNothing;
  }

  get #heads() {
    return this.#store.state.conversations;
  }

  /** The conversation that is shown. @returns {Conversation} */
  get current() {
    return this.#store.state.current;
  }

  // ---- conversations -------------------------------------------------------------------------

  #show(conversation) {
    this.#wanted = conversation.id;
    this.#loaded.set(conversation.id, conversation);
    this.#store.set({ current: conversation });
  }

  /** Begin another conversation, with the settings for that; the model stays the one that was chosen. */
  start() {
    this.#show(newConversation({ ...loadStart(), model: this.current.settings.model }));
  }

  /** Show a conversation, after it is loaded; resolves to whether it could be. */
  async open(id) {
    this.#wanted = id;
    const opened = await this.#read(id);
    if (this.#wanted === id && opened) this.#show(opened);
    return Boolean(opened);
  }

  async #openNewest() {
    for (const { id } of this.#heads) if (await this.open(id)) return;
    this.start();
  }

  /** A conversation with its nodes; null if it is gone, or was set aside. */
  async #read(id) {
    if (this.#loaded.has(id)) return this.#loaded.get(id);
    const before = this.#database.setAside;
    const read = await this.#database.read(id);
    if (read) this.#loaded.set(id, read);
    else this.#store.set({ conversations: this.#heads.filter((head) => head.id !== id) });
    if (this.#database.setAside > before) this.tellOfSetAside();
    return read;
  }

  /** Say how many stored conversations could not be read, if any. */
  tellOfSetAside() {
    const count = this.#database.setAside;
    if (!count) return;
    const what = count === 1 ? "A stored conversation cannot be read and was" : `${count} stored conversations cannot be read and were`;
    this.#tell("aside", `${what} set aside. The others are unaffected.`,
      [count === 1 ? "Delete it" : "Delete them", () => this.#database.removeSetAside()]);
  }

  /** Delete a conversation; resolves to a function that undoes it. */
  async remove(id) {
    const removed = await this.#read(id);
    const isShown = this.current.id === id;
    this.runOf(removed)?.stop();
    clearTimeout(this.#dirty.get(id));
    this.#dirty.delete(id);
    this.#loaded.delete(id);
    this.#store.set({ conversations: this.#heads.filter((head) => head.id !== id) });
    const written = this.#database.remove(id);
    if (isShown) await this.#openNewest();
    await written;
    return async () => {
      await this.#take(removed);
      if (isShown) await this.open(id);
    };
  }

  /** Have a conversation loaded, listed and written. */
  #take(conversation) {
    this.#loaded.set(conversation.id, conversation);
    this.#list(conversation);
    return this.#write(conversation);
  }

  async rename(id, title) {
    const conversation = await this.#read(id);
    if (conversation) await this.#take(Object.assign(conversation, { title }));
  }

  /** Everything that the browser keeps. */
  async stored() {
    await this.keepAll();
    const heads = await this.#database.heads();
    return Promise.all(heads.map(({ id }) => this.#database.read(id)));
  }

  /** Conversations with all that there is of them. */
  async whole(ids) {
    const found = await Promise.all(ids.map((id) => this.#loaded.get(id) ?? this.#database.read(id)));
    return found.filter((one) => one && Object.keys(one.nodes).length);
  }

  /** Add conversations and show the first; one that is here already becomes another one. */
  async import(conversations) {
    const known = new Set(this.#heads.map(({ id }) => id));
    for (const one of conversations) {
      if (known.has(one.id)) one.id = newId();
      known.add(one.id);
      await this.#take(one);
    }
    await this.open(conversations[0].id);
  }

  /** What is found in titles and texts, by conversation. */
  async search(pattern) {
    const found = new Map();
    for (const head of this.#heads) {
      const result = findIn(head.title, await this.#textsOf(head), pattern);
      if (result) found.set(head.id, result);
    }
    return found;
  }

  /** The texts of a conversation as [node's id, text]; of one that is not loaded, read once for each change. */
  async #textsOf({ id, changed }) {
    const known = this.#texts.get(id);
    if (known?.changed === changed && !this.#loaded.has(id)) return known.texts;
    const { nodes } = this.#loaded.get(id) ?? (await this.#database.read(id)) ?? { nodes: {} };
    const texts = Object.values(nodes).map((node) => [node.id, saidIn(node)]);
    this.#texts.set(id, { changed, texts });
    return texts;
  }

  // ---- keeping -------------------------------------------------------------------------------

  /** Put a conversation where it belongs in the list. */
  #list({ id, title, changed }) {
    const others = this.#heads.filter((head) => head.id !== id);
    const conversations = [...others, { id, title, changed }].sort((one, other) => other.changed - one.changed);
    this.#store.set({ conversations });
  }

  /** Write a conversation a moment after a change; while an answer grows, after more of it has come. */
  #keep(conversation, after = 0) {
    const { id } = conversation;
    const head = this.#heads.find((one) => one.id === id);
    if (!head && !Object.keys(conversation.nodes).length) return;
    if (head?.changed !== conversation.changed) this.#list(conversation);
    if (this.#dirty.has(id) && after) return;
    clearTimeout(this.#dirty.get(id));
    const rest = Math.max(after, REST * (this.#cost.get(id) ?? 0));
    this.#dirty.set(id, setTimeout(() => this.#write(conversation), rest));
  }

  async #write(conversation) {
    const { id } = conversation;
    clearTimeout(this.#dirty.get(id));
    this.#dirty.delete(id);
    const start = performance.now();
    try {
      const written = this.#database.write(conversation);
      this.#cost.set(id, performance.now() - start);
      await written;
    } catch (error) {
      this.#tell("full", isFull(error) ? "This browser has no room left for conversations. Delete some to keep this one."
        : `This conversation could not be stored: ${error.message}`);
    }
  }

  /** Write what is not written yet, at once: the page may be left. */
  keepAll() {
    return Promise.all([...this.#dirty.keys()].map((id) => this.#write(this.#loaded.get(id))));
  }

  /** Another tab has written a conversation: what is written last stays. */
  async #reload(id) {
    const ours = this.#dirty.has(id) || this.#store.state.runs.has(id);
    const heads = await this.#database.heads();
    const unsaved = this.#heads.filter((head) => this.#dirty.has(head.id) && !heads.some((one) => one.id === head.id));
    this.#store.set({ conversations: [...unsaved, ...heads] });
    if (!this.#loaded.has(id)) return;
    if (ours) {
      this.#tell("tabs", "Another tab has changed this conversation. What is written last stays, which will be this tab's.");
      return;
    }
    this.#loaded.delete(id);
    if (this.current.id !== id) return;
    const read = await this.#database.read(id);
    if (!read || this.current.id !== id) return; // what another tab deletes stays as long as it is shown
    this.#show(read);
    this.#tell("tabs", "Another tab has changed this conversation; this is what it wrote.");
  }

  settingsChanged() {
    this.#store.touch(this.current.settings);
    if (Object.keys(this.current.nodes).length) this.#keep(this.current);
  }

  /** Something of a conversation was changed in place. */
  changed(conversation = this.current) {
    conversation.changed = Date.now();
    this.#keep(conversation);
    this.#store.touch(conversation);
  }

  /** Show a node, and what leads to it. */
  show(node) {
    const { current } = this;
    if (!current.nodes[node.id]) return; // it was deleted since it was listed
    select(current, node);
    this.#keep(current);
    this.#store.touch(current);
  }

  // ---- answers -------------------------------------------------------------------------------

  runOf(conversation) {
    return this.#store.state.runs.get(conversation?.id) ?? null;
  }

  stop() {
    this.runOf(this.current)?.stop();
  }

  /** End what is in progress; before that, throw `FieldError` if the settings are invalid.
   *  @param {import("./conversation.js").Settings | null} settings */
  async halt(settings = null) {
    if (settings) bodyOf(settings);
    const run = this.runOf(this.current);
    run?.stop();
    await run?.ended;
  }

  /** Add answers, show the first and generate them; resolves at their end. What `more` has takes the place of
   *  fields of the request. */
  run(nodes, more = {}) {
    const { current } = this;
    this.#addAll(current, nodes);
    const run = this.#newRun(current, nodes);
    const done = run.start(more).then(() => run.done).catch((error) => {
      const [node] = nodes;
      node.finish = error.name === "AbortError" ? "stopped" : "error";
      if (node.finish === "stopped") return;
      node.problem = error.message;
      node.setting = fieldOfParam(error.param, node.settings);
      if (error.code === "context_length_exceeded") node.full = true;
    });
    return this.follow(current, run, done);
  }

  /** The same, but only if the server goes on from the tokens that the answers begin with: else nothing is
   *  changed. Resolves, as soon as that is decided, to null or to why not, as `refusalOf` says it. */
  async take(nodes) {
    const { current } = this;
    const [node] = nodes;
    const run = this.#newRun(current, nodes);
    try {
      await run.start();
    } catch (error) {
      const path = pathOf(current, node);
      const refused = refusalOf(error, node, path);
      if (refused) return refused;
      if (!node.tokens.length || !isEnd(error, path)) throw error;
      endThere(current, node);
    }
    this.#addAll(current, nodes);
    if (run.done) this.follow(current, run);
    else this.changed(current);
    return null;
  }

  /** Follow something that grows answers to its end, and resolve then. It has the answers in progress as
   *  `nodes`, the one to show as `node`, `done` and `stop()`, like a `Run`. */
  follow(conversation, run, done = run.done) {
    this.#setRun(conversation, run);
    this.changed(conversation);
    run.ended = done.then(() => {
      // Of several, those that never began are not kept.
      prune(conversation, run.nodes.slice(1).filter((node) => !node.tokens.length));
      if (this.runOf(conversation) === run) this.#setRun(conversation, null);
      this.#store.touch(...run.nodes);
      if (this.#loaded.get(conversation.id) === conversation) this.changed(conversation);
    });
    return run.ended;
  }

  /** Whether an answer came out the same as another one; then that is shown, and it is not kept. */
  isTwin(conversation, node) {
    const twin = ["stop", "length"].includes(node.finish) && twinOf(conversation, node);
    if (!twin || !conversation.nodes[node.id]) return false;
    prune(conversation, [node]);
    select(conversation, twin);
    this.changed(conversation);
    return true;
  }

  /** Take nodes and all below them out of the conversation; resolves to a function that puts them back. */
  async prune(nodes) {
    await this.halt();
    const { current } = this;
    const pruned = prune(current, nodes);
    this.changed(current);
    return async () => {
      if (this.current !== current) await this.open(current.id);
      await this.halt();
      putBack(current, pruned);
      this.changed(current);
    };
  }

  /** How many tokens the conversation up to a node has, as the model sees it, and then a message `text`. */
  async count(last, text = "") {
    const { settings } = this.current;
    const { model, tools, chat_template_kwargs } = bodyOf(settings);
    const messages = messagesFor(this.current, { parent: last?.id ?? "", settings });
    if (text) messages.push({ role: "user", content: text });
    if (!messages.length) return 0;
    return (await post("/tokenize", { model, messages, tools, chat_template_kwargs, add_generation_prompt: Boolean(text) })).count;
  }

  /** An answer has grown, or the conversation by more than that. */
  grew(conversation, ...nodes) {
    this.#keep(conversation, SOON);
    this.#store.grew(...(nodes.length ? nodes : [conversation]));
  }

  #addAll(conversation, nodes) {
    for (const node of nodes) add(conversation, node);
    select(conversation, nodes[0]);
  }

  #newRun(conversation, nodes) {
    return new Run(conversation, nodes, (node) => {
      if (conversation.nodes[node.id]) this.grew(conversation, node); // else a fork that is not decided yet
    });
  }

  #setRun(conversation, run) {
    const runs = new Map(this.#store.state.runs);
    if (run) runs.set(conversation.id, run);
    else runs.delete(conversation.id);
    this.#store.set({ runs });
  }
}
