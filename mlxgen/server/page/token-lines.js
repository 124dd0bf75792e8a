// The tokens of an answer in the order and grouping in which they are shown. Nothing here touches the page.
//
// A group is the thoughts or the answer; a box in it is a few lines, which the browser lays out only while
// they can be seen; an item of a box is a token, or a character that several tokens make up.

import { DRAFTERS, levelOf, percent, Speller, spoken, visible } from "./records.js";

const BOX = 48; // tokens in a box at least; it ends where a line does
const COLUMNS = 480; // of the strip at most

/** What can be said of a token, by the class that shows it. */
export const MARKS = {
  forced: "only one allowed",
  drafted: "drafted",
  rejected: "another was rejected",
  picked: "chosen by hand",
  outside: "not part of the answer",
};

/** The classes of `MARKS` that a record has. */
export function markNames({ f, n, j, h, p }) {
  const names = [];
  if (f === 1) names.push("forced");
  if (f === 2) names.push("drafted");
  if (n || j?.length) names.push("rejected");
  if (h) names.push("picked");
  if (p === null) names.push("outside");
  return names;
}

/** All classes of a token, `text` being the characters that it completes. */
export function classOf(record, text) {
  const level = levelOf(record.l);
  return ["token", level ? `level-${level}` : "", ...markNames(record), record.p === "mark" ? "mark" : "", text.startsWith("\n") ? "line-break" : ""]
    .filter(Boolean).join(" ");
}

/** A token without a character of its own is shown as its bytes. */
export const hexOf = ({ b }) =>
  (typeof b === "string" ? (b && visible(b)) || "∅" : b.map((byte) => byte.toString(16).padStart(2, "0")).join(" "));

/** How a token came about, in words. */
export function wordsOf({ h, f, d, n, p }) {
  const words = [];
  if (h) words.push(h === 2 ? "typed" : "chosen by hand");
  if (f === 1) words.push("forced");
  if (f === 2) words.push(`drafted ${DRAFTERS[d] ?? ""}`.trim());
  if (n) words.push(n === 1 ? "drawn again once" : `drawn again ${n} times`);
  if (p === null) words.push("not part of the answer");
  return words;
}

export function labelOf(record) {
  const said = [spoken(record.b), percent(record.l), ...wordsOf(record)];
  if (record.j) said.push(`${record.j.length} rejected here`);
  return said.join(", ");
}

/** Which of the two groups a token is in: thoughts are folded away, and marks stay in place. */
function groupOf(record, before) {
  if (record.p === "mark") return before ?? "thought";
  return record.p === "reasoning" ? "thought" : "answer";
}

export class TokenLines {
  #speller = new Speller();
  #records = [];
  groups = [];

  /** Take in a path; boxes of which nothing has changed stay the same objects. */
  update(path) {
    const known = this.#records;
    if (known.length > path.length || known.some((record, k) => record !== path[k])) {
      [this.#speller, this.#records, this.groups] = [new Speller(), [], []];
    }
    const { boxes } = this.groups.at(-1) ?? {};
    if (boxes && this.#records.length < path.length) boxes[boxes.length - 1] = { ...boxes.at(-1), items: [...boxes.at(-1).items] };
    for (let k = this.#records.length; k < path.length; k += 1) this.#add(path[k], k);
    return this;
  }

  #add(record, index) {
    const kind = groupOf(record, this.groups.at(-1)?.kind);
    if (this.groups.at(-1)?.kind !== kind) this.groups.push({ kind, start: index, end: index, boxes: [] });
    const group = this.groups.at(-1);
    if (!group.boxes.at(-1)?.open) group.boxes.push({ start: index, end: index, open: true, items: [], character: null });
    const box = group.boxes.at(-1);
    const before = record.p !== null && this.#speller.isOpen;
    const text = this.#speller.spell(record);
    const after = record.p !== null && this.#speller.isOpen;
    const token = { record, index, text, first: index === group.start };
    if (before || after || belongs(text, box.items.at(-1))) addPart(box, token, { before, after });
    else box.items.push(token);
    this.#records.push(record);
    group.end = box.end = index + 1;
    box.open = box.end - box.start < BOX || !text.endsWith("\n");
  }
}

/** A token that has a part of a character goes into the item of that character. */
function addPart(box, token, { before, after }) {
  if (!before || !box.character) {
    box.character = { whole: "", parts: [] };
    box.items.push(box.character);
  }
  const own = box.character;
  own.whole += token.text;
  own.parts.push({ ...token, text: "" });
  if (after) return;
  box.character = null;
  const last = box.items.at(-2);
  if (!belongs(token.text, last)) return;
  last.whole += own.whole;
  last.parts.push(...own.parts);
  box.items.pop();
}

const graphemes = new Intl.Segmenter(undefined, { granularity: "grapheme" });

/** Whether a text is seen as one with the character of several tokens before it, as the parts of many emoji are. */
const belongs = (text, last) => Boolean(text && last?.parts && [...graphemes.segment(last.whole + text)].length === 1);

/** The columns of a strip of the whole answer: {logprob, height} of the least likely token of each; null if
 *  none is known. */
export function columnsOf(logprobs, most = COLUMNS) {
  const width = Math.max(1, Math.ceil(logprobs.length / most));
  const columns = [];
  for (let start = 0; start < logprobs.length; start += width) {
    const known = logprobs.slice(start, start + width).filter((logprob) => logprob !== null);
    const least = known.length ? Math.min(...known) : null;
    columns.push(least === null ? null : { logprob: least, height: heightOf(least) });
  }
  return columns;
}

/** From 0 (99.99 % or more) to 1 (0.1 % or less): the logarithm of the odds, evenly. */
export function heightOf(logprob) {
  const p = Math.min(0.9999, Math.max(0.001, Math.exp(logprob)));
  const [most, least] = [Math.log(0.9999 / 0.0001), Math.log(0.001 / 0.999)];
  return Math.max(0, (most - Math.log(p / (1 - p))) / (most - least));
}
