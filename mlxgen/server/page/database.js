// The conversations that the browser keeps: each is one value in its database.
//
//   heads   by id: {id, title, changed}, for the list
//   bodies  by id: the conversation with all its nodes
//   aside   by id: what could not be read as a conversation; never read again
//
// A conversation is written whole, so the later of two writes wins. Never the API key.

import { conversationOf, isHead } from "./stored.js";

const NAME = "mlxgen-conversations";
const TABLES = ["heads", "bodies", "aside"];

/** @typedef {import("./conversation.js").Conversation} Conversation */
/** @typedef {{id: string, title: string, changed: number}} Head */

export const isFull = (error) => error?.name === "QuotaExceededError";

export class Database {
  #database;
  #channel = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(NAME);
  #asked = false;

  /** How many conversations could not be read and were set aside. */
  setAside = 0;

  /** The database; one that keeps nothing if this browser has none. */
  static async opened() {
    return new Database(await open());
  }

  constructor(database) {
    this.#database = database;
  }

  /** Whether everything is lost when the page is closed. */
  get keepsNothing() {
    return this.#database === null;
  }

  /** All conversations without their nodes, the newest first. @returns {Promise<Head[]>} */
  async heads() {
    if (this.keepsNothing) return [];
    const [ids, heads] = await this.#do("readonly", (tables) => [tables.heads.getAllKeys(), tables.heads.getAll()]);
    for (const [k, id] of ids.entries()) if (!isHead(heads[k], id)) await this.#putAside(id);
    return heads.filter((head, k) => isHead(head, ids[k])).sort((one, other) => other.changed - one.changed);
  }

  /** A conversation; null if it is not there, or cannot be read and was set aside.
   *  @returns {Promise<Conversation | null>} */
  async read(id) {
    if (this.keepsNothing) return null;
    const [head, body] = await this.#do("readonly", (tables) => [tables.heads.get(id), tables.bodies.get(id)]);
    if (!head) return null;
    const conversation = conversationOf(body, id);
    if (!conversation) await this.#putAside(id);
    return conversation;
  }

  /** Write a conversation as it is now; resolves when that is done. @param {Conversation} conversation */
  async write(conversation) {
    if (this.keepsNothing) return;
    const { id, title, changed } = conversation;
    await this.#do("readwrite", (tables) => [tables.heads.put({ id, title, changed }, id), tables.bodies.put(conversation, id)]);
    this.#channel?.postMessage({ id });
    this.#askToPersist();
  }

  async remove(id) {
    if (this.keepsNothing) return;
    await this.#do("readwrite", (tables) => [tables.heads.delete(id), tables.bodies.delete(id)]);
    this.#channel?.postMessage({ id });
  }

  async removeSetAside() {
    this.setAside = 0;
    await this.#do("readwrite", (tables) => [tables.aside.clear()]);
  }

  /** Call `changed(id)` when another tab has written or removed a conversation. */
  onChangedElsewhere(changed) {
    this.#channel?.addEventListener("message", ({ data }) => typeof data?.id === "string" && changed(data.id));
  }

  /** Make some requests in one transaction, and resolve to their results when all is done. They are
   *  committed at once: a page that is being left has no time to wait. */
  #do(mode, ask) {
    return new Promise((resolve, reject) => {
      const transaction = this.#database.transaction(TABLES, mode);
      const tables = Object.fromEntries(TABLES.map((name) => [name, transaction.objectStore(name)]));
      const requests = ask(tables);
      transaction.oncomplete = () => resolve(requests.map(({ result }) => result));
      transaction.onabort = () => reject(transaction.error);
      transaction.commit();
    });
  }

  async #putAside(id) {
    this.setAside += 1;
    const [head, body] = await this.#do("readonly", (tables) => [tables.heads.get(id), tables.bodies.get(id)]);
    await this.#do("readwrite", (tables) => [tables.aside.put({ head, body }, id), tables.heads.delete(id), tables.bodies.delete(id)]);
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
}

function open() {
  return new Promise((resolve) => {
    let asked;
    try {
      asked = window.indexedDB.open(NAME, 1);
    } catch {
      resolve(null); // it is disabled
      return;
    }
    asked.onupgradeneeded = () => TABLES.forEach((table) => asked.result.createObjectStore(table));
    asked.onerror = (event) => {
      event.preventDefault();
      resolve(null);
    };
    asked.onsuccess = () => {
      asked.result.onversionchange = () => asked.result.close();
      resolve(asked.result);
    };
  });
}
