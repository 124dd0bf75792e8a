// The server: requests, event streams, the API key, and errors as sentences.

import { loadKey, saveKey } from "./kept.js";

const STATUS = { invalid_request_error: 400, rate_limit_error: 429, overloaded_error: 503 };

let key = loadKey();
/** @type {(problem: string) => Promise<string | null>} */
let askForKey = async () => null;
/** @type {Promise<string | null> | null} */
let asking = null; // several requests may be refused at once, and one question is enough

/** Who asks for a key: gets a sentence or nothing, and resolves to the key or to null. */
export const onKeyNeeded = (question) => (askForKey = question);

/** What went wrong. `message` is a sentence for people, `code` a word for programs, `param` the field at
 *  fault, and `index` the place in it if it is a list. */
export class ServerError extends Error {
  constructor(message, { status = 0, code = null, param = null } = {}) {
    super(message);
    const [, field, index] = /^(.*)\[(\d+)\]$/.exec(param ?? "") ?? [null, param, null];
    this.status = status;
    this.code = code;
    this.param = field;
    this.index = index === null ? null : Number(index);
  }
}

export const get = async (path) => (await ask(path)).json();
export const getText = async (path) => (await ask(path)).text();
export const post = async (path, body) => (await ask(path, body)).json();

/** How many tokens a text is, without what the chat template puts around it. */
export const countTokens = async (text, model) =>
  (await post("/tokenize", { model, content: text, add_special: false })).count;

/** The tokens of a text that goes on with another one, as {id, piece}; `model` is empty for the default. */
export const continuing = async (text, model) =>
  (await post("/tokenize", { model: model || undefined, content: text, continues: true, with_pieces: true })).tokens;

/** The tokens with these ids, as {id, piece}. */
export const withIds = async (tokens, model) =>
  (await post("/detokenize", { model: model || undefined, tokens, with_pieces: true })).tokens;

/** The events of a streamed chat completion, and which fields of the request had no effect; throws
 *  before the first event if it was refused. */
export async function openChat(body, signal) {
  const answer = await ask("/v1/chat/completions", body, signal);
  return { events: events(answer.body), ignored: answer.headers.get("x-mlxgen-ignored") ?? "" };
}

/** The answer to a GET, or to a POST of `body`. @param {string} path @param {any} [body] @param {AbortSignal | null} [signal] */
async function ask(path, body, signal = null) {
  for (;;) {
    const tried = key;
    const headers = { ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
    const answer = await reach(path, { headers, signal, ...(body && { method: "POST", body: JSON.stringify(body) }) });
    if (answer.ok) return answer;
    // For example a proxy's error page is not JSON; of that only the status is known.
    const said = await answer.json().catch(() => null);
    const problem = describe(said?.error ?? {}, answer.status, answer.headers.get("retry-after") ?? "");
    if (answer.status !== 401) throw problem;
    if (key !== tried) continue; // the key was entered while this request was on its way
    asking ??= askForKey(tried ? "The server did not accept this key." : "").finally(() => (asking = null));
    const given = await asking;
    if (!given) throw problem;
    saveKey((key = given));
  }
}

async function reach(path, options) {
  try {
    // Beside the page, wherever a proxy has put it.
    return await fetch(path.slice(1), { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server cannot be reached. Is it still running?");
  }
}

/** A `ServerError` for OpenAI's error object. */
function describe(error, status, wait = "") {
  const said = String(error.message ?? "");
  const details = { status, code: error.code ?? null, param: error.param ?? null };
  if (status === 401) return new ServerError("The server needs an API key for this.", details);
  if (status === 429) {
    const when = wait ? ` in ${wait} ${wait === "1" ? "second" : "seconds"}` : " in a moment";
    return new ServerError(`The server is busy. Try again${when}.`, details);
  }
  const start = status === 503 ? "The server is not ready" : status >= 500 ? "The server failed" : "The server refused this";
  const why = said || (status < 500 ? `status ${status}` : "");
  return new ServerError(`${start}${why && `: ${why}`}${/[.!?]$/.test(why) ? "" : "."}`, details);
}

/** Server-sent events as JSON, up to `[DONE]`. */
async function* events(stream) {
  let rest = "";
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (rest + value).split("\n");
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (!line.startsWith("data: ")) continue;
        if (line === "data: [DONE]") return;
        const event = JSON.parse(line.slice(6));
        // The status has already been sent; the type of the error says what it would have been.
        if (event.error) throw describe(event.error, STATUS[event.error.type] ?? 500);
        yield event;
      }
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof ServerError) throw error;
    throw new ServerError("The connection was lost before the answer was complete.");
  } finally {
    reader.cancel().catch(() => {});
  }
  throw new ServerError("The connection ended before the answer was complete.");
}
