// An answer whose text a person changed: which of its tokens stay, and what comes after them.
//
// What is unchanged at the beginning keeps its tokens, with all that is known about them. The rest is
// tokenised, from the beginning of the word in which it starts, so that the model sees words as it
// would write them. Tokens that come out as they were are kept, too. Nothing here touches the page.

import { bytesIn, packed } from "./records.js";

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const isSpace = (byte) => byte === 0x20 || (byte >= 0x09 && byte <= 0x0d);
const continues = (byte) => (byte & 0xc0) === 0x80;

/** What becomes of the records `path` if the content is to be `text`: the first `at` of them stay, and
 *  the text `rest` follows, of which the first `lead` bytes are not content. */
export function planOf(path, text) {
  const shares = path.map((record) => bytesIn(record, "content"));
  const ends = [];
  for (const share of shares) ends.push((ends.at(-1) ?? 0) + share.length);
  const wanted = encoder.encode(text);
  const common = commonBytes(shares, wanted);
  const own = [...shares.keys()].filter((k) => shares[k].length);
  if (!own.length) return { at: endOf(path), rest: text, lead: 0 };
  const [first] = own;
  const last = own.at(-1);
  const startOf = (k) => (k > last ? ends[last] : ends[k] - shares[k].length);
  const changed = own.find((k) => ends[k] > common) ?? last + 1;
  if (startOf(changed) === wanted.length) return { at: changed, rest: "", lead: 0 };
  const begins = (k) => k === first || path[k - 1].p !== "content" || (isSpace(wanted[startOf(k)]) && !isSpace(wanted[startOf(k) - 1]));
  let at = changed;
  while (!begins(at)) at -= 1;
  while (at > first && continues(wanted[startOf(at)])) at -= 1;
  const lead = leadOf(path[at], shares[at]);
  return { at, rest: decoder.decode(lead) + decoder.decode(wanted.subarray(startOf(at))), lead: lead.length };
}

/** Where the answer ends: before the tokens that are no part of it, and before a stop string. */
export function endOf(path) {
  let end = path.length;
  while (end && !isWhole(path[end - 1])) end -= 1;
  return end;
}

const isWhole = (record) => {
  if (record.p === null) return false;
  const told = (record.c?.length ?? 0) + (record.r?.length ?? 0);
  return !told || told >= sizeOf(record) || record.p === "mark";
};

const sizeOf = ({ b }) => (typeof b === "string" ? encoder.encode(b).length : b.length);

function commonBytes(shares, wanted) {
  let count = 0;
  for (const share of shares) {
    for (const byte of share) {
      if (byte !== wanted[count]) return count;
      count += 1;
    }
  }
  return count;
}

/** The bytes of a token before those that are content, such as the end of the thinking. */
function leadOf(record, share) {
  if (!record || !share?.length) return new Uint8Array();
  const whole = typeof record.b === "string" ? encoder.encode(record.b) : Uint8Array.from(record.b);
  const before = whole.length - share.length;
  return share.every((byte, k) => byte === whole[before + k]) ? whole.subarray(0, before) : new Uint8Array();
}

/** How many of the first tokens stay after all, and the records of the others; `pieces` are
 *  {id, piece}, the tokens of the rest of the plan. */
export function typedFrom(path, { at, lead }, pieces) {
  let same = 0;
  while (same < pieces.length && path[at + same]?.i === pieces[same].id && isWhole(path[at + same])) same += 1;
  let left = lead;
  const records = pieces.map(({ id, piece }) => {
    const bytes = typeof piece === "string" ? encoder.encode(piece) : Uint8Array.from(piece);
    const record = { i: id, b: packed(bytes), p: left >= bytes.length ? "mark" : "content", l: null, h: 2 };
    if (left && left < bytes.length) record.c = [...bytes.subarray(left)];
    left = Math.max(0, left - bytes.length);
    return record;
  });
  return { at: at + same, typed: records.slice(same) };
}
