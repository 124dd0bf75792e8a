// Taking branches out of a conversation, and putting them back.
//
// An answer that stays may share tokens with one that goes: then it gets them, or shares them with
// another one that stays. Nothing here touches the page.

import { commonLength, ownerOf, pathOf, siblingsOf } from "./conversation.js";

/** Take nodes, and everything below them, out of a conversation; returns what `putBack` needs. */
export function prune(conversation, nodes) {
  const gone = withBelow(conversation, nodes);
  const kept = Object.values(conversation.nodes).filter((node) => !gone.has(node));
  const heads = kept.filter((node) => node.from && gone.has(conversation.nodes[node.from.node]));
  const pruned = {
    nodes: [...gone], chosen: { ...conversation.chosen }, heads: heads.map(({ id, from }) => ({ id, from })),
  };
  for (const node of heads) Object.assign(node, rooted(conversation, node, gone));
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

/** Where an answer branches off once `gone` is not there: from another one, or from the message. */
function rooted(conversation, node, gone) {
  const path = pathOf(conversation, node);
  const { at } = node.from;
  const stays = siblingsOf(conversation, node).filter((other) => {
    const line = lineOf(conversation, other);
    return !line.includes(node) && !line.some((each) => gone.has(each));
  });
  const origin = at && stays.find((other) => commonLength(pathOf(conversation, other), path) >= at);
  if (!origin) return { from: null, tokens: path };
  return { from: { node: ownerOf(conversation, origin, at).id, at }, tokens: path.slice(at) };
}

/** An answer, and those whose tokens it shares. */
function lineOf(conversation, node) {
  const line = [node];
  while (line.at(-1).from) line.push(conversation.nodes[line.at(-1).from.node]);
  return line;
}
