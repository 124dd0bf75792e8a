// Everything that a person can do with conversations and answers, without the page.
//
// The store has the list of conversations, the one that is shown, and the answers in progress. What is
// opened stays loaded, is changed at once, and is written to the database soon after. Each conversation has
// one answer in progress at most, which continues while another conversation is shown.

import { continuing, post } from "./api.js";
import {
  add, answerNode, branchAt, byHand, childrenOf, commonLength, forkAgain, forkAt, forkTyped, messagesFor, newConversation, newId,
  ownerOf, parentOf, pathOf, retypedAt, select, shownIn, siblingsOf, sproutAt, toolNode, twinOf, userNode,
} from "./conversation.js";
import { isFull } from "./database.js";
import { findIn, saidIn } from "./finding.js";
import { loadStart } from "./kept.js";
import { prune, putBack } from "./pruning.js";
import { planOf, typedFrom } from "./retyped.js";
import { editRefusal, endThere, isEnd, prepareToGoOn, refusalOf, Run } from "./run.js";
import { anew, bodyOf, fieldOfParam } from "./settings.js";
import { tokensOf } from "./typed.js";

const SOON = 1000; // milliseconds of an answer that grows, after which it is written
const REST = 10; // times what writing it took, the next time waits
const FULL = 0.75; // of the context that a conversation may have once its oldest exchanges are left out

export const SAME = "It came out the same, so there is no other version. With a higher temperature, it can differ.";

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
  async begin(id, { anew: isNew }) {
    this.#store.set({ conversations: await this.#database.heads() });
    if (isNew) return this.start();
    if (id && (await this.open(id))) return;
    for (const head of this.#heads) if (await this.open(head.id)) return;
    this.start();
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
    const { model = "" } = this.current?.settings ?? {};
    this.#show(newConversation({ ...loadStart(), model }));
  }

  /** Show a conversation, after it is loaded; resolves to whether it could be. */
  async open(id) {
    this.#wanted = id;
    const opened = this.#loaded.get(id) ?? (await this.#read(id));
    if (this.#wanted === id && opened) this.#show(opened);
    return Boolean(opened);
  }

  /** A conversation with its nodes; null if it is gone, or was set aside. */
  async #read(id) {
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
    const removed = this.#loaded.get(id) ?? (await this.#read(id));
    const [head, isShown] = [this.#heads.find((one) => one.id === id), this.current.id === id];
    this.runOf(removed)?.stop();
    clearTimeout(this.#dirty.get(id));
    this.#dirty.delete(id);
    this.#loaded.delete(id);
    this.#store.set({ conversations: this.#heads.filter((one) => one !== head) });
    const written = this.#database.remove(id);
    if (isShown && !(this.#heads.length && (await this.open(this.#heads[0].id)))) this.start();
    await written;
    return async () => {
      this.#loaded.set(id, removed);
      this.#list(removed);
      if (isShown) await this.open(id);
      await this.#write(removed);
    };
  }

  async rename(id, title) {
    const conversation = this.#loaded.get(id) ?? (await this.#read(id));
    if (!conversation) return;
    conversation.title = title;
    this.#list(conversation);
    await this.#write(conversation);
  }

  /** Everything that the browser keeps. */
  async stored() {
    await this.keepAll();
    const heads = await this.#database.heads();
    return Promise.all(heads.map(({ id }) => this.#database.read(id)));
  }

  /** Conversations with all that there is of them. */
  async whole(ids) {
    await this.keepAll();
    const found = [];
    for (const id of ids) found.push(this.#loaded.get(id) ?? (await this.#database.read(id)));
    return found.filter((one) => one && Object.keys(one.nodes).length);
  }

  /** Add conversations and show the first; one that is here already becomes another one. */
  async import(conversations) {
    const known = new Set(this.#heads.map(({ id }) => id));
    for (const one of conversations) {
      if (known.has(one.id)) one.id = newId();
      known.add(one.id);
      this.#loaded.set(one.id, one);
      this.#list(one);
      await this.#write(one);
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
    if (!Object.keys(conversation.nodes).length && !this.#heads.some((head) => head.id === id)) return;
    const head = this.#heads.find((one) => one.id === id);
    if (head?.changed !== conversation.changed || head.title !== conversation.title) this.#list(conversation);
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

  // ---- answers -------------------------------------------------------------------------------

  runOf(conversation) {
    return this.#store.state.runs.get(conversation?.id) ?? null;
  }

  stop() {
    this.runOf(this.current)?.stop();
  }

  /** Send a message, {text, files, images}, for one answer or several at once; throws `FieldError`
   *  before anything changes if the settings are invalid. */
  async send(message, ways = 1) {
    await this.#ready();
    this.#ask(userNode(shownIn(this.current).at(-1) ?? null, message), ways);
  }

  async edit(node, message) {
    await this.#ready();
    this.#ask(userNode(parentOf(this.current, node), message));
  }

  async giveResults(node, results) {
    await this.#ready();
    this.#ask(toolNode(node, results));
  }

  /** Another answer to the same message, from the start. Resolves, at its end, to whether it came out the
   *  same as one that is there, and was not kept. */
  async retry(node) {
    await this.#ready();
    const { current } = this;
    // An answer that never began is not kept.
    if (node.finish === "error" && !node.tokens.length && !childrenOf(current, node).length) delete current.nodes[node.id];
    return this.#another(answerNode(parentOf(current, node), current.settings));
  }

  /** The same fork again: the tokens that were chosen by hand or typed, and what follows them anew. */
  async fromHere(node) {
    await this.#ready();
    return this.#another(forkAgain(this.current, node));
  }

  /** Whether tokens of an answer were chosen by hand or typed. */
  hasChoice(node) {
    return Boolean(node.from || byHand(node));
  }

  async #another(node) {
    const { current } = this;
    add(current, node);
    await this.#run([node]);
    return this.#isTwin(current, node);
  }

  /** Whether an answer came out the same as another one; then that is shown, and it is not kept. */
  #isTwin(conversation, node) {
    const twin = ["stop", "length"].includes(node.finish) && twinOf(conversation, node);
    if (!twin || !conversation.nodes[node.id]) return false;
    prune(conversation, [node]);
    select(conversation, twin);
    this.#changed(conversation);
    return true;
  }

  /** Continue an answer where it ended. Resolves to whether anything followed. One of which only the text
   *  is known is continued in another version. */
  async goOn(node) {
    await this.#halt();
    if (!pathOf(this.current, node).length) {
      const { refused } = await this.retype(node, node.content, { goOn: true });
      if (refused) throw new Error(refused);
      return true;
    }
    const more = prepareToGoOn(this.current, node);
    const before = node.tokens.length;
    await this.#run([node], more);
    return node.tokens.length > before || node.finish !== "stop";
  }

  /** Draw an answer anew from the token `at` on. Resolves, at its end, to whether it came out the same. */
  async again(node, at) {
    const { current } = this;
    const [other] = await this.sample({ node, at }, 1, anew(node.settings, current.settings));
    await this.runOf(current)?.ended;
    const [one, two] = [node, other].map((each) => pathOf(current, each));
    return this.#isTwin(current, other) || (one.length === two.length && commonLength(one, two) === one.length);
  }

  /** Give an answer another text: what is unchanged at its beginning keeps its tokens. The edited one is
   *  another version, from whose end the model goes on, or which ends there. Resolves to {node} as
   *  soon as that is decided, or to {refused: sentence, at: place in the text}. */
  async retype(node, text, { goOn, isAnew = false }) {
    await this.#halt();
    const { current } = this;
    const settings = isAnew ? anew(node.settings, current.settings) : node.settings;
    const path = pathOf(current, node);
    const plan = planOf(path, text);
    const { at, typed } = typedFrom(path, plan, plan.rest ? await continuing(plan.rest, settings.model) : []);
    const edited = retypedAt(current, node, at, typed, settings);
    if (goOn) {
      const refused = await this.#take(current, edited, (error) => editRefusal(error, edited, pathOf(current, edited)));
      return refused ?? { node: edited };
    }
    Object.assign(edited, { finish: "stop", edited: true });
    add(current, edited);
    this.#changed(current);
    return { node: edited };
  }

  /** The version before or after one, going around. */
  walk(node, by) {
    const siblings = siblingsOf(this.current, node);
    this.show(siblings[(siblings.indexOf(node) + by + siblings.length) % siblings.length]);
  }

  show(node) {
    const { current } = this;
    if (!current.nodes[node.id]) return; // it was deleted since it was listed
    select(current, node);
    this.#keep(current);
    this.#store.touch(current);
  }

  /** Put another token at a place of an answer, and continue from it. Resolves, as soon as that is
   *  decided, to {node} or to {refused: sentence}; throws if it failed for another reason. */
  async choose(node, index, id) {
    const outcome = await this.#put(node, index, id, () => forkAt(this.current, node, index, id));
    if (outcome.refused) this.#crossOut(node, index, id);
    return outcome;
  }

  /** The same with what was typed: a text, or the ids of tokens. */
  async type(node, index, typed) {
    const { current } = this;
    const pieces = await tokensOf(typed, node.settings.model);
    const ids = pieces.map(({ id }) => id);
    if (this.current !== current) return { refused: "Another conversation was opened meanwhile." };
    const outcome = await this.#put(node, index, ids, () => forkTyped(current, node, index, pieces));
    if (outcome.refused && ids.length === 1) this.#crossOut(node, index, ids[0]);
    return outcome;
  }

  async #put(node, index, ids, makeFork) {
    const { current } = this;
    const known = branchAt(current, node, index, ids);
    if (known) {
      this.show(known);
      return { node: known };
    }
    await this.#halt();
    const fork = makeFork();
    const refused = await this.#take(current, fork, (error) => refusalOf(error, fork));
    return refused ? { refused } : { node: fork };
  }

  #crossOut(node, index, id) {
    const { current } = this;
    const owner = ownerOf(current, node, index);
    const record = pathOf(current, node)[index];
    if (!record.x?.includes(id)) record.x = [...(record.x ?? []), id];
    this.#store.touch(owner);
    this.#keep(current);
  }

  /** Add a fork if the server continues from it; otherwise resolves to what `reasonOf` says. */
  async #take(conversation, fork, reasonOf) {
    const run = this.#newRun(conversation, [fork]);
    try {
      await run.start();
    } catch (error) {
      const refused = reasonOf(error);
      if (refused) return refused;
      if (!isEnd(error, pathOf(conversation, fork))) throw error;
      endThere(conversation, fork);
      add(conversation, fork);
      this.#changed(conversation);
      return null;
    }
    add(conversation, fork);
    this.#follow(conversation, run);
    return null;
  }

  /** Grow `count` answers from a place at once, with these settings, and show the first. A place is
   *  {node, at}, tokens of an answer, or {parent}, a message. Resolves to the answers when the
   *  server has accepted that; throws if it does not, with nothing changed. */
  async sample(place, count, settings) {
    await this.#ready(settings);
    const { current } = this;
    const nodes = Array.from({ length: count }, () => sproutAt(current, place, settings));
    const run = this.#newRun(current, nodes);
    await run.start();
    this.#addAll(nodes, current);
    this.#follow(current, run);
    return nodes;
  }

  /** Let more than one request grow answers: `make(conversation, changed)` begins that, and has the
   *  answers in progress as `nodes`, the one to show as `node`, `done` and `stop()`, like a run. */
  async grow(make) {
    await this.#halt();
    const { current } = this;
    const job = make(current, () => this.#grew(current));
    this.#follow(current, job);
    return job;
  }

  /** Take nodes and all below them out of the conversation; resolves to a function that puts them back. */
  async prune(nodes) {
    await this.#halt();
    const { current } = this;
    const pruned = prune(current, nodes);
    this.#changed(current);
    return async () => {
      if (this.current !== current) await this.open(current.id);
      await this.#halt();
      putBack(current, pruned);
      this.#changed(current);
    };
  }

  /** Leave the oldest exchanges out of what the model sees, so that an answer fits; resolves to how many
   *  messages that were, or to 0 if even the last one alone does not fit. */
  async leaveOut(context) {
    const { current } = this;
    const shown = shownIn(current);
    const asked = shown.filter(({ role }) => role === "user");
    const before = current.after;
    const from = Math.max(0, asked.findIndex(({ id }) => id === before));
    for (const [k, { id }] of asked.entries()) {
      if (k <= from) continue;
      current.after = id;
      if ((await this.count(shown.at(-1))) > FULL * context && k < asked.length - 1) continue;
      this.#changed(current);
      return k - from;
    }
    current.after = before;
    return 0;
  }

  /** Let the model see all of the conversation again. */
  seeAll() {
    delete this.current.after;
    this.#changed(this.current);
  }

  /** How many tokens the conversation up to a node has, as the model sees it. */
  async count(last) {
    const { current } = this;
    const { model, tools, chat_template_kwargs } = bodyOf(current.settings);
    const messages = messagesFor(current, { parent: last?.id ?? "", settings: current.settings });
    if (!messages.length) return 0;
    return (await post("/tokenize", { model, messages, tools, chat_template_kwargs, add_generation_prompt: false })).count;
  }

  /** How many tokens a first message adds, the system prompt and tools included. */
  async countFirst(text) {
    const { model, tools, chat_template_kwargs } = bodyOf(this.current.settings);
    const { system } = this.current.settings;
    const messages = [...(system ? [{ role: "system", content: system }] : []), { role: "user", content: text }];
    return (await post("/tokenize", { model, messages, tools, chat_template_kwargs })).count;
  }

  // ---- how -------------------------------------------------------------------------------------

  #addAll(nodes, conversation) {
    for (const node of nodes) add(conversation, node);
    select(conversation, nodes[0]);
  }

  /** Add a message, and answer it. */
  #ask(message, ways = 1) {
    const { current } = this;
    add(current, message);
    const nodes = Array.from({ length: ways }, () => answerNode(message, current.settings));
    this.#addAll(nodes, current);
    this.#run(nodes);
  }

  /** Throw `FieldError` if the settings are invalid; else end what is in progress. */
  #ready(settings = this.current.settings) {
    bodyOf(settings);
    return this.#halt();
  }

  async #halt() {
    const run = this.runOf(this.current);
    run?.stop();
    await run?.ended;
  }

  #newRun(conversation, nodes) {
    return new Run(conversation, nodes, (node) => {
      if (conversation.nodes[node.id]) this.#grew(conversation, node); // else a fork that is not decided yet
    });
  }

  #grew(conversation, ...nodes) {
    this.#keep(conversation, SOON);
    this.#store.grew(...nodes, ...(nodes.length ? [] : [conversation]));
  }

  #changed(conversation) {
    conversation.changed = Date.now();
    this.#keep(conversation);
    this.#store.touch(conversation);
  }

  #setRun(conversation, run) {
    const runs = new Map(this.#store.state.runs);
    if (run) runs.set(conversation.id, run);
    else runs.delete(conversation.id);
    this.#store.set({ runs });
  }

  /** Generate answers that are already part of the conversation; resolves at their end. */
  #run(nodes, more) {
    const conversation = this.current;
    const run = this.#newRun(conversation, nodes);
    this.#setRun(conversation, run);
    this.#changed(conversation);
    run.ended = this.#startAndEnd(conversation, run, more);
    return run.ended;
  }

  async #startAndEnd(conversation, run, more) {
    const { node } = run;
    try {
      await run.start(more);
      await run.done;
    } catch (error) {
      node.finish = error.name === "AbortError" ? "stopped" : "error";
      if (node.finish === "error") {
        node.problem = error.message;
        node.setting = fieldOfParam(error.param, node.settings);
        if (error.code === "context_length_exceeded") node.full = true;
      }
    }
    this.#end(conversation, run);
  }

  /** Follow an answer that the server is already generating to its end. */
  #follow(conversation, run) {
    this.#setRun(conversation, run);
    run.ended = run.done.then(() => this.#end(conversation, run));
    this.#changed(conversation);
  }

  #end(conversation, run) {
    // Of several, those that never began are not kept.
    prune(conversation, run.nodes.slice(1).filter((node) => !node.tokens.length));
    if (this.runOf(conversation) === run) this.#setRun(conversation, null);
    this.#store.touch(...run.nodes);
    if (this.#loaded.get(conversation.id) === conversation) this.#changed(conversation);
  }
}
