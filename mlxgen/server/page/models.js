// The models of the server: which there are, and how far each is loaded.
//
// Asks again while something is on its way or somebody watches. Knows nothing of the page.

import { get, post } from "./api.js";

const SOON = 700; // milliseconds

export class Models {
  #list = null; // what /v1/models says
  #wanted = new Set(); // by whom it is watched
  #timer = 0;
  #asking = null;
  #changed;

  /** `changed()` is called whenever the list differs from the last one. */
  constructor(changed) {
    this.#changed = changed;
  }

  /** {id, status: {value, progress, failed, reason}, parent, max_model_len} of each; empty at first. */
  get all() {
    return this.#list ?? [];
  }

  /** The model that a name means, the default one for none; undefined if it is gone, or nothing is known. */
  find(name) {
    return name ? this.all.find((model) => model.id === name) : this.all[0];
  }

  /** Whether a conversation wants a model that the server does not have any more. */
  isGone(name) {
    return Boolean(name) && this.#list !== null && !this.find(name);
  }

  /** Which model answers. */
  answering(name) {
    return this.find(name) ?? this.all[0];
  }

  isLoaded(name) {
    return this.answering(name)?.status.value === "loaded";
  }

  /** What an answer of a model waits for, if that is the model; empty otherwise. */
  waitFor(name) {
    const { value, progress } = this.answering(name)?.status ?? { value: "loaded" };
    if (value === "loaded") return "";
    return progress === undefined ? "Waiting for the model …" : `Loading the model: ${Math.round(100 * progress)} %`;
  }

  /** Ask the server; throws what goes wrong. */
  async ask() {
    this.#asking ??= get("/v1/models").finally(() => (this.#asking = null));
    const { data } = await this.#asking;
    const before = JSON.stringify(this.#list);
    this.#list = data;
    this.#plan();
    if (JSON.stringify(data) !== before) this.#changed();
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
    if (this.isLoaded(name)) return;
    this.watch(name, true);
    try {
      await post("/v1/models/load", { model: name });
    } finally {
      this.watch(name, false);
      await this.ask();
    }
  }

  #plan() {
    const moves = this.all.some(({ status }) => status.value === "loading" || status.value === "unloading");
    if (moves || this.#wanted.size) this.#timer ||= setTimeout(() => this.#again(), SOON);
  }

  async #again() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    try {
      await this.ask();
    } catch {
      this.#plan(); // whoever asks for something else says what is wrong
    }
  }
}

/** The state of a model in a few words. */
export function stateOf({ value, progress, failed }) {
  if (value === "loading") return progress === undefined ? "Waiting for room …" : `Loading … ${Math.round(100 * progress)} %`;
  if (value === "unloading") return "Unloading …";
  if (value === "loaded") return "Loaded";
  return failed ? "Failed" : "Not loaded";
}
