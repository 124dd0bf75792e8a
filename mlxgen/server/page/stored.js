// A conversation from the browser's store, checked before anything relies on it.
//
// Other programs, older pages and people write to the same store. What is accepted here has every
// part that the page reads, no loops, and no references to missing nodes. Nothing here touches the
// page or the store.

import { DEFAULTS } from "./settings.js";

const isText = (value) => typeof value === "string";
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isCount = (value) => Number.isSafeInteger(value) && value >= 0;
const isList = (value, isItem) => Array.isArray(value) && value.every(isItem);
const isMissing = (value) => value === null || value === undefined;
const or = (...kinds) => (value) => kinds.some((isKind) => isKind(value));

const isId = (value) => isText(value) && /^[\w-]{1,64}$/.test(value);
const isNumber = or(isMissing, Number.isFinite);
const isPiece = or(isText, (value) => isList(value, (byte) => isCount(byte) && byte < 256));
const isBytes = or(isMissing, (value) => isList(value, (byte) => isCount(byte) && byte < 256));
/** A plain loop, as there are very many. */
function isAlternatives(value) {
  if (!Array.isArray(value) || value.length % 3) return false;
  for (let k = 0; k < value.length; k += 3) {
    if (!isCount(value[k]) || !isPiece(value[k + 1]) || !isNumber(value[k + 2])) return false;
  }
  return true;
}
const isRejected = (value) => isList(value, () => true) && isCount(value[0]) && isPiece(value[1]) && isText(value[2]) && (isMissing(value[3]) || isText(value[3]));

/** Whether a value is an object whose fields are what the table says; others are not looked at. */
const has = (fields) => {
  const checks = Object.entries(fields);
  return (value) => isObject(value) && checks.every(([name, isRight]) => isRight(value[name]));
};
const optional = (isKind) => or(isMissing, isKind);
const listOf = (isItem) => (value) => isList(value, isItem);

/** A token, see records.js. */
const isRecord = has({
  i: isCount,
  b: isPiece,
  p: or((value) => value === null, isText),
  l: isNumber,
  f: isNumber,
  n: isNumber,
  h: isNumber,
  c: isBytes,
  r: isBytes,
  d: optional(isText),
  a: optional(isAlternatives),
  x: optional(listOf(isCount)),
  j: optional(listOf(isRejected)),
});

const isCall = has({ name: isText, arguments: isText, id: optional(isText), end: isCount });
const isResult = has({ name: isText, content: isText, id: optional(isText) });
const isFile = has({ name: isText, text: isText });
const isImage = has({ name: isText, url: (value) => isText(value) && value.startsWith("data:image/") });

/** A figure of an answer: a number, or for each drafter how many tokens it drafted and how many stood. */
const isFigure = ([name, value]) =>
  name === "drafts" ? isObject(value) && Object.values(value).every((counts) => isList(counts, isCount)) : isNumber(value);
const isFigures = (value) => isObject(value) && Object.entries(value).every(isFigure);

/** The fields of each kind of node, see conversation.js; the ones that may be missing came later. */
const NODES = {
  user: has({
    text: isText,
    files: optional(listOf(isFile)),
    images: optional(listOf(isImage)),
  }),
  tool: has({ results: listOf(isResult) }),
  assistant: has({
    settings: isObject,
    tokens: listOf(isRecord),
    content: isText,
    reasoning: isText,
    calls: listOf(isCall),
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
export const isHead = (value, id) => isId(id) && has({ id: (own) => own === id, title: isText, changed: Number.isFinite })(value);

/** The stored conversation `id`, with what older pages did not store; null if it is malformed. */
export function conversationOf(found, id) {
  if (!isObject(found) || !isId(id) || found.id !== id || !isText(found.title) || !Number.isFinite(found.changed)) return null;
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
