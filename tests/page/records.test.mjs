import assert from "node:assert/strict";
import test from "node:test";
import { alternativesOf, levelOf, meantBy, planOf, putByHand, recordsOf, textOf, typedFrom, visible } from "../../mlxgen/server/page/records.js";
import { columnsOf, heightOf, TokenLines } from "../../mlxgen/server/page/token-lines.js";
import { told, words } from "./made.mjs";

const entry = (token, start = 0, end = undefined) => ({ ...token, bytes: token.bytes.slice(start, end) });

test("the bytes of each part are found in the lists of its entries", () => {
  const [thought, both, mark, word, end] = [
    told("so", { part: "reasoning" }), told(".</think>Hi", { part: "reasoning" }), told("\n", { part: "mark" }), told(" you"), told("<|end|>", { part: null }),
  ];
  const records = recordsOf({
    tokens: [thought, both, mark, word, end],
    logprobs: { content: [entry(both, 9), entry(word)], reasoning_content: [entry(thought), entry(both, 0, 1)] },
  });
  assert.equal(textOf(records, "reasoning"), "so.");
  assert.equal(textOf(records, "content"), "Hi you");
});

test("a record has its alternatives, what is not allowed and what was rejected", () => {
  const tops = [
    { id: 1, token: "a", bytes: [97], logprob: -0.1 },
    { id: 2, token: "b", bytes: [98], logprob: -3, allowed: false },
  ];
  const rejected = [{ id: 2, bytes: [98], reason: "draft", by: "head" }, { id: 3, bytes: [226, 130], reason: "hook", by: null }];
  const [record] = recordsOf({ tokens: [told("a", { id: 1, top_logprobs: tops, rejected })] });
  assert.deepEqual(alternativesOf(record), [{ id: 1, piece: "a", logprob: -0.1 }, { id: 2, piece: "b", logprob: -3 }]);
  assert.deepEqual(record.x, [2]);
  assert.deepEqual(record.j, [[2, "b", "draft", "head"], [3, [226, 130], "hook"]]);
  const [other] = putByHand([], [{ id: 2, piece: "b" }], record, 1);
  assert.deepEqual([other.i, other.b, other.l, other.h, other.a], [2, "b", -3, 1, record.a]);
  assert.deepEqual(alternativesOf(recordsOf({ tokens: [told("a")] })[0]), []);
});

test("probabilities that differ on a logarithmic scale have levels of their own", () => {
  const shares = [0.99995, 0.9995, 0.99, 0.9, 0.5, 0.1, 0.01, 0.0001];
  const levels = shares.map((share) => levelOf(Number(Math.log(share).toFixed(5))));
  assert.deepEqual(levels, [...new Set(levels)].sort((one, other) => one - other));
  const heights = shares.map((share) => heightOf(Math.log(share)));
  assert.deepEqual(heights, heights.toSorted((one, other) => one - other));
  assert.ok(heights[0] < 1e-9 && heights.at(-1) === 1);
});

test("a column of the strip shows the least likely of its tokens", () => {
  const columns = columnsOf([-0.1, null, -2, -0.5, null, null, -1], 4);
  assert.deepEqual(columns.map((column) => column?.logprob ?? null), [-0.1, -2, null, -1]);
});

test("what is typed is text or the ids of tokens", () => {
  const cases = [
    [" a\\nb", { text: " a\nb" }], ["#12", { ids: [12] }], [" #12, #7 ", { ids: [12, 7] }], ["\\#12", { text: "#12" }],
    ["#1st", { text: "#1st" }], ["a\\\\n", { text: "a\\n" }], ["", null],
  ];
  for (const [typed, meant] of cases) assert.deepEqual(meantBy(typed), meant);
});

test("white space before a mark is text where the mark was replaced by hand", () => {
  const records = [["a", "reasoning"], ["\n", "mark"], ["b", "reasoning"], ["\n", "mark"]].map(([b, p]) => ({ i: 1, b, p }));
  assert.equal(textOf(records, "reasoning"), "ab");
  records[2].h = 1;
  assert.equal(textOf(records, "reasoning"), "a\nb");
});

test("a character that is not whole is no text yet", () => {
  const [first, second] = new TextEncoder().encode("é");
  const record = { i: 1, b: [first], p: "content" };
  assert.equal(textOf([record], "content"), "");
  assert.equal(textOf([record, { i: 2, b: [second], p: "content" }], "content"), "é");
  assert.equal(visible("a b\n"), "a␣b⏎");
});

test("tokens are shown in boxes, and only the last box changes while they grow", () => {
  const path = Array.from({ length: 200 }, (_, k) => words(k % 10 === 9 ? "end.\n" : "word")[0]).map((record, k) => ({ ...record, b: k % 10 === 9 ? ".\n" : " w" }));
  const lines = new TokenLines().update(path.slice(0, 150));
  const before = lines.groups[0].boxes.slice();
  lines.update(path);
  const after = lines.groups[0].boxes;
  assert.deepEqual(before.slice(0, -1).map((box, k) => box === after[k]), before.slice(0, -1).map(() => true));
  assert.ok(after[before.length - 1] !== before.at(-1));
  assert.deepEqual(after.flatMap(({ items }) => items.map(({ index }) => index)), path.map((_, k) => k));
  const other = [...path.slice(0, 3), { ...path[3], i: 7 }];
  assert.equal(lines.update(other).groups[0].end, 4);
});

test("an emoji of several tokens and characters is one item", () => {
  const bytes = [...new TextEncoder().encode("\u{1F469}\u200D\u{1F466}")];
  const path = [{ i: 1, b: "a", p: "content", l: 0 }, ...bytes.map((byte) => ({ i: byte, b: [byte], p: "content", l: 0 })), { i: 2, b: "!", p: "content", l: 0 }];
  const [{ items }] = new TokenLines().update(path).groups[0].boxes;
  assert.deepEqual(items.map(({ text, whole }) => whole ?? text), ["a", "\u{1F469}\u200D\u{1F466}", "!"]);
  assert.equal(items[1].parts.length, bytes.length);
});

const PATH = [
  ["<think>", "mark"], ["So", "reasoning"], ["</think>", "mark"], ["\n\n", "mark"],
  ...["The", " cap", "ital", " of", " Fran", "ce", "."].map((piece) => [piece, "content"]), ["<|end|>", null],
].map(([b, p], i) => ({ i, b, p, l: 0 }));

test("an edit keeps the tokens before the word that it changes", () => {
  const cases = [
    ["The capital of France.", 11, ""], ["The capital of France. Or", 11, " Or"], ["The capital", 7, ""], ["The capit", 5, " capit"],
    ["The capital of Francis.", 8, " Francis."], ["The capitol of", 5, " capitol of"], ["A capital", 4, "A capital"], ["", 4, ""],
  ];
  for (const [text, at, rest] of cases) {
    const plan = planOf(PATH, text);
    assert.deepEqual([plan.at, plan.rest], [at, rest], text);
  }
});

test("tokens that an edit leaves as they were are kept", () => {
  const found = typedFrom(PATH, { at: 8, lead: 0 }, [{ id: 8, piece: " Fran" }, { id: 50, piece: "cis" }, { id: 10, piece: "." }]);
  assert.equal(found.at, 9);
  assert.deepEqual(found.typed.map(({ b, l, h }) => [b, l, h]), [["cis", null, 2], [".", null, 2]]);
  const both = { i: 1, b: ".</think>Hi", p: "reasoning", r: [46], c: [72, 105] };
  const plan = planOf([both], "Ho");
  assert.deepEqual(plan, { at: 0, rest: ".</think>Ho", lead: 9 });
  assert.equal(textOf(typedFrom([both], plan, [{ id: 1, piece: ".</think" }, { id: 2, piece: ">Ho" }]).typed, "content"), "Ho");
});
