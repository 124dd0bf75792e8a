// What figures say, in words: how an answer comes, how full the context is, what the engine does, how long ago.
//
// All figures are the server's: `timings` and `prompt_progress`, which the page asks for. `stats` of an answer
// holds them; `queue` and `read` only until the first token. Nothing here touches the page.

const SHORT = 20; // milliseconds of generation that make no speed
const HELD = 8; // up to so many tokens may wait for the end of a character or mark

/** A count as people read it. */
export const grouped = (count) => Math.round(count).toLocaleString("en-US");

/** A count with its noun: "1 token", "2 tokens". */
export const counted = (count, noun) => `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;

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
  if (stats?.tokens) parts.push(counted(stats.tokens, "token"));
  if (stats?.speed) parts.push(`${stats.speed >= 20 ? Math.round(stats.speed) : stats.speed.toFixed(1)} tokens/s`);
  if (stats?.tokens && stats.first) parts.push(`first token after ${inSeconds(stats.first)}`);
  if (stats?.tokens && stats.cached) parts.push(`${grouped(stats.cached)} of ${grouped(stats.prompt)} prompt tokens from the cache`);
  const waits = finish === "tool_calls" && !answered;
  if (ENDS[finish] && (waits || finish !== "tool_calls") && (finish !== "error" || parts.length)) parts.push(ENDS[finish]);
  return parts.join(" · ");
}

// ---- the context ---------------------------------------------------------------------------------

const NEARLY = 0.9; // of the context, from which on the page says what can be done

/** What the answer at the end of `nodes`, and all before it, take: {used, cached}; null if it does not know. */
export function usedBy(nodes) {
  const { stats } = nodes.at(-1) ?? {};
  return stats?.prompt ? { used: stats.prompt + (stats.tokens ?? 0), cached: stats.cached ?? 0 } : null;
}

/** The meter in words. `context` is null if nobody knows it, `adds` 0 if nothing is written. */
export function contextText({ used, cached, adds, context }) {
  const parts = [context ? `${grouped(used)} / ${grouped(context)} tokens` : counted(used, "token")];
  if (cached) parts.push(`${grouped(cached)} cached`);
  if (adds) parts.push(`about ${grouped(adds)} more to send`);
  if (context) parts.push(`${grouped(Math.max(0, context - used - adds))} left`);
  return parts.join(" · ");
}

/** What to say if there is little room, or none; empty otherwise. */
export function warningOf({ used, adds, context }) {
  if (!context || used + adds < NEARLY * context) return "";
  const left = context - used;
  if (adds >= left) return `This message takes about ${grouped(adds)} tokens, and ${grouped(Math.max(0, left))} are left.`;
  return `The context is nearly full: ${grouped(left - adds)} tokens are left for the answer.`;
}

// ---- the engine ----------------------------------------------------------------------------------

/** Prometheus' text as a list of {name, labels, value}. */
function figuresOf(text) {
  const found = [];
  for (const line of text.split("\n")) {
    const [, name, labels = "", value] = /^(\w+)(?:\{(.*)\})? (\S+)$/.exec(line) ?? [];
    if (!name) continue;
    const pairs = [...labels.matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)];
    found.push({ name, value: Number(value), labels: Object.fromEntries(pairs.map(([, key, given]) => [key, unescaped(given)])) });
  }
  return found;
}

const unescaped = (text) => text.replace(/\\(.)/g, (_, sign) => (sign === "n" ? "\n" : sign));

/** The engine's state: bytes, sequences, and what was done so far. */
export function engineOf(text) {
  const figures = figuresOf(text);
  const all = (name) => figures.filter((figure) => figure.name === `mlxgen_${name}`);
  const value = (name) => all(name)[0]?.value ?? 0;
  const accepted = new Map(all("accepted_draft_tokens_total").map((one) => [one.labels.drafter, one.value]));
  return {
    device: all("device_info")[0]?.labels.name ?? "",
    bytes: {
      weights: value("weights_bytes"), kv: value("kv_bytes"), prefixes: value("prefix_cache_bytes"),
      caches: value("cache_limit_bytes"), held: value("held_bytes"), device: value("device_limit_bytes"),
      disk: value("disk_bytes"), diskLimit: value("disk_limit_bytes"),
    },
    generating: value("batch_size"), reading: value("prefilling"), waiting: value("queue_size"),
    tokens: value("completion_tokens_total"), prompt: value("prompt_tokens_total"), cached: value("cached_tokens_total"),
    drafts: all("drafted_tokens_total").map(({ labels, value: drafted }) => ({
      drafter: labels.drafter, drafted, accepted: accepted.get(labels.drafter) ?? 0,
    })).filter(({ drafted }) => drafted > 0),
  };
}

/** Bytes as people read them, in the powers of ten that the server's log has. */
export function inBytes(count) {
  const [size, unit] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]].find(([least]) => count >= Number(least)) ?? [1, "B"];
  const value = count / Number(size);
  return `${Number(value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2))} ${unit}`;
}

// ---- times ---------------------------------------------------------------------------------------

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

const format = (options) => new Intl.DateTimeFormat("en", options);
const WEEKDAY = format({ weekday: "short" });
const MONTH = format({ month: "short", day: "numeric" });
const YEAR = format({ month: "short", year: "numeric" });
const FULL = format({ dateStyle: "long", timeStyle: "short" });

/** “now”, “5 min”, “3 h”, “Mon”, “Nov 3” or “Nov 2025”; `time` and `now` are in milliseconds. */
export function ago(time, now = Date.now()) {
  const past = now - time;
  if (past < MINUTE) return "now";
  if (past < HOUR) return `${Math.floor(past / MINUTE)} min`;
  if (past < DAY) return `${Math.floor(past / HOUR)} h`;
  if (past < 6 * DAY) return WEEKDAY.format(time);
  const sameYear = new Date(time).getFullYear() === new Date(now).getFullYear();
  return (sameYear ? MONTH : YEAR).format(time);
}

/** The date and the time of day. */
export const fullDate = (time) => FULL.format(time);
