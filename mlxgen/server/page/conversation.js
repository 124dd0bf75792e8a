// A conversation as a tree: messages, answers, their other versions, and their branches.
//
// Each node is a child of the one that it answers. An answer that branches off from its sibling
// shares the tokens before the fork: `from` says whose, and how many. `chosen` says for each node
// which of its children is shown. Nothing here touches the page or the network.

import { alternativesOf, percent, putByHand, textOf, visible } from "./records.js";

const ROOT = "";

export function newId() {
  // randomUUID exists only on secure origins, which a server on the local network is not.
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (b) => b.toString(16).padStart(2, "0")).join("");
}

/** @typedef {Record<string, string>} Settings */
/** @typedef {Record<string, any> & {id: string, parent: string, role: "user" | "tool" | "assistant"}} Node */
/** `after` is the first message that the model still sees, if the oldest exchanges are left out.
 *  @typedef {{id: string, title: string, changed: number, settings: Settings, nodes: Record<string, Node>,
 *    chosen: Record<string, string>, after?: string}} Conversation */

/** @param {Settings} settings @returns {Conversation} */
export function newConversation(settings) {
  return { id: newId(), title: "", changed: Date.now(), settings: { ...settings }, nodes: {}, chosen: {} };
}

// ---- walking ---------------------------------------------------------------------------------

export function childrenOf(conversation, parent) {
  const id = parent?.id ?? ROOT;
  return Object.values(conversation.nodes).filter((node) => node.parent === id);
}

export const parentOf = (conversation, node) => conversation.nodes[node.parent] ?? null;

export const siblingsOf = (conversation, node) => childrenOf(conversation, parentOf(conversation, node));

/** The nodes that are shown, from the first message on. */
export function shownIn(conversation) {
  const shown = [];
  for (let id = conversation.chosen[ROOT]; id; id = conversation.chosen[id]) shown.push(conversation.nodes[id]);
  return shown;
}

/** Show a node, and what leads to it. */
export function select(conversation, node) {
  for (let at = node; at; at = parentOf(conversation, at)) conversation.chosen[at.parent] = at.id;
}

// ---- growing ---------------------------------------------------------------------------------

const under = (parent, more) => ({ id: newId(), parent: parent?.id ?? ROOT, ...more });

/** A message of the user; `files` are {name, text}, and `images` {name, url}. */
export const userNode = (parent, { text, files = [], images = [] }) =>
  under(parent, { role: "user", text, ...(files.length && { files }), ...(images.length && { images }) });

/** What the tools returned: `results` are {id, name, content}. */
export const toolNode = (parent, results) => under(parent, { role: "tool", results });

export const answerNode = (parent, settings) =>
  under(parent, {
    role: "assistant", settings: { ...settings }, from: null, tokens: [],
    content: "", reasoning: "", calls: [], finish: null, problem: null, stats: null,
  });

export function add(conversation, node) {
  conversation.nodes[node.id] = node;
  select(conversation, node);
  conversation.changed = Date.now();
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node);
}

const titleOf = ({ text, files = [], images = [] }) => (text || [...files, ...images][0].name).slice(0, 80);

/** Forget the tokens of an answer from `at` of its path on, and their text. */
export function cutBack(conversation, node, at) {
  const path = pathOf(conversation, node).slice(0, at);
  const before = node.tokens.length;
  node.tokens = path.slice(node.from?.at ?? 0);
  if (node.stats?.tokens) {
    const { tokens, held = 0 } = node.stats;
    Object.assign(node.stats, { tokens: Math.max(0, tokens - held - before + node.tokens.length), held: 0 });
  }
  takeLead(node, path, node.calls);
}

// ---- tokens and their branches ---------------------------------------------------------------

/** The records of an answer, including those that it shares. */
export function pathOf(conversation, node) {
  if (!node.from) return node.tokens;
  const origin = conversation.nodes[node.from.node];
  return [...pathOf(conversation, origin).slice(0, node.from.at), ...node.tokens];
}

/** The answer whose own token is at `at` of a path, and whose alternatives are chosen from there. */
export function ownerOf(conversation, node, at) {
  let owner = node;
  while (owner.from && at <= owner.from.at) owner = conversation.nodes[owner.from.node];
  return owner;
}

/** The branch that took token `id`, or several of them, at `at`, if there is one. */
export function branchAt(conversation, node, at, id) {
  const ids = [id].flat();
  const owner = ownerOf(conversation, node, at);
  const has = (tokens) => ids.every((each, k) => tokens[k]?.i === each);
  if (has(pathOf(conversation, owner).slice(at, at + ids.length))) return owner;
  return siblingsOf(conversation, node).find(
    (other) => other.from?.node === owner.id && other.from.at === at && has(other.tokens),
  );
}

/** An answer from a place on, before anything is generated: {node, at} are the first tokens of an answer, and
 *  {parent} is a message. `put` are tokens that a person put there. It is not part of the conversation until it
 *  is added. @param {Conversation} conversation @param {{parent?: Node | null, node?: Node, at?: number}} place
 *  @param {Settings} settings @param {any[]} [put] */
export function branch(conversation, { parent, node, at = 0 }, settings, put = []) {
  const made = answerNode(node ? parentOf(conversation, node) : parent, settings);
  if (!node) return made;
  if (at || put.length) made.from = { node: ownerOf(conversation, node, at).id, at };
  made.tokens = put;
  takeLead(made, pathOf(conversation, made), node.calls.filter((call) => call.end <= at));
  return made;
}

/** The branch that takes another token at `at`, one of the alternatives there. */
export function forkAt(conversation, node, at, id) {
  const path = pathOf(conversation, node);
  const { piece } = alternativesOf(path[at]).find((other) => other.id === id);
  return branch(conversation, { node, at }, node.settings, putByHand(path.slice(0, at), [{ id, piece }], path[at], 1));
}

/** The same fork again: from the tokens that were chosen by hand or typed, if some were. */
export function forkAgain(conversation, node) {
  const fork = branch(conversation, { node, at: node.from?.at ?? 0 }, node.settings, node.tokens.slice(0, byHand(node)));
  if (node.edited) fork.edited = true;
  return fork;
}

/** How many of the own tokens of an answer were chosen by hand or typed, before the model went on. */
export function byHand({ tokens }) {
  const first = tokens.findIndex((record) => !record.h);
  return first < 0 ? tokens.length : first;
}

/** Whether arguments are complete; an incomplete call is generated again. */
function isWhole(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}

function takeLead(node, path, calls) {
  node.content = textOf(path, "content");
  node.reasoning = textOf(path, "reasoning");
  node.calls = calls.filter((call) => call.end <= path.length && isWhole(call.arguments));
}

/** Answers to one message as a tree: each is a child of the one that it branches off from. */
export function branchesOf(conversation, node) {
  const siblings = siblingsOf(conversation, node);
  const below = (id) =>
    siblings
      .filter((other) => (other.from?.node ?? null) === id)
      .map((other) => ({ node: other, branches: below(other.id) }));
  return below(null);
}

/** A branch in a few words: where it begins, and what it says. */
export function branchName(conversation, node) {
  const number = siblingsOf(conversation, node).indexOf(node) + 1;
  const text = node.content.replace(/\s+/g, " ").trim() || "(no text)";
  const short = text.length > 60 ? `…${text.slice(-59)}` : text;
  const [picked] = node.tokens;
  if (node.edited) return `${number}, edited${node.from ? ` from token ${node.from.at + 1} on` : ""}: ${short}`;
  if (!node.from || !picked) return `${number}: ${short}`;
  return `${number}, from token ${node.from.at + 1}, “${visible(picked.b)}” (${percent(picked.l)}): ${short}`;
}

/** How many tokens two paths have in common. */
export function commonLength(one, other) {
  let k = 0;
  while (k < one.length && k < other.length && one[k].i === other[k].i) k += 1;
  return k;
}

/** Another answer that came out exactly as `node` did, if there is one. */
export function twinOf(conversation, node) {
  const path = pathOf(conversation, node);
  return siblingsOf(conversation, node).find((other) => {
    if (other === node || other.role !== "assistant" || other.finish !== node.finish || other.content !== node.content) return false;
    const its = pathOf(conversation, other);
    return path.length > 0 && its.length === path.length && commonLength(its, path) === path.length;
  });
}

// ---- pruning ---------------------------------------------------------------------------------

/** Take nodes, and everything below them, out of a conversation; returns what `putBack` needs. An answer that
 *  stays and shares tokens with one that goes gets them as its own. */
export function prune(conversation, nodes) {
  const gone = withBelow(conversation, nodes);
  const kept = Object.values(conversation.nodes).filter((node) => !gone.has(node));
  const heads = kept.filter((node) => node.from && gone.has(conversation.nodes[node.from.node]));
  const pruned = {
    nodes: [...gone], chosen: { ...conversation.chosen }, heads: heads.map(({ id, from }) => ({ id, from })),
  };
  for (const node of heads) Object.assign(node, { from: null, tokens: pathOf(conversation, node) });
  for (const node of gone) {
    delete conversation.nodes[node.id];
    delete conversation.chosen[node.id];
  }
  for (const [parent, id] of Object.entries(conversation.chosen)) {
    if (conversation.nodes[id]) continue;
    const left = kept.filter((node) => node.parent === parent).at(-1);
    if (left) conversation.chosen[parent] = left.id;
    else delete conversation.chosen[parent];
  }
  return pruned;
}

/** Undo `prune`, even if the conversation has grown since then. */
export function putBack(conversation, { nodes, chosen, heads }) {
  for (const node of nodes) conversation.nodes[node.id] = node;
  for (const { id, from } of heads) {
    const node = conversation.nodes[id];
    if (node) Object.assign(node, { from, tokens: pathOf(conversation, node).slice(from.at) });
  }
  for (const [parent, id] of Object.entries(chosen)) {
    if (conversation.nodes[id]) conversation.chosen[parent] = id;
  }
}

function withBelow(conversation, nodes) {
  const gone = new Set(nodes);
  const below = new Map();
  for (const node of Object.values(conversation.nodes)) {
    if (!below.has(node.parent)) below.set(node.parent, []);
    below.get(node.parent).push(node);
  }
  for (const node of gone) {
    for (const child of below.get(node.id) ?? []) gone.add(child);
  }
  return gone;
}

// ---- for the server --------------------------------------------------------------------------

/** A text in a fence that nothing in it can end. */
export function fence(text, language) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const marks = "`".repeat(longest + 1);
  return `${marks}${language}\n${text}${text.endsWith("\n") ? "" : "\n"}${marks}`;
}

/** A file as the model sees it: its name and its text. */
export const fenced = ({ name, text }) => `${name}:\n${fence(text, /\.(\w{1,12})$/.exec(name)?.[1] ?? "")}`;

/** What a message says, for the server: a text, or parts if there are images. */
function contentOf({ text, files = [], images = [] }) {
  const whole = [...files.map(fenced), text].filter(Boolean).join("\n\n");
  if (!images.length) return whole;
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return whole ? [...parts, { type: "text", text: whole }] : parts;
}

/** The messages that an answer answers. */
export function messagesFor(conversation, node) {
  const before = [];
  for (let at = parentOf(conversation, node); at; at = parentOf(conversation, at)) {
    before.unshift(at);
    if (at.id === conversation.after) break; // what is above it is left out
  }
  const system = node.settings.system ? [{ role: "system", content: node.settings.system }] : [];
  return alternating([...system, ...before.filter((one) => !saidNothing(one)).flatMap(messagesOf)]);
}

/** Whether an answer ended before it had any text. */
const saidNothing = ({ role, finish, content, calls }) =>
  role === "assistant" && ["error", "stopped"].includes(finish) && !content && !calls.length;

/** Messages of the user that follow one another as one, because many chat templates refuse them. */
function alternating(messages) {
  const joined = [];
  for (const message of messages) {
    const last = joined.at(-1);
    if (last?.role === "user" && message.role === "user") {
      joined[joined.length - 1] = { ...last, content: joinedContent(last.content, message.content) };
    } else {
      joined.push(message);
    }
  }
  return joined;
}

function joinedContent(one, other) {
  if (typeof one === "string" && typeof other === "string") return [one, other].filter(Boolean).join("\n\n");
  const partsOf = (content) => (typeof content === "string" ? [{ type: "text", text: content }] : content);
  return [...partsOf(one), ...partsOf(other)];
}

function messagesOf(node) {
  if (node.role === "user") return [{ role: "user", content: contentOf(node) }];
  if (node.role === "tool") {
    return node.results.map(({ id, name, content }) => ({ role: "tool", tool_call_id: id, name, content }));
  }
  const message = { role: "assistant", content: node.content };
  if (node.calls.length) {
    message.tool_calls = node.calls.map(({ id, name, arguments: given }) => ({
      id, type: "function", function: { name, arguments: given },
    }));
    // A model only expects its thoughts back within a turn of calls.
    if (node.reasoning) message.reasoning_content = node.reasoning;
  }
  return [message];
}
