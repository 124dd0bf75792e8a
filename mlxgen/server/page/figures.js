// What is known of how an answer comes: its place in the queue, how far the prompt is, speed, drafts.
//
// All figures are the server's: `timings` and `prompt_progress`, which the page asks for. `stats` of
// an answer holds them; `queue` and `read` only until the first token.

import { el, setText } from "./dom.js";
import { DRAFTERS } from "./records.js";

const SHORT = 20; // milliseconds of generation that make no speed
const HELD = 8; // up to so many tokens may wait for the end of a character or mark

/** A count as people read it. */
export const grouped = (count) => Math.round(count).toLocaleString("en-US");

const tokens = (count) => `${grouped(count)} ${count === 1 ? "token" : "tokens"}`;

/** Take in how far the prompt is. */
export function takeProgress(stats, { total, cache, processed, queue }) {
  Object.assign(stats, { prompt: total, cached: cache, read: processed, queue: queue ?? null });
}

/** Take in the timings of one answer. */
export function takeTimings(stats, timings) {
  delete stats.read;
  delete stats.queue;
  stats.prompt = timings.cache_n + timings.prompt_n;
  stats.cached = timings.cache_n;
  stats.first = timings.prompt_ms + (timings.queued_ms ?? 0);
  if (timings.predicted_ms > SHORT) stats.speed = timings.predicted_per_second;
  stats.drafted = timings.draft_n ?? 0;
  stats.accepted = timings.draft_n_accepted ?? 0;
  if (timings.drafts) {
    stats.drafts = Object.fromEntries(
      Object.entries(timings.drafts).map(([name, { draft_n: n, draft_n_accepted: stood }]) => [name, [n, stood]]),
    );
  }
}

/** What an answer waits for before its first token, as a sentence. */
export function waitingOf(stats) {
  if (typeof stats?.queue === "number") {
    return stats.queue ? `Waiting for a place: ${grouped(stats.queue)} before it` : "Waiting for a place: next in line";
  }
  if (!(stats?.read < stats?.prompt)) return "Waiting for the first token …";
  const cached = stats.cached ? `, ${grouped(stats.cached)} from the cache` : "";
  return `Reading the prompt: ${grouped(stats.read)} of ${grouped(stats.prompt)}${cached}`;
}

/** The same while the answer grows; the server holds back a call until it is complete. */
export function progressOf(node) {
  if (!node.stats?.tokens) return waitingOf(node.stats);
  const { held } = node.stats;
  return held > HELD ? `${statsOf(node)} · ${held} tokens not shown yet` : statsOf(node);
}

const ENDS = { length: "cut off at the token limit", stopped: "stopped", error: "interrupted", tool_calls: "waiting for the tool" };

const inSeconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** `answered`: whether something follows the answer, so that it waits for nothing. */
export function statsOf({ stats, finish }, { answered = false } = {}) {
  const parts = [];
  if (stats?.tokens) parts.push(tokens(stats.tokens));
  if (stats?.speed) parts.push(`${stats.speed >= 20 ? Math.round(stats.speed) : stats.speed.toFixed(1)} tokens/s`);
  if (stats?.tokens && stats.first) parts.push(`first token after ${inSeconds(stats.first)}`);
  if (stats?.tokens && stats.cached) parts.push(`${grouped(stats.cached)} of ${grouped(stats.prompt)} prompt tokens from the cache`);
  const waits = finish === "tool_calls" && !answered;
  if (ENDS[finish] && (waits || finish !== "tool_calls") && (finish !== "error" || parts.length)) parts.push(ENDS[finish]);
  return parts.join(" · ");
}

const shareOf = ({ drafted, accepted }) => `${Math.round((100 * accepted) / drafted)} %`;

/** Who drafted, and how much of it stood; empty if nothing was drafted. */
export function draftsOf(stats) {
  if (!stats?.drafted) return "";
  const who = Object.entries(stats.drafts ?? {}).map(([name, [n, stood]]) => `${DRAFTERS[name] ?? name} ${grouped(stood)}/${grouped(n)}`);
  const all = `${tokens(stats.drafted)} drafted, ${grouped(stats.accepted)} stood (${shareOf(stats)})`;
  return who.length ? `${all}: ${who.join(", ")}` : all;
}

/** These figures under an answer. */
export class Figures {
  #bar = el("progress", { class: "reading", "aria-label": "How much of the prompt was read", hidden: true });
  #stats = el("p", { class: "stats quiet small" });
  #share = el("summary");
  #drafts = el("p");
  #folded = el("details", { class: "drafts quiet small" }, this.#share, this.#drafts);

  constructor() {
    this.element = el("div", { class: "figures" }, this.#bar, this.#stats, this.#folded);
  }

  /** `load` says what the model is doing if it is not loaded. */
  update(node, { running, answered, load }) {
    const { stats } = node;
    const reads = running && !stats?.tokens && typeof stats?.queue !== "number" && stats?.read < stats?.prompt;
    this.#bar.hidden = !reads;
    if (reads) {
      this.#bar.max = stats.prompt;
      this.#bar.value = stats.read;
    }
    this.#folded.hidden = !stats?.drafted;
    setText(this.#share, stats?.drafted ? `Drafts: ${shareOf(stats)} stood` : "");
    setText(this.#stats, running ? (!stats && load) || progressOf(node) : statsOf(node, { answered }));
    setText(this.#drafts, draftsOf(stats));
  }
}
