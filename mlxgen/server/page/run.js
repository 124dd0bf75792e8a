// Answers in progress, from the request to the last event: one, or several that are sampled at once.
//
// Owns the request's body and what each event adds to an answer's node. Knows nothing of the page.
// An answer that branches off sends the tokens before the fork as `prefix_tokens`, so the server
// takes them from its cache and holds the rest to the same schema or regular expression.
// Several answers are the choices of one request: the server forks them and runs them as one batch.

import { openChat, ServerError } from "./api.js";
import { cutBack, messagesFor, pathOf } from "./conversation.js";
import { takeProgress, takeTimings } from "./figures.js";
import { endOf, recordsOf, spoken, textOf } from "./records.js";
import { bodyOf, formName } from "./settings.js";

export class Run {
  #abort = new AbortController();
  /** Resolves when all that belongs to its end is done. @type {Promise<void> | undefined} */
  ended;
  #conversation;
  #changed;
  #growths = [];

  /** `nodes` are one answer, or several that go on from the same tokens with the same settings.
   *  `changed(node)` is called whenever one has grown. */
  constructor(conversation, nodes, changed) {
    this.#conversation = conversation;
    this.nodes = nodes;
    this.node = this.nodes[0];
    this.#changed = changed;
  }

  /** Continue from the tokens of the node; resolves when the server has accepted the request. What
   *  `more` has takes the place of fields of the request. */
  async start(more = {}) {
    const { node, nodes } = this;
    const path = pathOf(this.#conversation, node);
    /** @type {Record<string, any>} */
    const body = { ...bodyOf(node.settings), ...more, messages: messagesFor(this.#conversation, node) };
    if (nodes.length > 1) body.n = nodes.length;
    if (path.length) {
      body.prefix_tokens = path.map((record) => record.i);
      // They count as generated, and there must be room for one more.
      if (body.max_tokens <= path.length) body.max_tokens += path.length;
    }
    this.#growths = nodes.map((each) => new Growth(each, path.length));
    for (const each of nodes) each.finish = each.problem = each.stats = null;
    const { events, ignored } = await openChat(body, this.#abort.signal);
    for (const each of nodes) each.ignored = ignored;
    this.done = this.#listen(events);
  }

  /** End it here; what has arrived stays. */
  stop() {
    this.#abort.abort();
  }

  async #listen(events) {
    let end = { finish: "stopped" };
    try {
      for await (const event of events) this.#take(event);
    } catch (error) {
      if (error.name !== "AbortError") end = { finish: "error", problem: error.message };
    }
    for (const node of this.nodes) {
      // An answer that was whole when something went wrong is whole.
      if (!node.finish) Object.assign(node, end);
      this.#changed(node);
    }
  }

  #take(event) {
    for (const choice of event.choices) {
      const growth = this.#growths[choice.index];
      growth.take(choice, event);
      this.#changed(growth.node);
    }
    if (!event.usage) return;
    // Several answers have timings of their own with their tokens; the last event adds them up.
    if (this.nodes.length === 1) this.#growths[0].measure(event);
    this.#changed(this.node);
  }
}

/** What the events of one choice make of its node. */
class Growth {
  #length; // tokens of the path so far, those that the server has only counted included
  #told; // those of them that it has told all about
  #count = 0;

  constructor(node, length) {
    this.node = node;
    this.#length = this.#told = length;
  }

  take(choice, event) {
    const { node } = this;
    const ids = choice.token_ids?.length ?? 0;
    this.#length += ids;
    this.#count += ids;
    const records = recordsOf(choice);
    this.#told += records.length;
    node.tokens.push(...records);
    node.content += choice.delta.content ?? "";
    node.reasoning += choice.delta.reasoning_content ?? "";
    for (const call of choice.delta.tool_calls ?? []) {
      const { name, arguments: given } = call.function;
      if (name) node.calls.push({ id: call.id, name, arguments: "" });
      const growing = node.calls.at(-1);
      growing.arguments += given;
      growing.end = this.#length;
    }
    node.finish = choice.finish_reason ?? node.finish;
    this.measure(event);
  }

  /** The server's own figures. */
  measure({ timings, prompt_progress: progress }) {
    const stats = (this.node.stats ??= {});
    stats.tokens = this.#count;
    stats.held = this.#length - this.#told;
    if (progress) takeProgress(stats, progress);
    if (timings) takeTimings(stats, timings);
  }
}

/** Continue an answer: what the server has not fully reported is generated again. One that ended by
 *  itself goes on past its end. Returns what the request for that has in addition. */
export function prepareToGoOn(conversation, node) {
  const path = pathOf(conversation, node);
  const end = node.finish === "stop" ? endOf(path) : path.length;
  const more = node.finish === "stop" ? pastEnd(node, path, end) : {};
  cutBack(conversation, node, end);
  return more;
}

/** The next token does not end the text; nor does the stop string that ended it, if one did. */
function pastEnd(node, path, end) {
  const { stop = [] } = bodyOf(node.settings);
  const behind = textOf(path.slice(end).map((record) => ({ ...record, p: "content", c: undefined })), "content");
  return { min_tokens: end + 1, ...(stop.some((text) => behind.includes(text)) && { stop: undefined }) };
}

const isPrefix = (error) => error instanceof ServerError && error.param === "prefix_tokens" && error.index !== null;

/** Why the server does not go on from the tokens that a fork or an edited answer begins with: {refused: a
 *  sentence, at: the place in the text}; null if the error is about something else. `path` are the tokens that it
 *  was sent. */
export function refusalOf(error, node, path) {
  if (!isPrefix(error)) return null;
  const { tokens, settings } = node;
  const place = Math.max(0, error.index - (path.length - tokens.length));
  const at = textOf(path.slice(0, error.index), "content").length;
  const isText = node.edited || !tokens.length; // a person sees the text, and not its tokens
  const piece = isText ? `“${short(textOf(path, "content").slice(at))}”` : spoken((tokens[place] ?? tokens[0]).b);
  const after = place && !isText ? `after ${spoken(tokens[place - 1].b)}` : "here";
  const form = formName(settings) || "answer format";
  if (isText && ["text_banned", "text_ended"].includes(error.code)) {
    return { at, refused: `The answer would end at ${piece}: a stop string or a banned string.` };
  }
  switch (error.code) {
    case "text_banned": return { at, refused: `A banned string would end with ${piece}.` };
    case "text_ended": return place < tokens.length - 1 ? { at, refused: `Nothing can follow ${piece}, which ends the answer.` } : null;
    case "end_not_allowed": return { at, refused: `The ${form} does not let the answer end here.` };
    case "token_not_allowed": return { at, refused: `The ${form} does not allow ${piece} ${after}.` };
    default: return null;
  }
}

const short = (text) => (text.length > 30 ? `${text.slice(0, 29)}…` : text);

/** Whether the error says that the last chosen token is the end of the text, and may be. */
export const isEnd = (error, path) => isPrefix(error) && error.code === "text_ended" && error.index === path.length - 1;

/** End an answer with the chosen end token; nothing follows it, so the server is not asked. */
export function endThere(conversation, node) {
  node.tokens.at(-1).p = null;
  cutBack(conversation, node, pathOf(conversation, node).length);
  node.finish = "stop";
}
