// What is known of how an answer comes: its place in the queue, how far the prompt is, speed.
//
// All figures are the server's: `timings` and `prompt_progress`, which the page asks for. `stats` of
// an answer holds them; `queue` and `read` only until the first token.

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

/** Whether the prompt of an answer is being read. */
export const isReading = (stats) => Boolean(stats) && !stats.tokens && typeof stats.queue !== "number" && stats.read < stats.prompt;

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
