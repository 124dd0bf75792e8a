// The conversations and the answers in progress: everything that a person can do, without the page.
//
// All conversations are listed; those that were opened are loaded, with their nodes. What is loaded is
// changed at once, and written to the store soon after. Each conversation has one answer in progress at
// most, which continues while another is shown. `changed(conversation)` is called after every change,
// however small.

import { continuing } from "./api.js";
import {
  add, answerNode, branchAt, byHand, childrenOf, commonLength, forkAgain, forkAt, forkTyped, newConversation, newId, ownerOf,
  parentOf, pathOf, refresh, retypedAt, select, shownIn, siblingsOf, sproutAt, toolNode, userNode,
} from "./conversation.js";
import { saidIn } from "./finding.js";
import { loadSettings, saveSettings } from "./preferences.js";
import { prune } from "./pruning.js";
import { planOf, typedFrom } from "./retyped.js";
import { editRefusal, endThere, isEnd, prepareToGoOn, refusalOf, Run } from "./run.js";
import { anew, bodyOf, fieldOfParam } from "./settings.js";
import { openStore } from "./store.js";
import { tokensOf } from "./typed.js";

const SAVE_EVERY = 1000; // milliseconds, while an answer grows

const isLoaded = (conversation) => conversation.nodes !== undefined;

export class Session {
  #runs = new Map(); // by conversation
  #saved = new Map(); // when each conversation was kept last
  #behind = new Set(); // conversations that another tab changed during an answer
  #store;
  #tell;
  #wanted = null; // the conversation that was opened last, which may still be loading

  /** The conversations of this browser. `changed(conversation)` is called after every change, `full(error)`
   *  if one could not be written, `thinned(count)` when others lost alternatives to make room for it, and
   *  `setAside(count)` if some could not be read. */
  static async opened(tell) {
    const session = new Session(await openStore(), tell);
    session.conversations = await session.#store.list();
    await session.#showNewest();
    session.#store.onChangedElsewhere((id) => session.reload(id));
    if (session.#store.setAside) tell.setAside(session.#store.setAside);
    return session;
  }

  /** Use `Session.opened`. */
  constructor(store, tell) {
    this.#store = store;
    this.#tell = tell;
    /** The newest first; those that were not opened yet have no nodes. */
    this.conversations = [];
    this.current = null;
  }

  /** Whether everything is lost when the page is closed. */
  get keepsNothing() {
    return this.#store.keepsNothing;
  }

  removeSetAside() {
    return this.#store.removeSetAside();
  }

  // ---- conversations -------------------------------------------------------------------------

  #begin() {
    // Tools and the answer format belong to the conversation they were set for.
    this.conversations.unshift(newConversation({ ...loadSettings(), form: "", tools: "" }));
    this.#show(this.conversations[0]);
  }

  #show(conversation) {
    this.current = conversation;
    this.#wanted = conversation.id;
  }

  start() {
    // A second empty one would be useless.
    const empty = this.conversations.find((one) => isLoaded(one) && !shownIn(one).length);
    if (empty) this.#show(empty);
    else this.#begin();
    this.#tell.changed(this.current);
  }

  /** Show a conversation, after it is loaded; one that cannot be read leaves the list. */
  async open(id) {
    this.#wanted = id;
    const listed = this.conversations.find((one) => one.id === id);
    const opened = listed && isLoaded(listed) ? listed : await this.#load(id); // at once, if it can be
    if (this.#wanted !== id) return; // another one was opened meanwhile
    if (opened) this.#show(opened);
    else await this.#showNewest();
    this.#tell.changed(this.current);
  }

  /** Show the first of the list that can be read; a new one if there is none. */
  async #showNewest() {
    while (this.conversations.length) {
      const opened = await this.#load(this.conversations[0].id);
      if (opened) return this.#show(opened);
    }
    this.#begin();
  }

  /** A conversation of the list, with its nodes; null if it is gone. */
  async #load(id) {
    const listed = this.conversations.find((one) => one.id === id);
    if (!listed || isLoaded(listed)) return listed ?? null;
    const read = await this.#read(id);
    const now = this.conversations.find((one) => one.id === id);
    if (now && isLoaded(now)) return now; // it was loaded twice at once
    if (read && now) this.#store.adopt(read);
    this.conversations = this.conversations.flatMap((one) => (one.id === id ? (read ?? []) : one));
    return now ? read : null;
  }

  async #read(id) {
    const before = this.#store.setAside;
    const read = await this.#store.read(id);
    const { setAside } = this.#store;
    if (setAside > before && this.current) this.#tell.setAside(setAside); // `opened` tells of the first ones
    return read;
  }

  /** Delete a conversation; resolves to what `restore` needs, until `purge` makes it final. */
  async remove(id) {
    this.#runs.get(id)?.stop();
    const place = this.conversations.findIndex((one) => one.id === id);
    const removed = { conversation: this.conversations[place], place, shown: this.current.id === id };
    this.conversations = this.conversations.filter((one) => one.id !== id);
    const written = this.#store.remove(id);
    if (removed.shown) await this.#showNewest();
    this.#tell.changed(this.current);
    await written;
    return removed;
  }

  async restore({ conversation, place, shown }) {
    const { id } = conversation;
    if (!this.conversations.some((one) => one.id === id)) this.conversations.splice(place, 0, conversation);
    if (shown) await this.open(id);
    this.#tell.changed(conversation);
    await this.#store.restore(id);
    if (isLoaded(conversation) && shownIn(conversation).length) this.#keep(conversation);
  }

  purge(id) {
    return this.#store.purge(id);
  }

  async rename(id, title) {
    const conversation = this.conversations.find((one) => one.id === id);
    conversation.title = title;
    this.#tell.changed(conversation);
    await this.#store.rename(id, title);
  }

  /** Conversations with all that there is of them, those that are not loaded, too. */
  async whole(ids) {
    const whole = [];
    for (const id of ids) {
      const listed = this.conversations.find((one) => one.id === id);
      const one = listed && (isLoaded(listed) ? listed : await this.#read(id));
      if (one && Object.keys(one.nodes).length) whole.push(one);
    }
    return whole;
  }

  /** Add conversations and show the first; one that is here already becomes another one. */
  async import(conversations) {
    const known = new Set(this.conversations.map(({ id }) => id));
    for (const one of conversations) {
      if (known.has(one.id)) one.id = newId();
      known.add(one.id);
    }
    this.conversations.unshift(...conversations);
    for (const one of conversations) this.#keep(one);
    await this.open(conversations[0].id);
  }

  /** The texts of all conversations as [node's id, text], by conversation. */
  async texts() {
    const texts = await this.#store.texts();
    for (const { id, nodes } of this.conversations) {
      if (nodes) texts.set(id, Object.values(nodes).map((node) => [node.id, saidIn(node)]));
    }
    return texts;
  }

  /** Adopt what another tab did, unless an answer is in progress here. */
  async reload(id) {
    await this.#store.settled();
    const place = this.conversations.findIndex((one) => one.id === id);
    const here = this.conversations[place];
    if (this.#runs.has(id)) {
      this.#behind.add(id);
      if (here) here.title = (await this.#store.listed(id))?.title ?? here.title; // which the next save writes
      return;
    }
    const changed = here?.changed;
    const shown = this.current.id === id;
    const read = shown ? await this.#read(id) : await this.#store.listed(id);
    const now = this.conversations.find((one) => one.id === id);
    if (this.#runs.has(id) || now !== here || now?.changed !== changed || (this.current.id === id) !== shown) {
      return this.reload(id); // something happened here meanwhile
    }
    if (shown) {
      if (!read) return; // it stays as long as it is shown
      refresh(here, read);
      this.#store.adopt(here);
    } else if (!read) this.conversations = this.conversations.filter((one) => one !== here);
    else if (here) this.conversations[place] = read;
    else this.conversations.unshift(read);
    this.#tell.changed(this.current);
  }

  settingsChanged() {
    saveSettings(this.current.settings);
    if (shownIn(this.current).length) this.#keep(this.current);
  }

  /** Keep what is not written yet, at once; called when the page is left. */
  keepAll() {
    this.#store.leave(this.conversations.filter((one) => isLoaded(one) && Object.keys(one.nodes).length));
  }

  #keep(conversation) {
    this.#saved.set(conversation.id, performance.now());
    this.#store.save(conversation).then(({ problem, thinned }) => {
      if (problem) this.#tell.full(problem);
      else if (thinned) this.#tell.thinned(thinned);
    });
  }

  // ---- answers -------------------------------------------------------------------------------

  runOf(conversation) {
    return this.#runs.get(conversation.id) ?? null;
  }

  isRunning(node) {
    return this.runOf(this.current)?.nodes.includes(node) ?? false;
  }

  stop() {
    this.runOf(this.current)?.stop();
  }

  /** Send a message, {text, files, images}, for one answer or several at once; throws `FieldError`
   *  before anything changes if the settings are invalid. */
  async send(message, ways = 1) {
    bodyOf(this.current.settings);
    await this.#halt();
    await this.#answer(this.#append(userNode(shownIn(this.current).at(-1) ?? null, message)), ways);
  }

  async edit(node, message) {
    bodyOf(this.current.settings);
    await this.#halt();
    await this.#answer(this.#append(userNode(parentOf(this.current, node), message)));
  }

  async giveResults(node, results) {
    bodyOf(this.current.settings);
    await this.#halt();
    await this.#answer(this.#append(toolNode(node, results)));
  }

  /** Another answer to the same message: from the start, or from what was chosen by hand or typed. */
  async retry(node) {
    bodyOf(this.current.settings);
    await this.#halt();
    const { current } = this;
    const again = node.from || byHand(node) ? forkAgain(current, node) : answerNode(parentOf(current, node), current.settings);
    // An answer that never began is not kept.
    if (node.finish === "error" && !node.tokens.length && !childrenOf(current, node).length) delete current.nodes[node.id];
    await this.#run(this.#append(again));
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
    await this.#run(node, more);
    return node.tokens.length > before || node.finish !== "stop";
  }

  /** Draw an answer anew from the token `at` on. Resolves, at its end, to whether it came out the same. */
  async again(node, at) {
    const { current } = this;
    const [other] = await this.sample({ node, at }, 1, anew(node.settings, current.settings));
    await this.runOf(current)?.ended;
    const [one, two] = [node, other].map((each) => pathOf(current, each));
    return one.length === two.length && commonLength(one, two) === one.length;
  }

  /** Give an answer another text: what is unchanged at its beginning keeps its tokens. The edited one is
   *  another version, from whose end the model goes on, or which ends there. Resolves to {node} as
   *  soon as that is decided, or to {refused: sentence, at: place in the text}. */
  async retype(node, text, { goOn, settings = node.settings }) {
    await this.#halt();
    const { current } = this;
    const path = pathOf(current, node);
    const plan = planOf(path, text);
    const { at, typed } = typedFrom(path, plan, plan.rest ? await continuing(plan.rest, settings.model) : []);
    const edited = retypedAt(current, node, at, typed, settings);
    if (goOn) {
      const refused = await this.#take(current, edited, (error) => editRefusal(error, edited, pathOf(current, edited)));
      return refused ?? { node: edited };
    }
    Object.assign(edited, { finish: "stop", edited: true });
    await this.change((conversation) => add(conversation, edited));
    return { node: edited };
  }

  walk(node, by) {
    const siblings = siblingsOf(this.current, node);
    const next = siblings[(siblings.indexOf(node) + by + siblings.length) % siblings.length];
    this.show(next);
    return next;
  }

  show(node) {
    if (!this.current.nodes[node.id]) return; // it was deleted since it was listed
    select(this.current, node);
    this.#keep(this.current);
    this.#tell.changed(this.current);
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
    owner.tokens = [...owner.tokens]; // so that the store writes them again
    this.#keep(current);
  }

  /** Add a fork if the server continues from it; otherwise resolves to what `reasonOf` says. */
  async #take(conversation, fork, reasonOf) {
    const run = this.#newRun(conversation, fork);
    try {
      await run.start();
    } catch (error) {
      const refused = reasonOf(error);
      if (refused) return refused;
      if (!isEnd(error, pathOf(conversation, fork))) throw error;
      endThere(conversation, fork);
      add(conversation, fork);
      this.#keep(conversation);
      this.#tell.changed(conversation);
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
    bodyOf(settings);
    await this.#halt();
    const { current } = this;
    const nodes = Array.from({ length: count }, () => sproutAt(current, place, settings));
    const run = this.#newRun(current, nodes);
    await run.start();
    this.#appendAll(nodes, current);
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

  /** Do something with the current conversation that changes its nodes, and keep what it did. */
  async change(work, { halts = true } = {}) {
    if (halts) await this.#halt();
    const { current } = this;
    const outcome = work(current);
    current.changed = Date.now();
    this.#keep(current);
    this.#tell.changed(current);
    return outcome;
  }

  #append(node) {
    add(this.current, node);
    return node;
  }

  #appendAll(nodes, conversation) {
    for (const node of nodes) add(conversation, node);
    select(conversation, nodes[0]);
  }

  #answer(parent, ways = 1) {
    const nodes = Array.from({ length: ways }, () => answerNode(parent, this.current.settings));
    this.#appendAll(nodes, this.current);
    return this.#run(nodes);
  }

  async #halt() {
    const run = this.runOf(this.current);
    run?.stop();
    await run?.ended;
  }

  #newRun(conversation, nodes) {
    return new Run(conversation, nodes, (node) => {
      if (conversation.nodes[node.id]) this.#grew(conversation); // else a fork that is not decided yet
    });
  }

  #grew(conversation) {
    if (performance.now() - (this.#saved.get(conversation.id) ?? 0) > SAVE_EVERY) this.#keep(conversation);
    this.#tell.changed(conversation);
  }

  /** Generate one answer or several that are already part of the conversation. */
  async #run(nodes, more) {
    const conversation = this.current;
    const run = this.#newRun(conversation, nodes);
    this.#runs.set(conversation.id, run);
    run.ended = this.#startAndEnd(conversation, run, more);
    await run.ended;
  }

  async #startAndEnd(conversation, run, more) {
    const { node } = run;
    this.#keep(conversation);
    this.#tell.changed(conversation);
    try {
      await run.start(more);
      await run.done;
    } catch (error) {
      node.finish = error.name === "AbortError" ? "stopped" : "error";
      if (node.finish === "error") {
        node.problem = error.message;
        node.setting = fieldOfParam(error.param, node.settings);
      }
    }
    this.#end(conversation, run);
  }

  /** Follow an answer that the server is already generating to its end. */
  #follow(conversation, run) {
    this.#runs.set(conversation.id, run);
    run.ended = run.done.then(() => this.#end(conversation, run));
    this.#keep(conversation);
    this.#tell.changed(conversation);
  }

  #end(conversation, run) {
    // Of several, those that never began are not kept.
    prune(conversation, run.nodes.slice(1).filter((node) => !node.tokens.length));
    if (this.#runs.get(conversation.id) === run) this.#runs.delete(conversation.id);
    conversation.changed = Date.now();
    if (this.conversations.includes(conversation)) this.#keep(conversation);
    if (this.#behind.delete(conversation.id)) this.reload(conversation.id);
    this.#tell.changed(conversation);
  }
}
