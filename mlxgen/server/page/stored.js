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
const isAlternative = (value) => isList(value, () => true) && isCount(value[0]) && isPiece(value[1]) && isNumber(value[2]);

const isRecord = (value) =>
  isObject(value) && isCount(value.i) && isPiece(value.b) && (value.p === null || isText(value.p))
  && isNumber(value.l) && [value.f, value.n, value.h].every(isNumber) && isBytes(value.c) && isBytes(value.r)
  && (isMissing(value.d) || isText(value.d)) && (isMissing(value.a) || isList(value.a, isAlternative)) && (isMissing(value.x) || isList(value.x, isCount));

const isCall = (value) =>
  isObject(value) && [value.name, value.arguments].every(isText) && (isMissing(value.id) || isText(value.id))
  && isCount(value.end);

const isResult = (value) =>
  isObject(value) && [value.name, value.content].every(isText) && (isMissing(value.id) || isText(value.id));

/** A figure of an answer: a number, or for each drafter how many tokens it drafted and how many stood. */
const isFigure = ([name, value]) =>
  name === "drafts" ? isObject(value) && Object.values(value).every((counts) => isList(counts, isCount)) : isNumber(value);

const isAnswer = (node) =>
  isObject(node.settings) && isList(node.tokens, isRecord) && isText(node.content) && isText(node.reasoning)
  && isList(node.calls, isCall) && [node.finish, node.problem, node.setting].every(or(isMissing, isText))
  && (isMissing(node.stats) || (isObject(node.stats) && Object.entries(node.stats).every(isFigure)))
  && (isMissing(node.from) || (isObject(node.from) && isCount(node.from.at)));

const isFile = (value) => isObject(value) && isText(value.name) && isText(value.text);
const isImage = (value) => isObject(value) && isText(value.name) && isText(value.url) && value.url.startsWith("data:image/");

const NODES = {
  user: (node) =>
    isText(node.text) && (isMissing(node.files) || isList(node.files, isFile)) && (isMissing(node.images) || isList(node.images, isImage)),
  tool: (node) => isList(node.results, isResult),
  assistant: isAnswer,
};

/** The stored conversation `id`, with what older pages did not store; null if it is malformed. */
export function conversationOf(found, id) {
  if (!isObject(found) || !isId(id) || found.id !== id || !isText(found.title) || !Number.isFinite(found.changed)) return null;
  if (!isObject(found.nodes) || !isObject(found.chosen) || !isTree(found.nodes) || !isWay(found)) return null;
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
