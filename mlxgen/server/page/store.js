// What the page shows, in one place that views subscribe to.
//
// `state` has what is shown: `set` replaces parts of it. Conversations and their nodes are large and are
// changed in place; whoever does that says so with `touch`, or with `grew` while an answer grows. Views
// select what they show of the state or of these revisions, and are drawn again if that has changed.

import { createContext } from "preact";
import { useContext, useLayoutEffect, useReducer, useRef } from "preact/hooks";

const PATIENCE = 3; // times as long as the last drawing took, the next one of an answer that grows waits

/**
 * @template State
 */
export class Store {
  #listeners = new Set();
  #revisions = new WeakMap();
  #planned = false;
  #due = 0;

  /** @param {State} state */
  constructor(state) {
    /** @type {State} */
    this.state = state;
  }

  /** Call `listener` after every change; returns a function that ends that.
   *  @param {() => void} listener */
  subscribe(listener) {
    this.#listeners.add(listener);
    return () => void this.#listeners.delete(listener);
  }

  /** @param {Partial<State>} change */
  set(change) {
    this.state = { ...this.state, ...change };
    this.#tell();
  }

  /** Something was changed in place. @param {object[]} things */
  touch(...things) {
    this.#count(things);
    this.#tell();
  }

  /** The same, to be shown with the next frame; often, but never so often that the page stalls.
   *  @param {object[]} things */
  grew(...things) {
    this.#count(things);
    if (this.#planned) return;
    this.#planned = true;
    setTimeout(() => requestAnimationFrame(() => this.#draw()), Math.max(0, this.#due - performance.now()));
  }

  /** How often something was changed. @param {object} thing @returns {number} */
  revision(thing) {
    return this.#revisions.get(thing) ?? 0;
  }

  #count(things) {
    for (const thing of things) this.#revisions.set(thing, this.revision(thing) + 1);
  }

  #draw() {
    const start = performance.now();
    this.#planned = false;
    this.#tell();
    // Views are drawn after this task; a message comes after that.
    setTimeout(() => (this.#due = performance.now() + PATIENCE * (performance.now() - start)));
  }

  #tell() {
    for (const listener of [...this.#listeners]) listener();
  }
}

/** {store, session, acts} of the page. */
export const Page = createContext(/** @type {any} */ (null));

/** What `select` takes of the store; the view is drawn again whenever that changes.
 *  @template T @param {(state: any, store: Store<any>) => T} select @returns {T} */
export function useStore(select) {
  const { store } = useContext(Page);
  const [, again] = useReducer((count) => count + 1, 0);
  const last = useRef(/** @type {any} */ (null));
  const value = select(store.state, store);
  last.current = { select, value };
  useLayoutEffect(() => store.subscribe(() => {
    if (!Object.is(last.current.select(store.state, store), last.current.value)) again(null);
  }), [store]);
  return value;
}

/** Parts of the state, by their names. @param {string[]} names @returns {any} */
export const useParts = (...names) => Object.fromEntries(names.map((name) => [name, useStore((state) => state[name])]));

/** Draw the view again whenever one of these things is changed in place. @param {object[]} things */
export const useChanges = (...things) => useStore((_, store) => things.map((thing) => store.revision(thing)).join());

/** Resolves after what was changed is drawn: preact does that in a microtask, and so do its effects. */
export async function drawn() {
  for (let k = 0; k < 3; k += 1) await null;
}
