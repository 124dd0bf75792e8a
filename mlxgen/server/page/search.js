// A search for the most likely answer: which beginnings to grow, which to keep, and how they are grown.
//
// The law: a beginning gets less likely with every token, so one whose odds are already below those of as many
// grown ones as are kept can never be among these, and is not grown at all. What is kept is what growing
// everything would keep.
//
// A beginning is a request of its own that takes the most likely tokens from its prefix on, and is ended at the
// first uncertain one. So the constraint, the sampling rules and the cache are the server's, which runs the
// requests that are open at a time as one batch.

import { cutBack, forkAt, pathOf, select, branch } from "./conversation.js";
import { alternativesOf } from "./records.js";
import { endThere, isEnd, refusalOf, Run } from "./run.js";

const WIDTH = 5; // requests at a time: a browser opens six connections to a host

/** One round: of what grows out of these ways and of what was `ended` before, the `keep` most likely. Ways are
 *  {score, ...}, the likeliest first, and `grow(way)` resolves to {score, done, ways}, or to null if the
 *  constraint does not allow it. */
export async function bestOf(ways, ended, keep, grow) {
  const grown = [...ended];
  const queue = [...ways];
  const isBeaten = ({ score }) => grown.filter((one) => one.score >= score).length >= keep;
  const work = async () => {
    while (queue.length && !isBeaten(queue[0])) {
      const outcome = await grow(queue.shift());
      if (outcome) grown.push(outcome);
    }
  };
  await Promise.all(Array.from({ length: WIDTH }, work));
  return grown.sort((one, other) => other.score - one.score).slice(0, keep);
}

/** The ways of the next round: the `keep` likeliest of each that goes on. */
export const waysOf = (kept, keep) =>
  kept.flatMap(({ done, ways }) => (done ? [] : ways.slice(0, keep))).sort((one, other) => other.score - one.score);

/** The first token of records, from `start` on, at which a search branches: one that the model was less
 *  sure of than `threshold`, and that was not forced. -1 if there is none. */
export function uncertainAt(records, start, threshold) {
  const least = Math.log(threshold);
  return records.findIndex((record, k) => k >= start && record.f !== 1 && record.l !== null && record.l < least && tokensAt(record).length > 1);
}

/** What a token could be: {id, logprob}, the one that was taken first, then the likeliest. Those that the
 *  constraint is known to forbid are left out. */
export function tokensAt(record) {
  const others = alternativesOf(record).filter(({ id, logprob }) => id !== record.i && logprob !== null && !record.x?.includes(id));
  return [{ id: record.i, logprob: record.l }, ...others.map(({ id, logprob }) => ({ id, logprob }))];
}

const sumOf = (records) => records.reduce((sum, { l }) => sum + (l ?? 0), 0);

/** A search that is carried out: each beginning is an answer of the conversation. */
export class Search {
  #conversation;
  #options;
  #changed;
  #runs = new Map(); // by the answer that is growing
  #mine = new Set(); // all answers of this search
  #stopped = false;

  /** Search from a place, as in `branch`. `options` are {keep, threshold, budget}: how many beginnings to
   *  keep, below which probability a token is uncertain, and how many tokens to generate at most. */
  constructor(conversation, place, settings, options, changed) {
    this.#conversation = conversation;
    this.#options = options;
    this.#changed = changed;
    // Of the alternatives that the server tells, some may be forbidden, so it is asked for all that it can.
    this.node = branch(conversation, place, { ...settings, temperature: "0", alternatives: "20" });
    this.spent = 0;
    this.rounds = 0;
    this.problem = null;
    this.isOver = false;
    /** @type {any[]} The most likely ones: {node, score, tokens, done}. */
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

  stop() {
    this.#stopped = true;
    for (const run of this.#runs.values()) run.stop();
  }

  async #search() {
    const { keep } = this.#options;
    let ways = [{ score: sumOf(pathOf(this.#conversation, this.node)), node: this.node, at: 0, id: null }];
    while (ways.length && !this.#stopped) {
      this.#turn(await bestOf(ways, this.kept.filter(({ done }) => done), keep, (way) => this.#grow(way)));
      ways = waysOf(this.kept, keep);
    }
    this.isOver = !ways.length && !this.#stopped;
    this.#changed();
  }

  /** Keep these, and show the most likely one. */
  #turn(kept) {
    this.rounds += 1;
    // If a search is stopped, what has ended comes before what has not.
    this.kept = this.#stopped ? kept.sort((one, other) => Number(other.done) - Number(one.done)) : kept;
    const stays = new Set(kept.map(({ node }) => node));
    for (const node of this.#mine) {
      if (stays.has(node)) delete node.dropped;
      else node.dropped = 1;
    }
    if (!kept.length) return;
    this.node = kept[0].node;
    select(this.#conversation, this.node);
    this.#changed();
  }

  /** Grow a way to its next uncertain token, or to its end; null if that is not allowed, or the search is stopped. */
  async #grow({ node: parent, at, id }) {
    if (this.#stopped) return null;
    const conversation = this.#conversation;
    const node = id === null || pathOf(conversation, parent)[at].i === id ? parent : forkAt(conversation, parent, at, id);
    const shared = node.from?.at ?? 0;
    const known = node.tokens.length;
    let told = known;
    let place = -1;
    const run = new Run(conversation, [node], () => {
      this.spent += node.tokens.length - told;
      told = node.tokens.length;
      if (place < 0) place = uncertainAt(node.tokens, known, this.#options.threshold);
      if (place >= 0) run.stop();
      if (this.spent >= this.#options.budget) this.stop();
      this.#changed();
    });
    this.#runs.set(node, run);
    try {
      await run.start();
      this.#add(node);
      await run.done;
      if (node.finish === "error") throw new Error(node.problem);
    } catch (error) {
      if (this.#stopped && error.name === "AbortError") {
        if (!this.#mine.has(node)) return null;
        node.finish = "stopped";
      } else if (id !== null && isEnd(error, pathOf(conversation, node))) {
        endThere(conversation, node);
        this.#add(node);
      } else if (id !== null && refusalOf(error, node, pathOf(conversation, node))) {
        const record = pathOf(conversation, parent)[at];
        record.x = [...(record.x ?? []), id];
        return null;
      } else {
        this.problem ??= error;
        this.stop();
        return null;
      }
    } finally {
      this.#runs.delete(node);
    }
    if (place >= 0) {
      cutBack(conversation, node, shared + place + 1);
      node.finish = "stopped";
    }
    const path = pathOf(conversation, node);
    const end = place < 0 ? path.length : shared + place;
    const score = sumOf(path.slice(0, end));
    const ways = place < 0 ? [] : tokensAt(path[end]).map((one) => ({ score: score + one.logprob, node, at: end, id: one.id }));
    return { node, score, tokens: end, done: node.finish !== "stopped", ways };
  }

  #add(node) {
    this.#mine.add(node);
    // It is shown when it turns out to be the most likely one.
    this.#conversation.nodes[node.id] = node;
    this.#conversation.chosen[node.parent] ??= node.id;
  }
}
