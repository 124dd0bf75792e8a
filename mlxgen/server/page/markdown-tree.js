// Markdown as a tree of what may be shown: plain objects, made from the parser's tokens.
//
// Nothing here touches the page, and no HTML is made or read. A node is a text, {tag, attrs,
// children}, {code, language} or {math, display}; only the tags named here come out, links lead only
// to other sites and to mail, and whatever is not known is its own text.

import markdownit from "./vendor/markdown-it/markdown-it.esm.min.mjs";

const SAFE = /^(?:https?:\/\/|mailto:)/i;

const parser = markdownit({ html: false, linkify: true, breaks: true });
// A line of dashes below a paragraph is meant as a rule far more often than as a heading, and while
// an answer grows, each list after a paragraph would make it a heading for a moment.
parser.disable("lheading");
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false }).add("//", null).add("ftp:", null);
parser.linkify.pretest = (text) => /https?:\/\/|mailto:/i.test(text); // its own is slow, and is asked for each block
parser.validateLink = (url) => SAFE.test(url);
parser.inline.ruler.before("escape", "math", mathInLine);
parser.block.ruler.before("fence", "math", mathBlock, { alt: ["paragraph", "blockquote", "list"] });
// The only mark of HTML that models need for Markdown: a cell of a table has no other way to break a line.
const BREAK = /<br\s*\/?>/iy;
parser.inline.ruler.before("autolink", "break", (state, silent) => {
  BREAK.lastIndex = state.pos;
  const [found] = BREAK.exec(state.src) ?? [];
  if (!found || state.pos + found.length > state.posMax) return false;
  if (!silent) state.push("hardbreak", "br", 0);
  state.pos += found.length;
  return true;
});
parser.core.ruler.after("block", "mend", ({ tokens, env }) => {
  const last = tokens.findLast((token) => token.nesting >= 0);
  if (env.growing && last?.type === "inline") last.content = mended(last.content);
});

/** The blocks of a text as [{node, line}], `line` being where each begins. While the text is
 *  `growing`, marks that its end leaves open are taken as closed there. */
export function blocksOf(text, { growing = false } = {}) {
  const shown = growing ? text.replace(UNDECIDED, "$1") : text;
  const tokens = parser.parse(shown, { growing });
  const blocks = [];
  for (let start = 0, k = 0; k < tokens.length; k += 1) {
    if (tokens[k].level || tokens[k].nesting > 0) continue;
    blocks.push({ node: treeOf(tokens.slice(start, k + 1))[0], line: tokens[start].map[0] });
    start = k + 1;
  }
  return blocks;
}

/** The blocks of a text that may have grown since they were `before`: {text, growing, blocks: [{node, start}]},
 *  where blocks that are the same stay the same objects. Only the last two are parsed again: a new line can
 *  change the meaning of no more than these ("#" after a paragraph is a heading, "#a" is part of the
 *  paragraph). The end of a text is parsed with all of it, since links may be defined anywhere. */
export function grownBlocks(before, given, growing) {
  const text = given.includes("\r") ? given.replace(/\r\n?/g, "\n") : given; // as the parser counts lines
  if (before && before.text === text && before.growing === growing) return before;
  const grows = growing && before?.growing && text.startsWith(before.text);
  const kept = grows ? before.blocks.slice(0, -2) : [];
  const start = grows ? (before.blocks[kept.length]?.start ?? 0) : 0;
  const rest = text.slice(start);
  const lines = [0];
  for (let at = rest.indexOf("\n"); at >= 0; at = rest.indexOf("\n", at + 1)) lines.push(at + 1);
  const parsed = blocksOf(rest, { growing }).map(({ node, line }) => ({ node, start: start + lines[line] }));
  const known = before?.blocks ?? [];
  const blocks = [...kept, ...parsed].map((block, k) => (k >= kept.length && isSame(block, known[k]) ? known[k] : block));
  return { text, growing, blocks };
}

const isSame = (block, other) =>
  other !== undefined && block.start === other.start && JSON.stringify(block.node) === JSON.stringify(other.node);

/** What a text says, without its marks. */
export const plainText = (text) => blocksOf(text).map(({ node }) => said(node)).join(" ");

function said(node) {
  if (typeof node === "string") return node;
  const part = node.code ?? node.source ?? node.children.map(said).join("");
  return INLINE.has(node.tag) ? part : `${part} `;
}

const INLINE = new Set(["em", "strong", "s", "a", "code", "span"]);

// A last line of nothing but marks: what they will mean is said by what comes next.
const UNDECIDED = /(^|\n)[ \t>]*(?:[-=*_+#~`$|\\]+|\d+[.)]?)[ \t]*$/;

/** Inline text with the marks closed that it leaves open. */
function mended(text) {
  const { tick, rest } = withoutCode(text);
  if (tick) return text.endsWith(tick) ? text.slice(0, -tick.length).trimEnd() : text + tick;
  const whole = (given) => given.replace(/!?\[([^\]\n]*)\]\([^)\s]*$/, "$1").replace(/<br?\s*\/?$/i, "").replace(/[*~]+$/, "").trimEnd();
  const plain = whole(rest);
  return ["**", "~~", "*"].reduce((sofar, mark) => (isOpen(plain, mark) ? sofar + mark : sofar), whole(text));
}

/** The text without its code, and the backticks of code that has no end. */
function withoutCode(text) {
  const ticks = [...text.matchAll(/`+/g)];
  let rest = "";
  let at = 0;
  for (let k = 0; k < ticks.length; k += 1) {
    const [tick] = ticks[k];
    const end = ticks.findIndex((other, j) => j > k && other[0] === tick);
    rest += text.slice(at, ticks[k].index);
    if (end < 0) return { tick, rest };
    at = ticks[end].index + tick.length;
    k = end;
  }
  return { tick: "", rest: rest + text.slice(at) };
}

function isOpen(text, mark) {
  const single = mark === "*" ? text.replaceAll("**", "") : text;
  const begun = single.lastIndexOf(mark);
  if (begun < 0 || single.split(mark).length % 2) return false;
  return !/\s/.test(single[begun + mark.length] ?? " ") && !/\w/.test(single[begun - 1] ?? " ");
}

const TAGS = {
  paragraph: "p", bullet_list: "ul", ordered_list: "ol", list_item: "li", blockquote: "blockquote",
  table: "table", thead: "thead", tbody: "tbody", tr: "tr", th: "th", td: "td",
  em: "em", strong: "strong", s: "s", link: "a", heading: "h",
};
const DIRECTED = new Set(["p", "li", "th", "td", "h3", "h4", "h5", "h6"]);

function treeOf(tokens) {
  const stack = /** @type {any[]} */ ([{ children: [] }]);
  for (const token of tokens) {
    if (token.nesting > 0) {
      stack.push({ ...opened(token), hidden: token.hidden, children: [] });
    } else if (token.nesting < 0) {
      const { hidden, ...node } = stack.pop();
      const children = stack.at(-1).children;
      if (hidden) children.push(...node.children);
      else children.push(closed(node));
    } else {
      stack.at(-1).children.push(...leavesOf(token));
    }
  }
  return joined(stack[0].children);
}

function opened(token) {
  const kind = token.type.replace(/_open$/, "");
  let tag = Object.hasOwn(TAGS, kind) ? TAGS[kind] : "span";
  const attrs = {};
  // The page's own headings are above those of an answer.
  if (tag === "h") tag = `h${Math.min(6, Number(token.tag.slice(1)) + 2)}`;
  if (tag === "a") Object.assign(attrs, linkTo(token.attrGet("href")));
  if (tag === "ol" && token.attrGet("start") !== null) attrs.start = token.attrGet("start");
  const [, align] = /text-align:(right|center)/.exec(token.attrGet("style") ?? "") ?? [];
  if (align) attrs.class = align;
  if (DIRECTED.has(tag)) attrs.dir = "auto";
  return { tag: tag === "a" && !attrs.href ? "span" : tag, attrs };
}

const linkTo = (url) => (SAFE.test(url ?? "") ? { href: url, target: "_blank", rel: "noopener noreferrer" } : {});

function closed(node) {
  const made = { ...node, children: joined(node.children) };
  if (made.tag === "table") {
    return { tag: "div", attrs: { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, children: [made] };
  }
  if (made.tag === "ol") return withRoom(made);
  return made.tag === "li" ? asTask(made) : made;
}

/** A list whose numbers have more than two digits gets a class for their width. */
function withRoom(list) {
  const { length } = String(Number(list.attrs.start ?? 1) + list.children.length - 1);
  return length > 2 ? { ...list, attrs: { ...list.attrs, class: `digits-${Math.min(length, 6)}` } } : list;
}

/** An item that begins with [ ] or [x] gets a box instead. */
function asTask(item) {
  const [first, ...others] = item.children;
  const inside = first?.tag === "p" ? first : item;
  const [text, ...rest] = inside.children;
  const found = typeof text === "string" ? /^\[([ xX])\]\s+/.exec(text) : null;
  if (!found) return item;
  const done = found[1] !== " ";
  const attrs = { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "Done" : "Not done" };
  const children = [{ tag: "input", attrs, children: [] }, text.slice(found[0].length), ...rest];
  return {
    ...item,
    attrs: { ...item.attrs, class: "task" },
    children: inside === item ? children : [{ ...first, children }, ...others],
  };
}

function leavesOf(token) {
  switch (token.type) {
    case "inline": return treeOf(token.children);
    case "fence":
    case "code_block":
      return [{ code: token.content.replace(/\n$/, ""), language: token.info.trim().split(/[\s{:,]/)[0] }];
    case "code_inline": return [{ tag: "code", attrs: {}, children: [token.content] }];
    case "math": return [{ math: token.content, display: token.block, source: token.markup, open: token.hidden }];
    case "softbreak":
    case "hardbreak": return [{ tag: "br", attrs: {}, children: [] }];
    case "hr": return [{ tag: "hr", attrs: {}, children: [] }];
    case "image": return [pictureLink(token)];
    default: return token.content ? [token.content] : [];
  }
}

/** Nothing is loaded from where a picture is, so a person can go there. */
function pictureLink(token) {
  const attrs = linkTo(token.attrGet("src"));
  const name = token.content || token.attrGet("src") || "";
  return attrs.href ? { tag: "a", attrs: { ...attrs, class: "picture" }, children: [name] } : name;
}

/** Texts that follow one another as one. */
function joined(nodes) {
  const made = [];
  for (const node of nodes) {
    if (typeof node === "string" && typeof made.at(-1) === "string") made[made.length - 1] += node;
    else if (node !== "") made.push(node);
  }
  return made;
}

// ---- formulas --------------------------------------------------------------------------------
//
// $..$ and \(..\) in a line, $$..$$ and \[..\] on lines of their own. As in Pandoc, a dollar sign opens only before
// something that is not a space, and closes only after such and not before a letter or digit, so that prices are no
// formulas.

const PAIRS = [["$$", "$$"], ["\\[", "\\]"], ["\\(", "\\)"], ["$", "$"]];

function mathInLine(state, silent) {
  const { src, pos } = state;
  const pair = PAIRS.find(([open]) => src.startsWith(open, pos));
  if (!pair) return false;
  const [open, close] = pair;
  const start = pos + open.length;
  const end = endOf(src, start, close, state.posMax);
  if (end < 0 || !src.slice(start, end).trim()) return false;
  if (open === "$" && !isMoneyFree(src, pos, end)) return false;
  if (!silent) {
    const token = state.push("math", "math", 0);
    token.content = src.slice(start, end).trim();
    token.markup = src.slice(pos, end + close.length);
    token.block = open === "$$" || open === "\\[";
  }
  state.pos = end + close.length;
  return true;
}

const isMoneyFree = (src, pos, end) =>
  !/[\w$]/.test(src[pos - 1] ?? "") && !/\s/.test(src[pos + 1]) && !/\s/.test(src[end - 1]) && !/[\w$]/.test(src[end + 1] ?? "");

/** Where the formula ends; what is escaped in it does not end it. */
function endOf(src, start, close, most) {
  for (let at = start; at < most; at += 1) {
    if (src.startsWith(close, at)) return at + close.length <= most ? at : -1;
    if (src[at] === "\\") at += 1;
  }
  return -1;
}

function mathBlock(state, first, last, silent) {
  if (state.sCount[first] - state.blkIndent >= 4) return false;
  const line = (k) => state.src.slice(state.bMarks[k] + state.tShift[k], state.eMarks[k]).trimEnd();
  const pair = PAIRS.slice(0, 2).find(([open]) => line(first).startsWith(open));
  if (!pair) return false;
  const [open, close] = pair;
  let end = first;
  const opening = line(first).slice(open.length);
  let found = opening.indexOf(close);
  if (found >= 0 && found + close.length < opening.length) return false; // text goes on after it
  while (found < 0 && end + 1 < last && state.sCount[end + 1] >= state.blkIndent && !state.isEmpty(end + 1)) {
    end += 1;
    if (line(end).endsWith(close)) found = end;
  }
  const open_ = found < 0;
  // One that has no end is a formula only as long as its end may still come.
  if (open_ && !(state.env.growing && end + 1 >= state.lineMax)) return false;
  if (silent) return true;
  const source = state.getLines(first, end + 1, state.blkIndent, false).trim();
  const token = state.push("math", "math", 0);
  token.content = source.slice(open.length, open_ ? undefined : -close.length).trim();
  token.markup = source;
  token.block = true;
  token.hidden = open_;
  token.map = [first, end + 1];
  state.line = end + 1;
  return true;
}
