// The conversations that the browser keeps, in its database.
//
//   conversations  by id: the conversation without its nodes; `order` has their ids, and `deleted` is
//                  when it was deleted, as long as that can be undone
//   nodes          by [conversation, node]: the node without its tokens
//   tokens, alternatives
//                  by [conversation, node, number of tokens before these]: bytes of packing.js
//   aside          what could not be read as a conversation; never read again
//
// A save writes what the database lacks: nodes that changed, and the tokens at the end of those that
// grew. Whoever changes tokens other than by `push` gives the node another list of them. Nodes that
// another tab added stay. Never the API key. If there is no room, the alternatives of the oldest
// conversations go first.

import { newId } from "./conversation.js";
import { found, isFull, openDatabase, transact, under } from "./database.js";
import { saidIn } from "./finding.js";
import * as journal from "./journal.js";
import { pack, unpack } from "./packing.js";
import { conversationOf, isListed } from "./stored.js";

const UNDO = 60_000; // milliseconds after which a deleted conversation is gone for good
const MANY = 8; // parts of an answer's tokens that are made one when it is complete
const FEW = 10; // conversations that lose their alternatives for one save at most: room may come late
const CHANNEL = "mlxgen";

let opened = null;

/** The store of this page. */
export const openStore = () => (opened ??= Store.opened());

class Store {
  #written = new Map(); // by conversation: what the database has of each node
  #waiting = new Map(); // by conversation: its save that has not begun yet
  #last = new Map(); // by id: what the next change waits for
  #channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(CHANNEL);
  #texts = null; // what `texts` read
  #patches = new Map(); // by id: fields of its record that are being written
  #page = newId();
  #asked = false;

  /** Whether this browser has no database, so that everything is lost when the page is closed. */
  keepsNothing = true;
  /** How many conversations could not be read. */
  setAside = 0;

  static async opened() {
    const store = new Store();
    store.keepsNothing = (await openDatabase()) === null;
    if (store.keepsNothing) return store;
    for (const entry of journal.olderConversations()) await store.#adoptOlder(entry);
    for (const entry of journal.unwritten()) await store.#adoptUnwritten(entry);
    return store;
  }

  // ---- reading ---------------------------------------------------------------------------------

  /** All conversations without their nodes, the newest first. */
  async list() {
    if (this.keepsNothing) return [];
    const [ids, records] = await transact("readonly", ({ conversations }) =>
      Promise.all([found(conversations.getAllKeys()), found(conversations.getAll())]));
    const listed = [];
    for (const [k, record] of records.entries()) {
      if (!isListed(record, ids[k])) await this.#putAside(ids[k]);
      else if (!record.deleted) listed.push(withoutOrder(record));
      else if (record.deleted < Date.now() - UNDO) await this.purge(ids[k]);
    }
    return listed.sort((one, other) => other.changed - one.changed);
  }

  /** One of the list; null if it is not there. */
  async listed(id) {
    const record = await transact("readonly", ({ conversations }) => found(conversations.get(id)));
    return isListed(record, id) && !record.deleted ? withoutOrder(record) : null;
  }

  /** A conversation; null if it is not there, or cannot be read and was set aside. Before it is saved,
   *  `adopt` has to say that it is what the database has. */
  async read(id) {
    const parts = await transact("readonly", (tables) => partsOf(tables, id));
    if (!parts.conversations[0] || parts.conversations[0].deleted) return null;
    const conversation = assembled(parts, id);
    if (!conversation) await this.#putAside(id);
    return conversation;
  }

  /** From now on, this is what was read of a conversation. */
  adopt(conversation) {
    const states = Object.values(conversation.nodes).map((node) => [node.id, stateOf(node, 1)]);
    this.#written.set(conversation.id, new Map(states));
  }

  /** Everything, as it was written so far. */
  async readAll() {
    await this.settled();
    const all = [];
    for (const { id } of await this.list()) all.push(await this.read(id));
    return all.filter(Boolean);
  }

  /** The texts of all conversations as [node's id, text], by conversation; read again if any changed. */
  texts() {
    this.#texts ??= this.keepsNothing ? Promise.resolve(new Map()) : transact("readonly", textsOf);
    return this.#texts.then((texts) => new Map(texts));
  }

  // ---- writing ---------------------------------------------------------------------------------

  /** Write what the database lacks of a conversation. Resolves to {problem, thinned}: the error if it
   *  could not be written, and how many others lost their alternatives to make room. */
  save(conversation) {
    if (this.keepsNothing) return Promise.resolve({ problem: null, thinned: 0 }); // said once, when the page opens
    const waiting = this.#waiting.get(conversation);
    if (waiting) return waiting; // it will hold this, too
    const save = this.#inTurn(conversation.id, () => {
      this.#waiting.delete(conversation);
      return this.#write(conversation);
    });
    this.#waiting.set(conversation, save);
    return save;
  }

  /** Resolves when all changes so far are written. */
  async settled() {
    await Promise.all(this.#last.values());
  }

  /** The page is being left: keep at once what the database lacks of what is loaded. */
  leave(conversations) {
    if (this.keepsNothing) return;
    for (const conversation of conversations) this.#keepUnwritten(conversation);
    for (const [id, patch] of this.#patches) journal.putUnwritten(id, this.#page, { patch });
  }

  #keepUnwritten(conversation) {
    const { nodes, ...record } = conversation;
    const states = this.#written.get(conversation.id) ?? new Map();
    const lacking = Object.values(nodes).flatMap((node) => {
      const { tokens, ...head } = node;
      const at = tokens ? writtenOf(tokens, states.get(node.id)) : 0;
      const same = isSame(head, states.get(node.id)?.head) && at === (tokens?.length ?? 0);
      return same ? [] : [{ head, at, tokens: tokens?.slice(at) }];
    });
    if (lacking.length || this.#last.has(conversation.id)) journal.putUnwritten(conversation.id, this.#page, { record, lacking });
  }

  /** Delete a conversation; `restore` undoes it until it is purged. */
  remove(id) {
    return this.#patch(id, { deleted: Date.now() });
  }

  restore(id) {
    return this.#patch(id, { deleted: 0 });
  }

  rename(id, title) {
    return this.#patch(id, { title });
  }

  async #patch(id, fields) {
    this.#patches.set(id, { ...this.#patches.get(id), ...fields });
    await this.#change(id, async ({ conversations }) => {
      const record = await found(conversations.get(id));
      if (record) conversations.put({ ...record, ...fields }, id);
    });
    this.#patches.delete(id);
    journal.removeUnwritten(id, this.#page);
  }

  purge(id) {
    return this.#change(id, async (tables) => {
      const record = await found(tables.conversations.get(id));
      if (record?.deleted) removeAll(tables, id);
    });
  }

  async removeSetAside() {
    journal.removeSetAside();
    await transact("readwrite", ({ aside }) => void aside.clear());
  }

  /** Call `changed(id)` when another tab changes a conversation. */
  onChangedElsewhere(changed) {
    this.#channel?.addEventListener("message", ({ data }) => {
      if (typeof data?.id !== "string") return;
      this.#texts = null;
      changed(data.id);
    });
  }

  // ---- how -------------------------------------------------------------------------------------

  /** Change one conversation after what is being done to it, and tell the other tabs. */
  #change(id, work) {
    if (this.keepsNothing) return Promise.resolve();
    return this.#inTurn(id, async () => {
      await transact("readwrite", work);
      this.#texts = null;
      this.#channel?.postMessage({ id });
    });
  }

  #inTurn(id, work) {
    const turn = (this.#last.get(id) ?? Promise.resolve()).then(work);
    const ended = turn.catch(() => {}).then(() => {
      if (this.#last.get(id) === ended) this.#last.delete(id);
    });
    this.#last.set(id, ended);
    return turn;
  }

  async #write(conversation) {
    const { id } = conversation;
    for (let thinned = 0; ; thinned += 1) {
      try {
        this.#written.set(id, await transact("readwrite", (tables) => this.#put(tables, conversation)));
        this.#texts = null;
        journal.removeUnwritten(id, this.#page);
        this.#channel?.postMessage({ id });
        this.#askToPersist();
        return { problem: null, thinned };
      } catch (problem) {
        if (!isFull(problem) || thinned === FEW || !(await thinOldest(id))) return { problem, thinned };
      }
    }
  }

  /** Write what is lacking; resolves to what the database has then. */
  async #put(tables, conversation) {
    const { nodes, ...record } = conversation;
    const { id } = record;
    const stored = await found(tables.conversations.get(id));
    const there = new Set(stored?.order);
    const before = this.#written.get(id) ?? new Map();
    // Nodes that this page never had are another tab's. They may build on what was removed here.
    const theirs = [...there].filter((node) => !nodes[node] && !before.has(node));
    const removed = [...before.keys()].filter((node) => !nodes[node] && there.has(node));
    const kept = theirs.length ? [...removed, ...theirs] : [];
    const after = new Map();
    for (const node of Object.values(nodes)) {
      after.set(node.id, putNode(tables, id, node, there.has(node.id) ? before.get(node.id) : undefined));
    }
    for (const node of theirs.length ? [] : removed) removeNode(tables, id, node);
    const chosen = Object.entries(stored?.chosen ?? {}).filter(([, node]) => kept.includes(node));
    tables.conversations.put({
      ...record, chosen: { ...Object.fromEntries(chosen), ...record.chosen }, order: [...Object.keys(nodes), ...kept],
    }, id);
    return after;
  }

  /** Ask once that the browser does not drop what is kept when its disk is full. */
  async #askToPersist() {
    if (this.#asked) return;
    this.#asked = true;
    try {
      if (!(await navigator.storage.persisted())) await navigator.storage.persist();
    } catch {
      // Only secure origins may ask; the browser keeps it as long as it has room.
    }
  }

  async #putAside(id) {
    this.setAside += 1;
    await transact("readwrite", async (tables) => {
      const parts = await partsOf(tables, id);
      tables.aside.put(parts, [id]);
      removeAll(tables, id);
    });
  }

  // ---- from localStorage -----------------------------------------------------------------------

  async #adoptOlder({ id, text, remove, setAside }) {
    const conversation = conversationOf(parsed(text), id);
    if (!conversation) {
      this.setAside += 1;
      setAside();
    } else if (!(await this.save(conversation)).problem) {
      remove();
    }
  }

  /** Write what a page that was left could not write any more. */
  async #adoptUnwritten({ id, text, remove, setAside }) {
    const { record, lacking, patch } = parsed(text) ?? {};
    if (patch) {
      await this.#patch(id, patch);
      return remove();
    }
    const stored = await this.read(id);
    if (stored) this.adopt(stored);
    else if (lacking?.some?.(({ at }) => at > 0)) return remove(); // the rest of it was deleted
    const conversation = conversationOf(merged(stored, record, lacking), id);
    if (!conversation) {
      this.setAside += 1;
      setAside();
    } else if (!(await this.save(conversation)).problem) {
      remove();
    }
    this.#written.delete(id);
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

function withoutOrder({ order, deleted, ...record }) {
  return record;
}

// ---- one conversation ----------------------------------------------------------------------------

async function textsOf({ conversations, nodes }) {
  const [ids, records, keys, heads] = await Promise.all([
    found(conversations.getAllKeys()), found(conversations.getAll()), found(nodes.getAllKeys()), found(nodes.getAll()),
  ]);
  const said = new Map(ids.map((id) => [id, new Map()]));
  keys.forEach(([id, node], k) => said.get(id)?.set(node, saidIn(heads[k] ?? {})));
  return new Map(ids.map((id, k) => [id, (records[k]?.order ?? []).map((node) => [node, said.get(id).get(node) ?? ""])]));
}

/** Everything that the tables have of a conversation. */
async function partsOf(tables, id) {
  const [record, nodes, tokens, alternatives, places, thinner] = await Promise.all([
    found(tables.conversations.get(id)),
    ...["nodes", "tokens", "alternatives"].map((table) => found(tables[table].getAll(under(id)))),
    ...["tokens", "alternatives"].map((table) => found(tables[table].getAllKeys(under(id)))),
  ]);
  return { conversations: [record], nodes, tokens, alternatives, places, thinner };
}

/** A conversation from its parts, checked; null if it is malformed. */
function assembled({ conversations: [record], nodes, tokens, alternatives, places, thinner }, id) {
  if (!isListed(record, id)) return null;
  const others = new Map(thinner.map((key, k) => [key.join(), alternatives[k]]));
  const lists = new Map(nodes.map((node) => [node?.id, []]));
  try {
    places.forEach((key, k) => {
      const list = lists.get(key[1]);
      list.length = Math.min(list.length, key[2]); // a part that begins earlier was written again
      for (const record of unpack({ tokens: tokens[k], alternatives: others.get(key.join()) })) list.push(record);
    });
  } catch {
    return null;
  }
  const byId = new Map(nodes.map((node) => [node?.id, node]));
  const ordered = record.order.map((node) => [node, byId.get(node)]);
  for (const [node, head] of ordered) if (head?.role === "assistant") head.tokens = lists.get(node);
  return conversationOf({ ...withoutOrder(record), nodes: Object.fromEntries(ordered) }, id);
}

/** What was stored of a conversation, with what a page could not write any more. */
function merged(stored, record, lacking) {
  try {
    const conversation = { ...record, nodes: { ...stored?.nodes } };
    for (const { head, at, tokens } of lacking) {
      const before = stored?.nodes[head.id]?.tokens ?? [];
      if (at > before.length) return null;
      conversation.nodes[head.id] = tokens ? { ...head, tokens: [...before.slice(0, at), ...tokens] } : head;
    }
    return conversation;
  } catch {
    return null; // it is not what this page writes
  }
}

/** What the database has of a node that was just written. */
function stateOf({ tokens, ...head }, parts) {
  return { head: structuredClone(head), tokens, length: tokens?.length, end: tokens?.at(-1), parts };
}

/** How many of these tokens the database has. */
function writtenOf(tokens, state) {
  const grown = state && state.tokens === tokens && tokens.length >= state.length && tokens[state.length - 1] === state.end;
  return grown ? state.length : 0;
}

/** Write what is lacking of a node; returns what the database has then. */
function putNode(tables, conversation, node, state) {
  const { tokens, ...head } = node;
  const key = [conversation, node.id];
  if (!isSame(head, state?.head)) tables.nodes.put(head, key);
  else if (!tokens || (writtenOf(tokens, state) === tokens.length && state.parts <= MANY)) return state;
  if (!tokens) return stateOf(node, 0);
  let at = writtenOf(tokens, state);
  let parts = state?.parts ?? 0;
  if (at === 0 || (head.finish && parts > MANY)) {
    for (const table of ["tokens", "alternatives"]) tables[table].delete(under(...key));
    at = parts = 0;
  }
  if (at < tokens.length) {
    const packed = pack(tokens.slice(at));
    tables.tokens.put(packed.tokens, [...key, at]);
    if (packed.alternatives) tables.alternatives.put(packed.alternatives, [...key, at]);
    parts += 1;
  }
  return stateOf(node, parts);
}

/** Whether two nodes, without their tokens, are the same. */
function isSame(head, other) {
  if (!other || Object.keys(head).length !== Object.keys(other).length) return false;
  return Object.entries(head).every(([name, value]) =>
    value === other[name] || (typeof value === "object" && JSON.stringify(value) === JSON.stringify(other[name])));
}

function removeNode(tables, conversation, node) {
  for (const table of ["nodes", "tokens", "alternatives"]) tables[table].delete(under(conversation, node));
}

function removeAll(tables, id) {
  tables.conversations.delete(id);
  for (const table of ["nodes", "tokens", "alternatives"]) tables[table].delete(under(id));
}

/** Drop the alternatives of the conversation that was changed longest ago; false if none has any. */
function thinOldest(except) {
  return transact("readwrite", async ({ conversations, alternatives }) => {
    const keys = await found(alternatives.getAllKeys());
    const some = new Set(keys.map(([id]) => id));
    const records = (await found(conversations.getAll())).filter(({ id }) => id !== except && some.has(id));
    if (!records.length) return false;
    records.sort((one, other) => one.changed - other.changed);
    alternatives.delete(under(records[0].id));
    return true;
  });
}
