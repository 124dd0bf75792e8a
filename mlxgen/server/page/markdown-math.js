// LaTeX in Markdown: $..$ and \(..\) in a line, $$..$$ and \[..\] on lines of their own.
//
// As in Pandoc, a dollar sign opens only before something that is not a space, and closes only after
// such and not before a letter or digit, so that prices are no formulas.

const PAIRS = [["$$", "$$"], ["\\[", "\\]"], ["\\(", "\\)"], ["$", "$"]];

/** Teach a parser of markdown-it the rules; formulas become tokens of the type `math`. */
export function addMath(parser) {
  parser.inline.ruler.before("escape", "math", inline);
  parser.block.ruler.before("fence", "math", block, { alt: ["paragraph", "blockquote", "list"] });
}

function inline(state, silent) {
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

function block(state, first, last, silent) {
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
