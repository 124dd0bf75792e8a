// A conversation as the tree that the map draws: messages, the places where answers part, and ends.
//
// All answers to a message that were given the same prompt are put together by their tokens, whoever
// branched off from whom. A run of tokens without a fork is one edge. Nothing here touches the page.

import { childrenOf, pathOf, shownIn } from "./conversation.js";
import { Speller } from "./records.js";
import { FIELDS, formName, MODEL } from "./settings.js";

const RUN = 40; // characters of an edge's text that are made
const END = 60; // and of how an answer ends

/** The tree. `isGrowing(answer)` tells the answers in progress, and `folded` has the ids of the nodes
 *  whose branches are hidden.
 *
 *  A node has `id`, `kind` (start, message, fork, end), `text`, `children`, `ways`, the number of
 *  these before folding, and `edge`, the tokens that lead to it: {record, text, count}. A fork and an end have `answers`, those that lead
 *  through it, `at`, the number of tokens before it, and `logprob`, the sum of the `known` ones.
 *  @param {any} conversation @param {{isGrowing?: (node: any) => boolean, folded?: Set<string>}} [options] */
export function treeOf(conversation, { isGrowing = () => false, folded = new Set() } = {}) {
  const shown = new Set(shownIn(conversation));
  const build = new Builder(conversation, isGrowing, shown);
  const first = childrenOf(conversation, null);
  const root = first.length === 1 ? build.message(first[0])
    : { id: "start", kind: "start", text: "Start", edge: null, shown: true, children: first.map((node) => build.message(node)) };
  return fold(root, folded);
}

class Builder {
  #conversation;
  #isGrowing;
  #shown;
  #children = new Map();

  constructor(conversation, isGrowing, shown) {
    this.#conversation = conversation;
    this.#isGrowing = isGrowing;
    this.#shown = shown;
    for (const node of Object.values(conversation.nodes)) {
      if (!this.#children.has(node.parent)) this.#children.set(node.parent, []);
      this.#children.get(node.parent).push(node);
    }
  }

  message(node) {
    const text = node.role === "user" ? node.text : node.results.map(({ name, content }) => `${name}: ${content}`).join("; ");
    return {
      id: node.id, kind: "message", role: node.role, text: oneLine(text), node, edge: null,
      shown: this.#shown.has(node), children: this.#below(node),
    };
  }

  /** What follows a message or an answer. */
  #below(node) {
    const children = this.#children.get(node.id) ?? [];
    const answers = children.filter((child) => child.role === "assistant");
    const groups = new Map();
    for (const answer of answers) {
      const key = promptOf(answer.settings);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push({ answer, path: pathOf(this.#conversation, answer) });
    }
    const grown = [...groups.values()].flatMap((list) => {
      const top = this.#grow(list, 0, { at: 0, logprob: 0, known: 0 });
      // Where answers part at once, the message itself is the fork.
      return top.kind === "fork" && !top.edge ? top.children : [top];
    });
    return [...grown, ...children.filter((child) => child.role !== "assistant").map((child) => this.message(child))];
  }

  /** The node where the run of tokens from `start` on ends that all of `list` share. */
  #grow(list, start, before) {
    const [{ path }] = list;
    let at = start;
    let { logprob, known } = before;
    while (list.every((each) => each.path.length > at && each.path[at].i === path[at].i)) {
      if (path[at].l !== null) {
        logprob += path[at].l;
        known += 1;
      }
      at += 1;
    }
    const here = { at, logprob, known };
    const edge = at > start ? { record: path[start], text: textOfRun(path, start + 1, at), count: at - start } : null;
    if (list.length === 1) return this.#end(list[0], edge, here);
    const answers = list.map(({ answer }) => answer);
    const ways = new Map();
    for (const each of list) {
      const key = each.path.length > at ? each.path[at].i : `end ${each.answer.id}`;
      if (!ways.has(key)) ways.set(key, []);
      ways.get(key).push(each);
    }
    const [owner] = answers;
    return {
      id: `${owner.id}@${at}`, kind: "fork", text: "", edge, answers, ...here,
      shown: answers.some((answer) => this.#shown.has(answer)),
      dropped: answers.every((answer) => answer.dropped), growing: false,
      children: [...ways.values()].map((some) => this.#grow(some, at, here)),
    };
  }

  #end({ answer }, edge, here) {
    const first = this.#children.get(answer.parent).find(({ role }) => role === "assistant");
    const base = (answer.from ? this.#conversation.nodes[answer.from.node] : first).settings;
    const text = oneLine(answer.content || answer.reasoning);
    return {
      id: answer.id, kind: "end", text: text.length > END ? `…${text.slice(-END)}` : text, node: answer,
      edge, answers: [answer], ...here, shown: this.#shown.has(answer), dropped: Boolean(answer.dropped),
      growing: this.#isGrowing(answer), finish: answer.finish, calls: answer.calls.map(({ name }) => name),
      settings: differenceOf(answer.settings, base), children: this.#below(answer),
    };
  }
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

/** How settings differ from others, in a few words. */
function differenceOf(settings, base) {
  if (!base) return "";
  const said = [];
  for (const { name, label } of FIELDS) {
    if (settings[name] === base[name] || ["alternatives", "seed"].includes(name)) continue;
    if (["form", "schema", "regex"].includes(name)) {
      if (settings.form !== "schema" && name === "schema") continue;
      if (settings.form !== "regex" && name === "regex") continue;
      said.push(formName(settings) || "any text");
    } else {
      const value = String(settings[name]);
      said.push(`${label.toLowerCase()} ${value === "" ? "as usual" : value.length > 12 ? "changed" : value}`);
    }
  }
  return [...new Set(said)].join(", ");
}

/** Leave out what is below the folded nodes; `hidden` is the number of ends there. */
function fold(node, folded) {
  if (folded.has(node.id) && node.children.length) return { ...node, hidden: endsBelow(node), ways: node.children.length, children: [] };
  return { ...node, hidden: 0, ways: node.children.length, children: node.children.map((child) => fold(child, folded)) };
}

const endsBelow = ({ children }) =>
  children.reduce((count, child) => count + (child.children.length ? endsBelow(child) : 1), 0);

/** The width of an edge for a log-probability: 100 % is the widest, and a tenth is a step less. */
export const widthOf = (logprob) =>
  logprob === null ? 1 : Math.max(1, Math.round((9 + (8 / 3) * (logprob / Math.LN10)) * 10) / 10);

/** The place that a node stands for, from which other ways can be taken: {node, at}, or {parent}.
 *  An answer that is over cannot go on, so it is its last fork that other ways are taken from. */
export function placeOf(node, isOver = ({ finish }) => finish === "stop" || finish === "tool_calls") {
  if (node.kind === "message") return { parent: node.node };
  if (node.kind !== "end" || !isOver(node.node)) return { node: node.answers[0], at: node.at };
  return { node: node.node, at: node.at - (node.edge?.count ?? 0) };
}

/** Whether a text is in what a node says. */
export function isFound(node, text) {
  const wanted = text.trim().toLowerCase();
  if (!wanted) return false;
  const said = [node.kind === "end" ? node.node.content : node.text, node.settings ?? "", node.edge?.text ?? ""];
  return said.some((each) => each.toLowerCase().includes(wanted));
}
