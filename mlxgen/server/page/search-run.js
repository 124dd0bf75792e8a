// A search for the most likely answer, carried out: each beginning is an answer of the conversation.
//
// Owns the requests and what becomes of their answers. Which beginnings are grown is decided by search.js.
// A beginning is a request of its own that takes the most likely tokens from its prefix on, and is ended
// at the first uncertain one. So the constraint, the sampling rules and the cache are the server's, which
// runs the requests that are open at a time as one batch.

import { cutBack, forkAt, ownerOf, pathOf, select, sproutAt } from "./conversation.js";
import { endThere, isEnd, refusalOf, Run } from "./run.js";
import { Beam, sumOf, uncertainAt, waysAt } from "./search.js";

const WIDTH = 5; // requests at a time: a browser opens six connections to a host

export class Search {
  #conversation;
  #options;
  #changed;
  #beam;
  #runs = new Map(); // by the answer that is growing
  #mine = new Set(); // all answers of this search
  #stopped = false;

  /** Search from a place, as in `sproutAt`. `options` are {keep, threshold, budget}: how many beginnings to
   *  keep, below which probability a token is uncertain, and how many tokens to generate at most. */
  constructor(conversation, place, settings, options, changed) {
    this.#conversation = conversation;
    this.#options = options;
    this.#changed = changed;
    // Of the alternatives that the server tells, some may be forbidden, so it is asked for all that it can.
    this.node = sproutAt(conversation, place, { ...settings, temperature: "0", alternatives: "20" });
    this.spent = 0;
    this.rounds = 0;
    this.problem = null;
    this.kept = [];
    this.done = this.#search();
  }

  /** The answers that grow. */
  get nodes() {
    return [...this.#runs.keys()];
  }

  /** The answers that were begun and not kept. */
  get dropped() {
    return [...this.#mine].filter((node) => node.dropped);
  }

  get isOver() {
    return this.#beam.isOver;
  }

  stop() {
    this.#stopped = true;
    for (const run of this.#runs.values()) run.stop();
  }

  async #search() {
    const path = pathOf(this.#conversation, this.node);
    this.#beam = new Beam(this.#options.keep, { score: sumOf(path), way: null, parent: null });
    try {
      do {
        await this.#round();
        this.#turn();
      } while (!this.#stopped && !this.#beam.isOver);
    } catch (error) {
      this.problem = error;
      this.stop();
    }
    this.#runs.clear();
    this.#changed();
  }

  async #round() {
    const works = new Set();
    const failed = [];
    for (;;) {
      while (!this.#stopped && works.size < WIDTH) {
        const candidate = this.#beam.next();
        if (!candidate) break;
        const work = this.#grow(candidate).catch((error) => failed.push(error)).finally(() => works.delete(work));
        works.add(work);
      }
      if (!works.size) break;
      await Promise.race(works);
      if (failed.length) this.stop();
    }
    if (failed.length) throw failed[0];
  }

  #turn() {
    this.rounds += 1;
    const { kept } = this.#beam.turn();
    // Where a search is stopped, what has ended comes before what has not.
    this.kept = this.#stopped ? [...kept].sort((one, other) => Number(other.outcome.done) - Number(one.outcome.done)) : kept;
    const stays = new Set(kept.map(({ outcome }) => outcome.node));
    for (const node of this.#mine) {
      if (stays.has(node)) delete node.dropped;
      else node.dropped = 1;
    }
    if (!this.kept.length) return;
    this.node = this.kept[0].outcome.node;
    select(this.#conversation, this.node);
    this.#changed();
  }

  async #grow(candidate) {
    const { node, at } = this.#begin(candidate);
    const shared = node.from?.at ?? 0;
    const known = node.tokens.length;
    let told = known;
    let place = -1;
    const run = new Run(this.#conversation, node, () => {
      this.spent += node.tokens.length - told;
      told = node.tokens.length;
      if (place < 0) place = uncertainAt(node.tokens, known, this.#options.threshold);
      if (place >= 0) run.stop();
      if (this.spent >= this.#options.budget) this.stop();
      this.#changed();
    });
    try {
      await run.start();
    } catch (error) {
      if (this.#stopped && error.name === "AbortError") return;
      if (!this.#isDecided(error, candidate, node, at)) return;
    }
    candidate.accepted = true;
    this.#add(node);
    if (run.done) {
      this.#runs.set(node, run);
      await run.done;
      this.#runs.delete(node);
    }
    if (node.finish === "error") throw new Error(node.problem);
    if (place >= 0) {
      cutBack(this.#conversation, node, shared + place + 1);
      node.finish = "stopped";
    }
    this.#beam.grew(candidate, this.#outcome(node, place < 0 ? null : shared + place));
  }

  /** The answer that a candidate grows, and the place where it leaves its parent. */
  #begin({ way, parent }) {
    if (!parent) return { node: this.node, at: 0 };
    const { node, at } = parent.outcome;
    if (pathOf(this.#conversation, node)[at].i === way) return { node, at };
    return { node: forkAt(this.#conversation, node, at, way), at };
  }

  #add(node) {
    this.#mine.add(node);
    // It is shown when it turns out to be the most likely one.
    this.#conversation.nodes[node.id] = node;
    this.#conversation.chosen[node.parent] ??= node.id;
  }

  /** Whether a candidate stands although its request was refused: it is the end of the text. */
  #isDecided(error, candidate, node, at) {
    if (candidate.parent && isEnd(error, pathOf(this.#conversation, node))) {
      endThere(this.#conversation, node);
      return true;
    }
    if (!candidate.parent || !refusalOf(error, node)) throw error;
    const path = pathOf(this.#conversation, candidate.parent.outcome.node);
    path[at].x = [...(path[at].x ?? []), candidate.way];
    const owner = ownerOf(this.#conversation, candidate.parent.outcome.node, at);
    owner.tokens = [...owner.tokens]; // so that the store writes them again
    this.#beam.refused(candidate);
    return false;
  }

  #outcome(node, at) {
    const path = pathOf(this.#conversation, node);
    if (at === null) {
      const done = node.finish !== "stopped";
      return { node, score: sumOf(path), tokens: path.length, done, ways: [] };
    }
    const score = sumOf(path.slice(0, at));
    const ways = waysAt(path[at]).map(({ id, logprob }) => ({ score: score + logprob, way: id }));
    return { node, at, score, tokens: at, done: false, ways };
  }
}
