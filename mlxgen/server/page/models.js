// The models of the server: which there are, and how far each is loaded.
//
// A list is what /v1/models says: {id, status: {value, progress, failed, reason}, parent, max_model_len} of
// each; empty at first.

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

/** Ask the server which models there are; throws what goes wrong. */
export async function askModels(store) {
  const { data } = await get("/v1/models");
  if (JSON.stringify(data) !== JSON.stringify(store.state.models)) store.set({ models: data });
}

/** Have a model loaded, if it is not; throws what goes wrong. */
export async function loadModel(store, name) {
  if (isLoaded(store.state.models, name)) return;
  store.set({ loading: store.state.loading + 1 });
  try {
    await post("/v1/models/load", { model: name });
  } finally {
    store.set({ loading: store.state.loading - 1 });
    await askModels(store);
  }
}

/** Ask again and again as long as something is on its way, or somebody looks at the list or waits for a model. */
export const watchModels = (store) => setInterval(() => {
  const { models, current, runs, loading, modelsOpen } = store.state;
  const node = runs.get(current.id)?.node;
  const waits = node && !node.tokens.length && !isLoaded(models, node.settings.model);
  const moves = models.some(({ status }) => status.value === "loading" || status.value === "unloading");
  if (loading || modelsOpen || waits || moves) askModels(store).catch(() => {}); // whoever asks for something else says what is wrong
}, SOON);
