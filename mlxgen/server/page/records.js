// Tokens as the page stores them: what the server said about each, packed and unpacked, and put by hand.
//
// A record has short names because thousands of them are stored:
//   i  id                      b  bytes: a string, or a list if they are not text by themselves
//   p  part of the answer: content, reasoning, tool_call, mark, or null for none
//   l  log-probability, null if unknown       a  alternatives in one list: id, bytes, log-probability, id, ...
//   f  1: forced, 2: drafted   n  how often the place was drawn again       d  who drafted it
//   h  1: chosen by hand, 2: typed        x  ids that the form of the answer does not allow here
//   j  what was rejected here: [id, bytes, reason], and who or what for, and the text that began with it
//   c, r  bytes in the content and in the reasoning, where these are not those of the part
//
// Nothing here touches the page.

/** How a token was drafted, by the server's name for it. */
export const DRAFTERS = { text: "from earlier text", head: "by the model's own head", model: "by a draft model" };

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { ignoreBOM: true });
const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

/** Bytes as they are stored: a string, if they are text. */
function packed(bytes) {
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
  const content = sharesOf(choice.logprobs?.content, "content", tokens);
  const thoughts = sharesOf(choice.logprobs?.reasoning_content, "reasoning", tokens);
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
    record.j = token.rejected.map(({ id, bytes, reason, by, text }) =>
      text ? [id, packed(bytes), reason, by ?? "", text] : [id, packed(bytes), reason, ...(by ? [by] : [])],
    );
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
function sharesOf(entries, part, tokens) {
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

/** The records of pieces that a person put after `path`, [{id, piece}], chosen (`how` is 1) or typed (2). The
 *  first keeps the alternatives of the record that it replaces. */
export function putByHand(path, pieces, replaced, how) {
  const whole = [...path];
  for (const { id, piece } of pieces) {
    const record = { i: id, b: piece, p: partOf(whole, piece), l: null, h: how };
    if (replaced?.a && whole.length === path.length) {
      record.l = alternativesOf(replaced).find((other) => other.id === id)?.logprob ?? null;
      record.a = replaced.a;
      if (replaced.x) record.x = replaced.x;
    }
    whole.push(record);
  }
  return whole.slice(path.length);
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
  const own = new TextDecoder("utf-8", { ignoreBOM: true });
  let text = "";
  let blank = []; // white space before a mark: text after all, if another token was chosen for the mark
  for (const record of records) {
    const bytes = Uint8Array.from(bytesIn(record, part));
    if (bytes.length) {
      for (const held of record.h ? blank : []) text += own.decode(held, { stream: true });
      text += own.decode(bytes, { stream: true });
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
function bytesIn(record, part) {
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
  return piece.replace(UNSEEN, (one) => BLANKS[one] ?? `‹${Number(one.codePointAt(0)).toString(16).padStart(4, "0")}›`);
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

// ---- answers that a person changes -------------------------------------------------------------
//
// What is unchanged at the beginning of an edited text keeps its tokens, with all that is known about them. The
// rest is tokenised, from the beginning of the word in which it starts, so that the model sees words as it would
// write them. Tokens that come out as they were are kept, too.

const SIGNS = { n: "\n", t: "\t", r: "\r", "\\": "\\", "#": "#" };

/** What is meant by what is typed instead of a token: {ids} for "#12 #7", {text}, or null if nothing was typed. */
export function meantBy(typed) {
  if (/^\s*#\d+(?:[\s,]+#\d+)*\s*$/.test(typed)) return { ids: typed.match(/\d+/g).map(Number) };
  const text = typed.replace(/\\([ntr\\#])/g, (_, sign) => SIGNS[sign]);
  return text ? { text } : null;
}

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
  return !told || told >= unpacked(record.b).length || record.p === "mark";
};

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
  const whole = unpacked(record.b);
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
    const bytes = unpacked(piece);
    const record = { i: id, b: packed(bytes), p: left >= bytes.length ? "mark" : "content", l: null, h: 2 };
    if (left && left < bytes.length) record.c = [...bytes.subarray(left)];
    left = Math.max(0, left - bytes.length);
    return record;
  });
  return { at: at + same, typed: records.slice(same) };
}
