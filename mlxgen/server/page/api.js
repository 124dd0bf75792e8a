// The server: requests, event streams, the API key, and errors as sentences.
//
// The key is kept for the tab, in its sessionStorage, and nowhere else.

const STATUS = { invalid_request_error: 400, rate_limit_error: 429, overloaded_error: 503 };

const KEY = "mlxgen/key";

let key = keptKey();
/** @type {(problem: string) => Promise<boolean>} */
let askForKey = async () => false;

function keptKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return ""; // the browser keeps nothing
  }
}

function keepKey(given) {
  key = given;
  try {
    sessionStorage.setItem(KEY, given);
  } catch {
    // Then it lasts as long as the page.
  }
}

/** Asks for a key: gets a sentence or nothing, and resolves to the key or to null. */
export function onKeyNeeded(question) {
  let asking = null; // several requests may be refused at once, and one question is enough
  askForKey = (problem) => {
    asking ??= question(problem).then((given) => {
      asking = null;
      if (given) keepKey(given);
      return Boolean(given);
    });
    return asking;
  };
}

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

/** The JSON of a GET. */
export async function get(path) {
  const answer = await ask(path, {});
  return answer.json();
}

/** The text of a GET. */
export async function getText(path) {
  const answer = await ask(path, {});
  return answer.text();
}

/** The JSON that answers a POST. */
export async function post(path, body) {
  const answer = await ask(path, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  });
  return answer.json();
}

/** How many tokens a text is, without what the chat template puts around it. */
export const countTokens = async (text, model) =>
  (await post("/tokenize", { model, content: text, add_special: false })).count;

/** The tokens of a text that goes on with another one, as {id, piece}; `model` is empty for the default. */
export const continuing = async (text, model) =>
  (await post("/tokenize", { model: model || undefined, content: text, continues: true, with_pieces: true })).tokens;

/** The events of a streamed chat completion, and which fields of the request had no effect; throws
 *  before the first event if it was refused. */
export async function openChat(body, signal) {
  const answer = await ask("/v1/chat/completions", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify(body),
    signal,
  });
  return { events: events(answer.body), ignored: answer.headers.get("x-mlxgen-ignored") ?? "" };
}

async function ask(path, options) {
  for (;;) {
    const headers = { ...options.headers };
    if (key) headers.authorization = `Bearer ${key}`;
    const tried = key;
    const answer = await reach(path, { ...options, headers });
    if (answer.ok) return answer;
    const error = await refusal(answer);
    if (error.status !== 401) throw error;
    // The key may have been entered while this request was on its way.
    if (key !== tried) continue;
    if (!(await askForKey(tried ? "The server did not accept this key." : ""))) throw error;
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

async function refusal(answer) {
  let error = {};
  try {
    error = (await answer.json()).error ?? {};
  } catch {
    // For example a proxy's error page, of which only the status is known.
  }
  return describe(error, answer.status, answer.headers.get("retry-after"));
}

/** A `ServerError` for OpenAI's error object. */
function describe(error, status, wait = null) {
  const said = String(error.message ?? "");
  const details = { status, code: error.code ?? null, param: error.param ?? null };
  if (status === 401) return new ServerError("The server needs an API key for this.", details);
  if (status === 429) {
    const when = wait ? ` in ${wait} ${wait === "1" ? "second" : "seconds"}` : " in a moment";
    return new ServerError(`The server is busy. Try again${when}.`, details);
  }
  if (status === 503) return new ServerError(sentence("The server is not ready", said), details);
  if (status >= 500) return new ServerError(sentence("The server failed", said), details);
  return new ServerError(sentence("The server refused this", said || `status ${status}`), details);
}

function sentence(start, said) {
  if (!said) return `${start}.`;
  return `${start}: ${said}${/[.!?]$/.test(said) ? "" : "."}`;
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
      rest = lines.pop();
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
