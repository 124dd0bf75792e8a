// Token records as bytes, and back: what the database keeps of an answer's tokens.
//
// `pack` gives two lists of bytes, because the alternatives can be dropped when there is no room:
// `unpack` then gives the records without them. Pieces stand once in a table, log-probabilities are
// whole numbers of 1e-5, and every other field, also one that is not known here, is a column of runs:
// its values as JSON, each with the number of records in a row that have it. Records are plain JSON:
// `unpack(pack(records))` equals `records`. What is not such bytes makes `unpack` throw; what it returns
// has ids, pieces, log-probabilities and alternatives of the right kinds.

const VERSION = 1;
const SCALE = 1e5; // records.js rounds log-probabilities to this
const ABSENT = 0;
const NULL = 1;
const FLOAT = 2; // eight bytes follow; other codes are three more than a whole number
const TEXT = 0; // kinds of pieces
const BYTES = 1;
const JSON_TEXT = 2; // a string that UTF-8 cannot hold: half of a surrogate pair

const unpacked = new WeakSet();

/** Whether these alternatives come from `unpack`, so that they need no check: there are very many. */
export const isUnpacked = (alternatives) => unpacked.has(alternatives);

/** The records as {tokens, alternatives}; `alternatives` is null if there are none. */
export function pack(records) {
  const tokens = new Writer();
  const pieces = new Pieces();
  tokens.count(records.length);
  for (const { i, b } of records) tokens.count(pieces.place(i, b));
  for (const { l } of records) tokens.logprob(l);
  const columns = new Set(records.flatMap(Object.keys));
  for (const packed of ["i", "b", "l", "a"]) columns.delete(packed);
  tokens.count(columns.size);
  for (const name of columns) {
    tokens.text(name);
    tokens.runs(records.map((record) => record[name]));
  }
  return { tokens: tokens.end(pieces), alternatives: records.some(({ a }) => a) ? packAlternatives(records) : null };
}

function packAlternatives(records) {
  const writer = new Writer();
  const pieces = new Pieces();
  const all = records.flatMap(({ a }) => a ?? []);
  for (const { a } of records) writer.count(a ? a.length + 1 : 0);
  for (const [id, piece] of all) writer.count(pieces.place(id, piece));
  for (const [, , logprob] of all) writer.logprob(logprob);
  writer.runs(all.map((one) => (one.length > 3 ? one.slice(3) : undefined)));
  return writer.end(pieces);
}

/** The records of which these are the bytes; throws if they are not. */
export function unpack({ tokens, alternatives = null }) {
  const reader = new Reader(tokens);
  const count = reader.count();
  const pieces = reader.many(count, () => reader.piece());
  const records = pieces.map(([i, b]) => {
    const l = reader.logprob();
    return l === undefined ? { i, b } : { i, b, l };
  });
  for (let columns = reader.count(); columns > 0; columns -= 1) {
    const name = reader.text();
    reader.runs(count, (k, value) => (records[k][name] = value));
  }
  reader.end();
  if (alternatives) unpackAlternatives(alternatives, records);
  return records;
}

function unpackAlternatives(bytes, records) {
  const reader = new Reader(bytes);
  const counts = records.map(() => reader.count());
  const total = counts.reduce((sum, count) => sum + Math.max(0, count - 1), 0);
  const pieces = reader.many(total, () => reader.piece());
  const all = pieces.map(([id, piece]) => {
    const logprob = reader.logprob();
    return logprob === undefined ? [id, piece] : [id, piece, logprob];
  });
  reader.runs(total, (k, more) => all[k].push(...more));
  reader.end();
  let next = 0;
  counts.forEach((count, k) => {
    if (!count) return;
    records[k].a = all.slice(next, (next += count - 1));
    unpacked.add(records[k].a);
  });
}

/** Distinct ids with their bytes, in the order of their first use. */
class Pieces {
  #places = new Map(); // by id: of mostly one piece
  list = [];

  place(id, piece) {
    const known = this.#places.get(id) ?? [];
    for (const place of known) {
      const other = this.list[place][1];
      if (other === piece || (typeof other === "object" && String(other) === String(piece) && typeof piece === "object")) return place;
    }
    this.#places.set(id, [...known, this.list.length]);
    return this.list.push([id, piece]) - 1;
  }
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

class Writer {
  #bytes = new Uint8Array(1024);
  #length = 0;

  #room(more) {
    if (this.#length + more <= this.#bytes.length) return;
    const larger = new Uint8Array(2 * (this.#length + more));
    larger.set(this.#bytes);
    this.#bytes = larger;
  }

  /** A whole number, seven bits in a byte. */
  count(value) {
    this.#room(8);
    while (value > 127) {
      this.#bytes[this.#length++] = (value % 128) + 128;
      value = Math.floor(value / 128);
    }
    this.#bytes[this.#length++] = value;
  }

  #raw(bytes) {
    this.count(bytes.length);
    this.#room(bytes.length);
    this.#bytes.set(bytes, this.#length);
    this.#length += bytes.length;
  }

  text(text) {
    this.#raw(encoder.encode(text));
  }

  logprob(value) {
    if (value === undefined) return this.count(ABSENT);
    if (value === null) return this.count(NULL);
    const whole = -Math.round(value * SCALE);
    if (whole >= 0 && Number.isSafeInteger(whole) && -whole / SCALE === value) return this.count(whole + 3);
    this.count(FLOAT);
    this.#room(8);
    new DataView(this.#bytes.buffer).setFloat64(this.#length, value);
    this.#length += 8;
  }

  #piece(piece) {
    if (typeof piece !== "string") {
      this.count(BYTES);
      return this.#raw(Uint8Array.from(piece));
    }
    const bytes = encoder.encode(piece);
    const fits = decoder.decode(bytes) === piece;
    this.count(fits ? TEXT : JSON_TEXT);
    this.#raw(fits ? bytes : encoder.encode(JSON.stringify(piece)));
  }

  runs(values) {
    const places = new Map([[undefined, 0]]);
    const runs = [];
    for (const value of values) {
      const text = JSON.stringify(value);
      if (!places.has(text)) places.set(text, places.size);
      const place = places.get(text);
      if (runs.at(-1)?.place === place) runs.at(-1).length += 1;
      else runs.push({ place, length: 1 });
    }
    this.count(places.size - 1);
    for (const text of [...places.keys()].slice(1)) this.text(text);
    for (const { place, length } of runs) {
      this.count(place);
      this.count(length);
    }
  }

  /** What was written, after the pieces that it refers to. */
  end(pieces) {
    const before = new Writer();
    before.count(VERSION);
    before.count(pieces.list.length);
    for (const [id, piece] of pieces.list) {
      before.count(id);
      before.#piece(piece);
    }
    const whole = new Uint8Array(before.#length + this.#length);
    whole.set(before.#bytes.subarray(0, before.#length));
    whole.set(this.#bytes.subarray(0, this.#length), before.#length);
    return whole;
  }
}

class Reader {
  #bytes;
  #at = 0;
  #pieces;

  constructor(bytes) {
    this.#bytes = bytes;
    if (this.count() !== VERSION) throw new RangeError("expected packed tokens of version 1");
    this.#pieces = this.many(this.count(), () => [this.count(), this.#piece()]);
  }

  #byte() {
    if (this.#at >= this.#bytes.length) throw new RangeError("packed tokens end too early");
    return this.#bytes[this.#at++];
  }

  count() {
    let byte = this.#byte();
    let value = byte & 127;
    for (let scale = 128; byte > 127; scale *= 128) {
      byte = this.#byte();
      value += (byte & 127) * scale;
    }
    if (value > Number.MAX_SAFE_INTEGER) throw new RangeError("a number in packed tokens is too large");
    return value;
  }

  /** So many things, each of which takes a byte at least. */
  many(count, one) {
    if (count > this.#bytes.length) throw new RangeError("packed tokens end too early");
    const found = [];
    for (let k = 0; k < count; k += 1) found.push(one());
    return found;
  }

  #raw() {
    const length = this.count();
    if (this.#at + length > this.#bytes.length) throw new RangeError("packed tokens end too early");
    return this.#bytes.subarray(this.#at, (this.#at += length));
  }

  text() {
    return decoder.decode(this.#raw());
  }

  logprob() {
    const code = this.count();
    if (code === ABSENT) return undefined;
    if (code === NULL) return null;
    if (code > FLOAT) return code === 3 ? 0 : -(code - 3) / SCALE;
    if (this.#at + 8 > this.#bytes.length) throw new RangeError("packed tokens end too early");
    const { buffer, byteOffset } = this.#bytes;
    const value = new DataView(buffer, byteOffset).getFloat64((this.#at += 8) - 8);
    if (!Number.isFinite(value)) throw new RangeError("a packed log-probability is not a number");
    return value;
  }

  #piece() {
    const kind = this.count();
    if (kind === BYTES) return Array.from(this.#raw());
    if (kind === JSON_TEXT) return String(JSON.parse(this.text()));
    if (kind !== TEXT) throw new RangeError(`no piece is of kind ${kind}`);
    return this.text();
  }

  /** An id with its bytes; the same list each time. */
  piece() {
    const found = this.#pieces[this.count()];
    if (!found) throw new RangeError("packed tokens refer to a piece that is not there");
    return found;
  }

  /** Calls `each(k, value)` for those of `total` records that have a value. */
  runs(total, each) {
    const values = [undefined, ...this.many(this.count(), () => JSON.parse(this.text()))];
    for (let k = 0; k < total; ) {
      const place = this.count();
      const end = k + this.count();
      if (place >= values.length || end === k || end > total) throw new RangeError("packed runs do not add up");
      if (place) for (let at = k; at < end; at += 1) each(at, values[place]);
      k = end;
    }
  }

  end() {
    if (this.#at !== this.#bytes.length) throw new RangeError("packed tokens are longer than they say");
  }
}
