// Finding words in the titles and texts of conversations. Nothing here touches the page.

const MOST = 3; // places of a conversation that are shown
const BEFORE = 24; // characters around what was found
const AFTER = 60;

/** What a query looks for, whatever the case and the white space; null if it is empty. */
export function patternOf(query) {
  const words = query.trim().split(/\s+/).filter(Boolean);
  return words.length ? new RegExp(words.map((word) => word.replace(/[\\^$.*+?()[\]{}|/-]/g, "\\$&")).join("\\s+"), "giu") : null;
}

/** What a node says, as far as it can be searched. */
export function saidIn(node) {
  if (node.role === "tool") return node.results.map(({ content }) => content).join("\n");
  return node.role === "user" ? node.text : node.content;
}

/** Where a conversation has what is looked for: {hits: [{node, before, match, after}], more}, or null.
 *  `texts` are [node's id, text]. */
export function findIn(title, texts, pattern) {
  const hits = [];
  let more = 0;
  for (const [node, text] of texts) {
    pattern.lastIndex = 0;
    const match = pattern.exec(text);
    if (!match) continue;
    if (hits.length === MOST) more += 1;
    else hits.push({ node, ...around(text, match.index, match[0]) });
  }
  pattern.lastIndex = 0;
  return hits.length || pattern.test(title) ? { hits, more } : null;
}

function around(text, at, match) {
  const plain = (part) => part.replace(/\s+/g, " ");
  const from = Math.max(0, at - BEFORE);
  const to = Math.min(text.length, at + match.length + AFTER);
  return {
    before: plain(`${from ? "…" : ""}${text.slice(from, at)}`), match: plain(match),
    after: plain(`${text.slice(at + match.length, to)}${to < text.length ? "…" : ""}`),
  };
}

/** A text in parts that are, by turns, not what is looked for and what is. */
export function partsOf(text, pattern) {
  const parts = [];
  let end = 0;
  for (const { index, 0: match } of text.matchAll(pattern)) {
    parts.push(text.slice(end, index), match);
    end = index + match.length;
  }
  return [...parts, text.slice(end)];
}
