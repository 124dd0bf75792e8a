// A search for the most likely text: which beginnings to grow, which to keep, and when it is over.
//
// The law: a beginning gets less likely with every token, so one whose odds are already below those of
// as many grown ones as are kept can never be among these, and is not grown at all. What is kept is
// what growing everything would keep. Nothing here touches the page, the network or a conversation.

import { alternativesOf } from "./records.js";

/** A search that keeps the `keep` most likely beginnings in each round.
 *
 *  A candidate is {score, way, parent}: `score` is its log-probability before it is grown, `way` says how
 *  to grow it, and `parent` is what it was branched from. Grown, it has an `outcome`: {score, done, ways},
 *  with the candidates at the uncertain token where it stopped, the likeliest first. */
export class Beam {
  #keep;
  #queue = [];
  #growing = new Set();
  #grown = [];
  #taken = new Map(); // how many ways from each parent were taken

  constructor(keep, first) {
    this.#keep = keep;
    this.#queue = [first];
    this.kept = [];
  }

  /** The candidate to grow next; null if none can be, for now or in this round. */
  next() {
    while (this.#queue.length) {
      const candidate = this.#queue[0];
      if (this.#isBeaten(candidate)) {
        this.#queue = []; // those after it are less likely still
        return null;
      }
      const taken = this.#taken.get(candidate.parent) ?? 0;
      if (taken >= this.#keep) {
        // Unless one of those is refused, it is one too many; one that is not decided may be.
        if ([...this.#growing].some(({ parent, accepted }) => parent === candidate.parent && !accepted)) return null;
        this.#queue.shift();
        continue;
      }
      this.#queue.shift();
      this.#taken.set(candidate.parent, taken + 1);
      this.#growing.add(candidate);
      return candidate;
    }
    return null;
  }

  /** The constraint does not allow a candidate: another one may take its place. */
  refused(candidate) {
    this.#growing.delete(candidate);
    this.#taken.set(candidate.parent, this.#taken.get(candidate.parent) - 1);
  }

  /** A candidate was grown to its next uncertain token, or to its end. */
  grew(candidate, outcome) {
    this.#growing.delete(candidate);
    this.#grown.push({ ...candidate, outcome });
  }

  get isRoundOver() {
    return !this.#queue.length && !this.#growing.size;
  }

  get isOver() {
    return this.isRoundOver && this.kept.every(({ outcome }) => outcome.done);
  }

  /** End a round: returns {kept, dropped}, and begins the next one with what was kept. */
  turn() {
    const ranked = this.#grown.toSorted((one, other) => other.outcome.score - one.outcome.score);
    this.kept = ranked.slice(0, this.#keep);
    this.#grown = this.kept.filter(({ outcome }) => outcome.done);
    this.#taken = new Map();
    this.#queue = this.kept
      .filter(({ outcome }) => !outcome.done)
      .flatMap((parent) => parent.outcome.ways.map((way) => ({ ...way, parent })))
      .sort((one, other) => other.score - one.score);
    return { kept: this.kept, dropped: ranked.slice(this.#keep) };
  }

  #isBeaten({ score }) {
    return this.#grown.filter(({ outcome }) => outcome.score >= score).length >= this.#keep;
  }
}

/** The first token of records, from `start` on, at which a search branches: one that the model was less
 *  sure of than `threshold`, and that was not forced. -1 if there is none. */
export function uncertainAt(records, start, threshold) {
  const least = Math.log(threshold);
  for (let k = start; k < records.length; k += 1) {
    const { l, f } = records[k];
    if (f !== 1 && l !== null && l < least && waysAt(records[k]).length > 1) return k;
  }
  return -1;
}

/** What a token could be: {id, logprob}, the one that was taken first, then the likeliest. Those that the
 *  constraint is known to forbid are left out. */
export function waysAt(record) {
  const others = alternativesOf(record)
    .filter(({ id, logprob }) => id !== record.i && logprob !== null && !record.x?.includes(id))
    .map(({ id, logprob }) => ({ id, logprob }));
  return [{ id: record.i, logprob: record.l }, ...others];
}

export const sumOf = (records) => records.reduce((sum, { l }) => sum + (l ?? 0), 0);
