import assert from "node:assert/strict";
import test from "node:test";
import { announcer } from "../../mlxgen/server/page/announce.js";
import { blocksOf, grownBlocks } from "../../mlxgen/server/page/markdown-tree.js";
import { chance } from "./made.mjs";

const FENCE = "```";
const LONG = `# Head

Some **bold**, *slanted*, \`code\` and [a link](https://example.org/).
- one
- two
  ${FENCE}python
  print("x")  # y
  ${FENCE}
1. first
#hash
> quote
lazy

| a | b |
|---|--:|
| 1<br>x | $2^n$ |
$$
a_1 + b_1
$$
- [ ] open
---
5 * 3 ** 2 costs $5 or $10

998. a
999. b
${FENCE}
no language
***
${FENCE}

The end.
`;

test("a text that grows has the blocks that it would have if it came at once, and keeps those before the last two", () => {
  for (let seed = 1; seed <= 40; seed += 1) {
    const random = chance(seed);
    let grown = null;
    for (let end = 0; end < LONG.length; end += 1 + Math.floor(random() * 30)) {
      const text = LONG.slice(0, end);
      const before = grown?.blocks ?? [];
      grown = grownBlocks(grown, text, true);
      assert.deepEqual(grown.blocks, grownBlocks(null, text, true).blocks, text);
      for (const [k, block] of before.slice(0, -2).entries()) assert.equal(grown.blocks[k], block);
    }
    assert.deepEqual(grownBlocks(grown, LONG, false).blocks, grownBlocks(null, LONG, false).blocks);
  }
});

test("blocks say where they begin, whatever ends the lines", () => {
  for (const text of ["One.\n\nTwo, *and* more.\n\nThree.", "One.\r\n\r\nTwo, *and* more.\r\n\r\nThree."]) {
    const { blocks } = grownBlocks(null, text, false);
    assert.deepEqual(blocks.map(({ start }) => start), [0, 6, 24]);
  }
});

test("marks that are still open are taken as closed", () => {
  const tree = (tag, ...children) => ({ tag, attrs: {}, children });
  const expected = {
    "a **bo": [["a ", tree("strong", "bo")]], "a **bo*": [["a ", tree("strong", "bo")]],
    "a **bo** *c": [["a ", tree("strong", "bo"), " ", tree("em", "c")]], "a `x": [["a ", tree("code", "x")]],
    "see [this](https://exa": [["see this"]], "2 * 3": [["2 * 3"]], "text\n-": [["text"]], "text\n1.": [["text"]], "text\n``": [["text"]],
    "$$\nx": [{ math: "x", display: true, source: "$$\nx", open: true }], [`${FENCE}js\nlet`]: [{ code: "let", language: "js" }],
  };
  for (const [text, blocks] of Object.entries(expected)) {
    assert.deepEqual(blocksOf(text, { growing: true }).map(({ node }) => node.children ?? node), blocks, text);
  }
});

test("only links to other sites and to mail lead anywhere", () => {
  const tree = JSON.stringify(blocksOf("[a](javascript:alert(1)) [b](/docs) [c](//evil.invalid) [d](https://ok.invalid) ![e](data:image/svg+xml,x) <b>bold</b>"));
  assert.deepEqual([...tree.matchAll(/"href":"([^"]*)"/g)].map(([, url]) => url), ["https://ok.invalid"]);
  assert.ok(tree.includes("<b>bold</b>"));
});

test("sentences are announced when they are complete, without their marks", () => {
  const said = [];
  const announce = announcer((sentence) => said.push(sentence), () => true);
  const node = { content: "", problem: null, finish: null };
  for (const content of ["", "**It** ra", "**It** rains. The sun", "**It** rains. The sun `shines`"]) announce(Object.assign(node, { content }));
  announce(null);
  assert.deepEqual(said, ["Answering.", "It rains.", "The sun shines", "End of the answer."]);
});
