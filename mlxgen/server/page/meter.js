// How full the context is, in words: what the conversation uses, and what the message being written adds.

import { grouped } from "./figures.js";

const NEARLY = 0.9; // of the context, from which on the page says what can be done

/** What the answer at the end of `nodes`, and all before it, take: {used, cached}; null if it does not know. */
export function usedBy(nodes) {
  const { stats } = nodes.at(-1) ?? {};
  return stats?.prompt ? { used: stats.prompt + (stats.tokens ?? 0), cached: stats.cached ?? 0 } : null;
}

/** The meter in words. `context` is null if nobody knows it, `adds` 0 if nothing is written. */
export function contextText({ used, cached, adds, context }) {
  const parts = [context ? `${grouped(used)} / ${grouped(context)} tokens` : `${grouped(used)} ${used === 1 ? "token" : "tokens"}`];
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
