// A conversation as the tree that the map draws: its messages, the places where answers part and their ends, what
// is said of each, and where it is.
//
// All answers to a message that were given the same prompt are put together by their tokens, whoever
// branched off from whom. A run of tokens without a fork is one edge. Nothing here touches the page.

import { pathOf, shownIn } from "./conversation.js";
import { counted } from "./figures.js";
import { percent, Speller, spoken, visible } from "./records.js";
import { changesOf, MODEL, wordsOf } from "./settings.js";
import cluster from "./vendor/d3-hierarchy/cluster.js";
import hierarchy from "./vendor/d3-hierarchy/hierarchy/index.js";

const RUN = 40; // characters of an edge's text that are made
const END = 60; // and of how an answer ends

/** The tree. `growing` are the answers in progress, and `folded` has the ids of the nodes whose branches are hidden.
 *
 *  A node has `id`, `kind` (start, message, fork, end), `text`, `children`, `ways`, the number of these before
 *  folding, `hidden`, the number of ends that are folded away, and `edge`, the tokens that lead to it: {record,
 *  text, count}. A fork and an end have `answers`, those that lead through it, `at`, the number of tokens before
 *  it, and `logprob`, the sum of the `known` ones.
 *  @param {any} conversation @param {any[]} [growing] @param {Set<string>} [folded] */
export function treeOf(conversation, growing = [], folded = new Set()) {
  const shown = new Set(shownIn(conversation));
  const below = grouped(Object.values(conversation.nodes), (node) => node.parent);
  const made = (node) => {
    const ways = node.children.length;
    if (!ways || !folded.has(node.id)) return { ...node, ways, hidden: 0 };
    return { ...node, ways, hidden: endsBelow(node), children: [] };
  };

  const message = (node) => made({
    id: node.id, kind: "message", role: node.role, node, edge: null, shown: shown.has(node), children: under(node),
    text: oneLine(node.role === "user" ? node.text : node.results.map(({ name, content }) => `${name}: ${content}`).join("; ")),
  });
  /** What follows a message or an answer. */
  const under = (node) => {
    const [answers, others] = [true, false].map((isAnswer) => (below.get(node.id) ?? []).filter(({ role }) => (role === "assistant") === isAnswer));
    const groups = grouped(answers, ({ settings }) => promptOf(settings));
    const grown = [...groups.values()].flatMap((group) => {
      const top = grow(group.map((answer) => ({ answer, path: pathOf(conversation, answer) })), { at: 0, logprob: 0, known: 0 });
      // Where answers part at once, the message itself is the fork.
      return top.kind === "fork" && !top.edge ? top.children : [top];
    });
    return [...grown, ...others.map(message)];
  };
  /** The node where the run of tokens ends that all of a list, [{answer, path}], share after `before`. */
  const grow = (list, before) => {
    const [{ answer: owner, path }] = list;
    let { at, logprob, known } = before;
    for (; list.every((each) => each.path.length > at && each.path[at].i === path[at].i); at += 1) {
      logprob += path[at].l ?? 0;
      known += path[at].l === null ? 0 : 1;
    }
    const start = before.at;
    const edge = at > start ? { record: path[start], text: textOfRun(path, start + 1, at), count: at - start } : null;
    const here = { edge, at, logprob, known, answers: list.map(({ answer }) => answer) };
    if (list.length === 1) return end(owner, here);
    const ways = grouped(list, (each) => each.path[at]?.i ?? each.answer.id);
    return made({
      id: `${owner.id}@${at}`, kind: "fork", text: "", ...here, growing: false,
      shown: here.answers.some((answer) => shown.has(answer)), dropped: here.answers.every((answer) => answer.dropped),
      children: [...ways.values()].map((some) => grow(some, here)),
    });
  };
  const end = (answer, here) => {
    const first = below.get(answer.parent).find(({ role }) => role === "assistant");
    const base = answer.from ? conversation.nodes[answer.from.node] : first;
    const text = oneLine(answer.content || answer.reasoning);
    return made({
      id: answer.id, kind: "end", text: text.length > END ? `…${text.slice(-END)}` : text, node: answer, ...here,
      shown: shown.has(answer), dropped: Boolean(answer.dropped), growing: growing.includes(answer), children: under(answer),
      settings: wordsOf(changesOf(answer.settings, base.settings).filter(({ name }) => name !== "seed")).join(", "),
    });
  };

  const first = below.get("") ?? [];
  return first.length === 1 ? message(first[0])
    : made({ id: "start", kind: "start", text: "Start", edge: null, shown: true, children: first.map(message) });
}

/** Things by their keys, in order. */
function grouped(things, keyOf) {
  const groups = new Map();
  for (const thing of things) {
    const key = keyOf(thing);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(thing);
  }
  return groups;
}

/** The part of the settings that odds depend on: those of other prompts and models are others. */
const promptOf = ({ [MODEL]: model, system, thinking, tools }) => JSON.stringify([model, system, thinking, tools]);

const oneLine = (text) => text.replace(/\s+/g, " ").trim();

function textOfRun(path, start, end) {
  const speller = new Speller();
  let text = "";
  for (let k = start; k < end && text.length < RUN; k += 1) text += speller.spell(path[k]);
  return text;
}

const endsBelow = ({ children, hidden }) =>
  hidden || children.reduce((count, child) => count + (child.children.length ? endsBelow(child) : child.hidden || 1), 0);

/** The width of an edge for a log-probability: 100 % is the widest, and a tenth is a step less. */
export const widthOf = (logprob) =>
  logprob === null ? 1 : Math.max(1, Math.round((9 + (8 / 3) * (logprob / Math.LN10)) * 10) / 10);

/** The place that a node stands for, from which other ways can be taken, as in `branch`; `answer` is the one of
 *  those that lead through it. One that is over cannot go on, so it is its last fork that other ways are taken from. */
export function placeOf(node, answer) {
  if (node.kind === "message") return { parent: node.node };
  const isOver = node.kind === "end" && ["stop", "tool_calls"].includes(answer.finish);
  return { node: answer, at: node.at - (isOver ? (node.edge?.count ?? 0) : 0) };
}

/** Whether a text is in what a node says. */
export function isFound(node, text) {
  const wanted = text.trim().toLowerCase();
  const said = [node.kind === "end" ? node.node.content : node.text, node.settings ?? "", node.edge?.text ?? ""];
  return Boolean(wanted) && said.some((each) => each.toLowerCase().includes(wanted));
}

// ---- in words ----------------------------------------------------------------------------------

/** How an answer ends, in a word or two. */
export function endOf({ growing, node: { finish, calls } }) {
  if (growing) return "growing";
  if (calls.length && finish === "tool_calls") return `calls ${calls.map(({ name }) => name).join(", ")}`;
  return { stop: "ended", length: "at the token limit", error: "failed" }[finish] ?? "stopped";
}

/** A log-probability with some decimals; none is −0. */
export function inLogs(value, digits) {
  const said = value.toFixed(digits);
  return Number(said) ? said.replace("-", "−") : said.replace("-", "");
}

/** A sum of log-probabilities, in four digits or a few more. */
export function sum({ logprob, known }) {
  if (!known) return "log p unknown";
  return `log p ${inLogs(logprob, logprob > -100 ? 2 : logprob > -1000 ? 1 : 0)}`;
}

const said = ({ role, text }) => `${role === "user" ? "You" : "Tools"}: ${text}`;

/** Everything about a node in one line, for a screen reader. */
export function labelOf(node) {
  const { edge, kind } = node;
  const parts = edge ? [`${spoken(edge.record.b)}, ${percent(edge.record.l)}${edge.count > 1 ? `, and ${counted(edge.count - 1, "more token")}` : ""}`] : [];
  if (kind === "start") parts.push(node.text);
  if (kind === "message") parts.push(said(node));
  if (kind === "fork") parts.push(`${node.ways} ways part here`);
  if (kind === "end") parts.push(`${endOf(node)}: ${node.text || "no text"}`, sum(node), counted(node.at, "token"));
  if (node.settings) parts.push(`with ${node.settings}`);
  if (node.dropped) parts.push("dropped");
  if (node.hidden) parts.push(`folded, ${counted(node.hidden, "end")} below`);
  if (node.shown) parts.push("shown in the conversation");
  return parts.join("; ");
}

/** A node in a line, for what is selected. */
export function whatOf(node) {
  const { edge, kind } = node;
  if (kind === "start") return "Where the conversation begins.";
  if (kind === "message") return said(node);
  const way = edge ? `“${visible(edge.record.b)}” ${percent(edge.record.l)}` : "";
  const logs = node.known ? [`log p ${inLogs(node.logprob, 3)}`, `${inLogs(node.logprob / node.known, 3)} a token`] : [];
  const rest = kind === "fork" ? [`${node.ways} ways part after token ${node.at}`] : [endOf(node), ...logs, node.settings, node.text];
  return [way, ...rest].filter(Boolean).join(" · ");
}

// ---- the layout --------------------------------------------------------------------------------

const LENGTH = 170; // of an edge, with room for its label
const WIDTHS = { start: 60, message: 164, fork: 16, end: 208 };
const HEIGHTS = { start: 30, message: 44, fork: 16, end: 44 };
const BESIDE = 27; // above and below a leaf, for its box and the label of its edge
const LINE = 15; // what settings below a box take more

/** The nodes of a tree with their places, leaves one below the other, and what leads to them on their left: `x`
 *  and `y` are the middle of the left edge of each. Nodes come in the order of reading: each before those that it
 *  leads to. */
export function layOut(tree) {
  const root = hierarchy(tree);
  /** @type {any} */ (cluster().nodeSize([1, 1])).separation((_, before) => roomBelow(before) + BESIDE)(root);
  const places = [];
  root.eachBefore((each) => {
    const { data, parent, depth, x: y } = each;
    const { kind } = data;
    each.left = parent ? parent.left + WIDTHS[parent.data.kind] + (data.edge || parent.data.kind === "fork" ? LENGTH : LENGTH / 3) : 0;
    places.push({
      node: data, parent: parent?.data ?? null, depth, x: each.left, y, width: WIDTHS[kind], height: HEIGHTS[kind],
      place: parent ? parent.children.indexOf(each) + 1 : 1, siblings: parent ? parent.children.length : 1,
    });
  });
  return places;
}

/** The room below a leaf: any node of its row may have settings below its box. */
function roomBelow(leaf) {
  const row = [leaf];
  while (row.at(-1).parent?.children.length === 1) row.push(row.at(-1).parent);
  return BESIDE + (row.some(({ data }) => data.settings) ? LINE : 0);
}

/** The rectangle around all of them. */
export function boundsOf(places) {
  const xs = places.flatMap(({ x, width }) => [x, x + width]);
  const ys = places.flatMap(({ y, height, node }) => [y - height / 2, y + height / 2 + (node.settings ? LINE : 0)]);
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  return { left, top, width: Math.max(...xs) - left, height: Math.max(...ys) - top };
}

/** Cut a text to a width in pixels; characters of East Asia and emoji are twice as wide. */
export function cut(text, width, size = 12) {
  const most = width / (size * 0.53);
  let wide = 0;
  let end = 0;
  for (const sign of text) {
    wide += sign.codePointAt(0) > 0x1100 ? 1.9 : 1;
    if (wide > most) return `${text.slice(0, Math.max(0, end - 1)).trimEnd()}…`;
    end += sign.length;
  }
  return text;
}
