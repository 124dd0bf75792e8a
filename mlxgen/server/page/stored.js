// A conversation from the browser's store, checked before anything relies on it.
//
// Other programs, older pages and people write to the same store. What is accepted here has every
// part that the page reads, no loops, and no references to missing nodes. Nothing here touches the
// page or the store.

import { DEFAULTS } from "./settings.js";

const isText = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
const listOf = (isItem) => (value) => Array.isArray(value) && value.every(isItem);
const optional = (isKind) => (value) => value === null || value === undefined || isKind(value);
/** Whether a value is an object whose fields are what the table says; others are not looked at. */
const has = (fields) => {
  const checks = Object.entries(fields);
  return (value) => isObject(value) && checks.every(([name, isRight]) => isRight(value[name]));
};
/** A list of some things one after the other, or again and again. */
const inTurn = (...kinds) => (value) => Array.isArray(value) && value.every((one, k) => kinds[k % kinds.length](one));

const isId = (value) => isText(value) && /^[\w-]{1,64}$/.test(value);
const isNumber = optional(Number.isFinite);
const isTime = (value) => Number.isFinite(value) && Math.abs(value) <= 8.64e15; // what a date can be
const isBytes = listOf((value) => isCount(value) && value < 256);
const isPiece = (value) => isText(value) || isBytes(value);

/** A token, see records.js. */
const isRecord = has({
  i: isCount,
  b: isPiece,
  p: (value) => value === null || isText(value),
  l: isNumber,
  f: isNumber,
  n: isNumber,
  h: isNumber,
  c: optional(isBytes),
  r: optional(isBytes),
  d: optional(isText),
  a: optional((value) => value.length % 3 === 0 && inTurn(isCount, isPiece, isNumber)(value)),
  x: optional(listOf(isCount)),
  j: optional(listOf((value) => value?.length >= 3 && inTurn(isCount, isPiece, isText, optional(isText))(value))),
});

/** The figures of an answer: numbers, or for each drafter how many tokens it drafted and how many stood. */
const isFigures = (value) => isObject(value) && Object.entries(value).every(([name, figure]) =>
  (name === "drafts" ? isObject(figure) && Object.values(figure).every(listOf(isCount)) : isNumber(figure)));

/** The fields of each kind of node, see conversation.js; the ones that may be missing came later. */
const NODES = {
  user: has({
    text: isText,
    files: optional(listOf(has({ name: isText, text: isText }))),
    images: optional(listOf(has({ name: isText, url: (value) => isText(value) && value.startsWith("data:image/") }))),
  }),
  tool: has({ results: listOf(has({ name: isText, content: isText, id: optional(isText) })) }),
  assistant: has({
    settings: isObject,
    tokens: listOf(isRecord),
    content: isText,
    reasoning: isText,
    calls: listOf(has({ name: isText, arguments: isText, id: optional(isText), end: isCount })),
    finish: optional(isText),
    problem: optional(isText),
    setting: optional(isText),
    stats: optional(isFigures),
    from: optional(has({ node: isId, at: isCount })),
    edited: optional((value) => value === true),
    dropped: optional(isCount),
    ignored: optional(isText),
  }),
};

/** Whether a conversation can stand in the list, before its nodes are loaded. */
export const isHead = (value, id) => isId(id) && has({ id: (own) => own === id, title: isText, changed: isTime })(value);

/** The stored conversation `id`, with what older pages did not store; null if it is malformed. */
export function conversationOf(found, id) {
  if (!isObject(found) || !isId(id) || found.id !== id || !isText(found.title) || !isTime(found.changed)) return null;
  if (!optional(isId)(found.after) || !isObject(found.nodes) || !isObject(found.chosen) || !isTree(found.nodes) || !isWay(found)) return null;
  found.settings = settingsOf(found.settings);
  for (const node of Object.values(found.nodes)) {
    if (node.role !== "assistant") continue;
    node.settings = settingsOf(node.settings);
    for (const name of ["from", "problem", "stats"]) node[name] ??= null;
    node.finish ??= "stopped"; // the page was closed while this answer was on its way
  }
  return found;
}

/** The stored settings, with defaults for what is missing or invalid. */
export function settingsOf(found) {
  const own = Object.entries(isObject(found) ? found : {});
  return { ...DEFAULTS, ...Object.fromEntries(own.filter(([name, value]) => Object.hasOwn(DEFAULTS, name) && isText(value))) };
}

/** Whether all nodes are complete and form a tree. */
function isTree(nodes) {
  const whole = ([id, node]) =>
    isId(id) && isObject(node) && node.id === id && Object.hasOwn(NODES, node.role) && NODES[node.role](node);
  return Object.entries(nodes).every(whole)
    && isForest(nodes, (node) => (node.parent === "" ? null : node.parent))
    && isForest(nodes, (node) => node.from?.node ?? null)
    && Object.values(nodes).every((node) => !node.from || leaves(nodes, node));
}

/** Whether an answer branches off from another one at a token that it has. */
function leaves(nodes, { from }) {
  const origin = nodes[from.node];
  return origin.role === "assistant" && from.at <= (origin.from?.at ?? 0) + origin.tokens.length;
}

/** Whether `above` leads from every node to null, through existing nodes. */
function isForest(nodes, above) {
  const safe = new Set();
  for (const start of Object.keys(nodes)) {
    const way = new Set();
    for (let id = start; id !== null && !safe.has(id); id = above(nodes[id])) {
      if (!Object.hasOwn(nodes, id) || way.has(id)) return false;
      way.add(id);
    }
    for (const id of way) safe.add(id);
  }
  return true;
}

/** Whether the chosen child of each node is one of its children. */
const isWay = ({ nodes, chosen }) =>
  Object.entries(chosen).every(([parent, id]) => Object.hasOwn(nodes, id) && nodes[id].parent === parent);
