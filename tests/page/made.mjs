// Values that several tests need.

import { DEFAULTS } from "../../mlxgen/server/page/settings.js";

/** An event of a stream with one token, and everything about it. */
export function told(text, about = {}) {
  const bytes = [...new TextEncoder().encode(text)];
  return {
    id: 100, token: text, bytes, part: "content", logprob: -0.1, top_logprobs: [], forced: false, from_draft: false, drafter: "",
    attempts: 0, ...about,
  };
}

/** A record for each word. */
export const words = (text, more = {}) =>
  text.split(" ").map((word) => ({ i: [...word].reduce((sum, sign) => sum + sign.charCodeAt(0), 0), b: `${word} `, p: "content", l: -1, ...more }));

export const answer = (id, text, { settings = {}, ...more } = {}) => ({
  id, parent: "ask", role: "assistant", content: text, reasoning: "", settings: { ...DEFAULTS, ...settings }, tokens: words(text), calls: [],
  from: null, finish: "stop", problem: null, stats: null, ...more,
});

/** A conversation with a question and these answers. */
export function conversation(...answers) {
  const ask = { id: "ask", parent: "", role: "user", text: "Which way?" };
  const nodes = Object.fromEntries([ask, ...answers].map((node) => [node.id, node]));
  return { id: "c", title: "Which way?", changed: 1, settings: { ...DEFAULTS }, nodes, chosen: { "": "ask", ask: answers[0]?.id } };
}

/** Numbers from 0 to 1 that are the same for the same seed. */
export function chance(seed) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 32;
  };
}
