// The conversations and the answers in progress: everything that a person can do, without the page.
//
// Each conversation has one answer in progress at most, which continues while another is shown.
// `changed(conversation)` is called after every change, however small.

import {
  add, answerNode, branchAt, childrenOf, forkAgain, forkAt, newConversation, parentOf, pathOf, select, shownIn,
  siblingsOf, sproutAt, toolNode, userNode,
} from "./conversation.js";
import { prune } from "./pruning.js";
import { spoken } from "./records.js";
import { endThere, isEnd, prepareToGoOn, refusalOf, Run } from "./run.js";
import { bodyOf, fieldOfParam } from "./settings.js";
import * as store from "./store.js";

const SAVE_EVERY = 1000; // milliseconds, while an answer grows

export class Session {
  #runs = new Map(); // by conversation
  #saved = new Map(); // when each conversation was kept last
  #changed;
  #full;

  /** `full()` is called if the browser has no room to store a conversation. */
  constructor({ changed, full }) {
    this.#changed = changed;
    this.#full = full;
    /** How many stored conversations could not be read. */
    this.setAside = store.setAsideMalformed();
    this.conversations = store.loadAll();
    if (!this.conversations.length) this.#begin();
    this.current = this.conversations[0];
  }

  // ---- conversations -------------------------------------------------------------------------

  #begin() {
    // Tools and the answer format belong to the conversation they were set for.
    this.conversations.unshift(newConversation({ ...store.loadSettings(), form: "", tools: "" }));
    [this.current] = this.conversations;
  }

  start() {
    // A second empty one would be useless.
    const empty = this.conversations.find((one) => !shownIn(one).length);
    if (empty) this.current = empty;
    else this.#begin();
    this.#changed(this.current);
  }

  open(id) {
    this.current = this.conversations.find((one) => one.id === id) ?? this.current;
    this.#changed(this.current);
  }

  remove(id) {
    this.#runs.get(id)?.stop();
    store.removeConversation(id);
    this.conversations = this.conversations.filter((one) => one.id !== id);
    if (!this.conversations.length) this.#begin();
    if (this.current.id === id) [this.current] = this.conversations;
    this.#changed(this.current);
  }

  /** Adopt what another tab did, unless an answer is in progress here. */
  reload(id) {
    if (this.#runs.has(id)) return;
    const found = store.loadConversation(id);
    const place = this.conversations.findIndex((one) => one.id === id);
    if (!found && place >= 0 && this.current.id !== id) this.conversations.splice(place, 1);
    else if (found && place < 0) this.conversations.unshift(found);
    else if (found) {
      this.conversations[place] = found;
      if (this.current.id === id) this.current = found;
    }
    this.#changed(found ?? this.current);
  }

  settingsChanged() {
    store.saveSettings(this.current.settings);
    if (shownIn(this.current).length) this.#keep(this.current);
  }

  /** Store what is shown; also called when the page goes away. */
  keepAll() {
    for (const conversation of this.conversations) {
      if (this.#runs.has(conversation.id)) this.#keep(conversation);
    }
  }

  #keep(conversation) {
    this.#saved.set(conversation.id, performance.now());
    if (!store.saveConversation(conversation)) this.#full();
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

  /** Another answer to the same message: from the start, or from the token chosen by hand. */
  async retry(node) {
    bodyOf(this.current.settings);
    await this.#halt();
    const { current } = this;
    const again = node.from ? forkAgain(current, node) : answerNode(parentOf(current, node), current.settings);
    // An answer that never began is not kept.
    if (node.finish === "error" && !node.tokens.length && !childrenOf(current, node).length) delete current.nodes[node.id];
    await this.#run(this.#append(again));
  }

  async goOn(node) {
    await this.#halt();
    prepareToGoOn(this.current, node);
    await this.#run(node);
  }

  walk(node, by) {
    const siblings = siblingsOf(this.current, node);
    const next = siblings[(siblings.indexOf(node) + by + siblings.length) % siblings.length];
    this.show(next);
    return next;
  }

  show(node) {
    select(this.current, node);
    this.#keep(this.current);
    this.#changed(this.current);
  }

  /** Put another token at a place of an answer, and continue from it. Resolves, as soon as that is
   *  decided, to {node} or to {refused: sentence}; throws if it failed for another reason. */
  async choose(node, index, id) {
    const { current } = this;
    const known = branchAt(current, node, index, id);
    if (known) {
      this.show(known);
      return { node: known };
    }
    await this.#halt();
    const fork = forkAt(current, node, index, id);
    const refused = await this.#take(current, fork);
    if (!refused) return { node: fork };
    const record = pathOf(current, node)[index];
    record.x = [...(record.x ?? []), id];
    this.#keep(current);
    return { refused };
  }

  /** Add a fork if the server continues from it; otherwise resolves to the reason why it does not. */
  async #take(conversation, fork) {
    const piece = spoken(fork.tokens[0].b);
    const run = this.#newRun(conversation, fork);
    try {
      await run.start();
    } catch (error) {
      const refused = refusalOf(error, fork, piece);
      if (refused) return refused;
      if (!isEnd(error)) throw error;
      endThere(conversation, fork);
      add(conversation, fork);
      this.#keep(conversation);
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

  /** Do something with the current conversation that changes its nodes, and keep what it did. */
  async change(work) {
    await this.#halt();
    const { current } = this;
    const outcome = work(current);
    current.changed = Date.now();
    this.#keep(current);
    this.#changed(current);
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
      if (!conversation.nodes[node.id]) return; // a fork that is not decided yet
      if (performance.now() - (this.#saved.get(conversation.id) ?? 0) > SAVE_EVERY) this.#keep(conversation);
      this.#changed(conversation);
    });
  }

  /** Generate one answer or several that are already part of the conversation. */
  async #run(nodes) {
    const conversation = this.current;
    const run = this.#newRun(conversation, nodes);
    this.#runs.set(conversation.id, run);
    run.ended = this.#startAndEnd(conversation, run);
    await run.ended;
  }

  async #startAndEnd(conversation, run) {
    const { node } = run;
    this.#keep(conversation);
    this.#changed(conversation);
    try {
      await run.start();
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
    this.#changed(conversation);
  }

  #end(conversation, run) {
    // Of several, those that never began are not kept.
    prune(conversation, run.nodes.slice(1).filter((node) => !node.tokens.length));
    if (this.#runs.get(conversation.id) === run) this.#runs.delete(conversation.id);
    conversation.changed = Date.now();
    if (this.conversations.includes(conversation)) this.#keep(conversation);
    this.#changed(conversation);
  }
}
