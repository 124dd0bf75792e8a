// Tokens as the page stores them: what the server said about each, packed and unpacked.
//
// A record has short names because thousands of them are stored:
//   i  id                      b  bytes: a string, or a list if they are not text by themselves
//   p  part of the answer: content, reasoning, tool_call, mark, or null for none
//   l  log-probability, null if unknown       a  alternatives in one list: id, bytes, log-probability, id, ...
//   f  1: forced, 2: drafted   n  how often the place was drawn again       d  who drafted it
//   h  1: chosen by hand, 2: typed        x  ids that the form of the answer does not allow here
//   j  what was rejected here: [id, bytes, reason], and who or what for
//   c, r  bytes in the content and in the reasoning, where these are not those of the part
//
// Nothing here touches the page.

/** How a token was drafted, by the server's name for it. */
export const DRAFTERS = { text: "from earlier text", head: "by the model's own head", model: "by a draft model" };

const encoder = new TextEncoder();
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes as they are stored: a string, if they are text. */
export function packed(bytes) {
  try {
    return strict.decode(Uint8Array.from(bytes));
  } catch {
    return [...bytes];
  }
}

const unpacked = (piece) => (typeof piece === "string" ? encoder.encode(piece) : Uint8Array.from(piece));

const rounded = (logprob) => (logprob === null ? null : Math.round(logprob * 1e5) / 1e5);

/** The records of the tokens in an event. */
export function recordsOf(choice) {
  const tokens = choice.tokens ?? [];
  const content = shares(choice.logprobs?.content, "content", tokens);
  const thoughts = shares(choice.logprobs?.reasoning_content, "reasoning", tokens);
  return tokens.map((token, k) => recordOf(token, content[k], thoughts[k]));
}

function recordOf(token, content, reasoning) {
  const record = { i: token.id, b: packed(token.bytes), p: token.part, l: rounded(token.logprob) };
  if (token.top_logprobs.length) {
    record.a = token.top_logprobs.flatMap((other) => [other.id, packed(other.bytes), rounded(other.logprob)]);
  }
  const forbidden = token.top_logprobs.filter((other) => other.allowed === false).map((other) => other.id);
  if (forbidden.length) record.x = forbidden;
  if (token.rejected?.length) {
    record.j = token.rejected.map(({ id, bytes, reason, by }) => [id, packed(bytes), reason, ...(by ? [by] : [])]);
  }
  if (token.forced) record.f = 1;
  else if (token.from_draft) {
    record.f = 2;
    if (token.drafter) record.d = token.drafter;
  }
  if (token.attempts) record.n = token.attempts;
  // Most tokens are in one part as a whole; a token that ends the thinking may be in two.
  if (content && !(token.part === "content" && content.length === token.bytes.length)) record.c = content;
  if (reasoning && !(token.part === "reasoning" && reasoning.length === token.bytes.length)) record.r = reasoning;
  return record;
}

/** For each token its bytes in one part of the answer, or null. The entries of a part are those of
 *  some of the tokens, in order; a token whose first bytes are elsewhere may still be among them. */
function shares(entries, part, tokens) {
  let spare = (entries?.length ?? 0) - tokens.filter((token) => token.part === part).length;
  let next = 0;
  return tokens.map((token) => {
    if (!entries || next >= entries.length || token.part === null) return null;
    if (token.part !== part) {
      if (spare <= 0 || !within(entries[next].bytes, token.bytes)) return null;
      spare -= 1;
    }
    return entries[next++].bytes;
  });
}

/** The alternatives of a record: {id, piece, logprob}. */
export function alternativesOf({ a = [] }) {
  const found = [];
  for (let k = 0; k < a.length; k += 3) found.push({ id: a[k], piece: a[k + 1], logprob: a[k + 2] });
  return found;
}

const within = (few, many) => `,${many},`.includes(`,${few},`);

/** The records of pieces that were typed, [{id, piece}], instead of what follows `path`; `replaced` is
 *  the record that was there, of which they keep the alternatives. */
export function typed(path, pieces, replaced) {
  const whole = [...path];
  for (const { id, piece } of pieces) {
    const known = whole.length === path.length && replaced ? alternativesOf(replaced).find((other) => other.id === id) : null;
    const record = { i: id, b: piece, p: partOf(whole, piece), l: known ? known.logprob : null, h: 2 };
    if (replaced?.a && whole.length === path.length) record.a = replaced.a;
    if (replaced?.x && whole.length === path.length) record.x = replaced.x;
    whole.push(record);
  }
  return whole.slice(path.length);
}

/** The record of an alternative that was chosen instead of the last of `path`. */
export function chosen(path, id) {
  const replaced = path.at(-1);
  const { piece, logprob } = alternativesOf(replaced).find((other) => other.id === id);
  const record = { i: id, b: piece, p: partOf(path, piece), l: logprob, a: replaced.a, h: 1 };
  if (replaced.x) record.x = replaced.x;
  return record;
}

/** Which part of the answer a piece will be in: the server does not say so for tokens that it was sent. */
function partOf(path, piece) {
  const text = typeof piece === "string" ? piece.trim() : "";
  const marks = path.filter((record) => record.p === "mark").map((record) => String(record.b).trim());
  if (text && (marks.includes(text) || /^<\/?think>$/.test(text))) return "mark";
  if (text === "<tool_call>") return "tool_call";
  for (let k = path.length - 1; k >= 0; k -= 1) {
    if (path[k].p && path[k].p !== "mark") return path[k].p;
    if (k < path.length - 1 && path[k].p === "mark" && String(path[k].b).trim()) {
      return String(path[k].b).includes("/") ? "content" : "reasoning";
    }
  }
  return "content";
}

/** The text of a part of the answer, `content` or `reasoning`, without an incomplete character. */
export function textOf(records, part) {
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  let text = "";
  let blank = []; // white space before a mark: text after all, if another token was chosen for the mark
  for (const record of records) {
    const bytes = Uint8Array.from(bytesIn(record, part));
    if (bytes.length) {
      for (const held of record.h ? blank : []) text += decoder.decode(held, { stream: true });
      text += decoder.decode(bytes, { stream: true });
      blank = [];
    } else if (text && record.p === "mark" && typeof record.b === "string" && !record.b.trim()) {
      blank.push(unpacked(record.b));
    } else {
      blank = [];
    }
  }
  return text;
}

/** The bytes of a token in a part of the answer, `content` or `reasoning`. */
export function bytesIn(record, part) {
  const own = part === "content" ? record.c : record.r;
  if (own) return Uint8Array.from(own);
  return record.p === part ? unpacked(record.b) : [];
}

/** What to show for each record, one after the other: characters appear with the token that
 *  completes them. Tokens that are not part of the answer are spelled by themselves. */
export class Speller {
  #decoder = new TextDecoder("utf-8", { ignoreBOM: true });
  #missing = 0; // bytes of a character that has begun

  /** Whether a character has begun that the next token goes on with. */
  get isOpen() {
    return this.#missing > 0;
  }

  spell(record) {
    const { b } = record;
    if (record.p === null) return typeof b === "string" ? b : hex(b);
    if (typeof b === "string" && !this.#missing) return b;
    const bytes = unpacked(b);
    for (const byte of bytes) this.#missing = byte >> 6 === 2 ? Math.max(0, this.#missing - 1) : lengthAfter(byte);
    return this.#decoder.decode(bytes, { stream: true });
  }
}

/** How many bytes of a character follow its first one. */
const lengthAfter = (byte) => (byte < 0xc2 || byte > 0xf4 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3);

export const hex = (bytes) => Array.from(bytes, (byte) => `‹${byte.toString(16).padStart(2, "0")}›`).join("");

const BLANKS = { " ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍" };
// White space, and what has no width by itself; a joiner before a part of an emoji is seen in that.
const UNSEEN = /[\p{Z}\p{Cc}]|\p{Cf}(?!\p{Extended_Pictographic})/gu;

/** A piece with its white space, and other characters that are not seen, made visible: for lists and labels. */
export function visible(piece) {
  if (typeof piece !== "string") return hex(piece);
  if (piece === "") return "(nothing)";
  return piece.replace(UNSEEN, (one) => BLANKS[one] ?? `‹${one.codePointAt(0).toString(16).padStart(4, "0")}›`);
}

/** A piece as a screen reader should say it. */
export function spoken(piece) {
  if (typeof piece !== "string") return `part of a character, byte ${piece.map((b) => b.toString(16)).join(" ")}`;
  if (piece === "\n") return "line break";
  if (piece && !piece.trim()) return "space";
  const seen = piece.trim();
  return `“${seen.replace(UNSEEN, "") ? seen : visible(piece)}”`;
}

/** How likely, from 0 (almost certain) to 12; null if that is not known. */
export function levelOf(logprob) {
  if (logprob === null) return null;
  const p = Math.exp(logprob) + 1e-9; // log-probabilities are rounded
  return LEVELS.findIndex((least) => p >= least);
}

/** The least probability of each level: the logarithm of the odds falls about evenly. */
export const LEVELS = [0.9999, 0.999, 0.99, 0.97, 0.9, 0.75, 0.5, 0.25, 0.1, 0.03, 0.01, 0.001, 0];

/** A probability as people read it. */
export function percent(logprob) {
  if (logprob === null) return "unknown";
  const value = Math.exp(logprob) * 100;
  if (value >= 99.95) return "> 99.9 %";
  if (value >= 10) return `${value.toFixed(1)} %`;
  if (value >= 0.01) return `${value.toFixed(2)} %`;
  return "< 0.01 %";
}
