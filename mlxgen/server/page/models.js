// The models of the server: which there are, and how far each is loaded.
//
// A list is what /v1/models says: {id, status: {value, progress, failed, reason}, parent, max_model_len} of
// each; empty at first. The server is asked again while something is on its way or somebody watches.

import { get, post } from "./api.js";

const SOON = 700; // milliseconds

/** The model that a name means, the default one for none; undefined if it is gone, or nothing is known. */
export const find = (list, name) => (name ? list.find((model) => model.id === name) : list[0]);

/** Whether a conversation wants a model that the server does not have any more. */
export const isGone = (list, name) => Boolean(name) && list.length > 0 && !find(list, name);

/** Which model answers. */
export const answering = (list, name) => find(list, name) ?? list[0];

export const isLoaded = (list, name) => answering(list, name)?.status.value === "loaded";

/** What an answer of a model waits for, if that is the model; empty otherwise. */
export function waitFor(list, name) {
  const { value, progress } = answering(list, name)?.status ?? { value: "loaded" };
  if (value === "loaded") return "";
  return progress === undefined ? "Waiting for the model …" : `Loading the model: ${Math.round(100 * progress)} %`;
}

/** The state of a model in a few words. */
export function stateOf({ value, progress, failed }) {
  if (value === "loading") return progress === undefined ? "Waiting for room …" : `Loading … ${Math.round(100 * progress)} %`;
  if (value === "unloading") return "Unloading …";
  if (value === "loaded") return "Loaded";
  return failed ? "Failed" : "Not loaded";
}

export class Models {
  #list = [];
  #wanted = new Set(); // by whom it is watched
  #timer = 0;
  #asking = null;
  #changed;

  /** `changed(list)` is called whenever the list differs from the last one. */
  constructor(changed) {
    this.#changed = changed;
  }

  /** Ask the server; throws what goes wrong. */
  async ask() {
    this.#asking ??= get("/v1/models").finally(() => (this.#asking = null));
    const { data } = await this.#asking;
    const before = JSON.stringify(this.#list);
    this.#list = data;
    const moves = data.some(({ status }) => status.value === "loading" || status.value === "unloading");
    if (moves || this.#wanted.size) this.#timer ||= setTimeout(() => this.#again(), SOON);
    if (JSON.stringify(data) !== before) this.#changed(data);
  }

  /** Ask again and again as long as `who` wants it. */
  watch(who, wanted) {
    if (wanted === this.#wanted.has(who)) return;
    if (wanted) this.#wanted.add(who);
    else this.#wanted.delete(who);
    if (wanted) this.#again();
  }

  /** Have a model loaded, if it is not; throws what goes wrong. */
  async load(name) {
    if (isLoaded(this.#list, name)) return;
    this.watch(name, true);
    try {
      await post("/v1/models/load", { model: name });
    } finally {
      this.watch(name, false);
      await this.ask();
    }
  }

  async #again() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    try {
      await this.ask();
    } catch {
      // Whoever asks for something else says what is wrong.
      if (this.#wanted.size) this.#timer ||= setTimeout(() => this.#again(), SOON);
    }
  }
}
