import assert from "node:assert/strict";
import test from "node:test";
import { exported, ImportError, imported, transcriptOf } from "../../mlxgen/server/page/exchange.js";
import { DEFAULTS } from "../../mlxgen/server/page/settings.js";
import { conversationOf, isHead, settingsOf } from "../../mlxgen/server/page/stored.js";
import { treeOf } from "../../mlxgen/server/page/map-tree.js";
import { messagesFor, pathOf, shownIn } from "../../mlxgen/server/page/conversation.js";
import { answer, chance, conversation } from "./made.mjs";

const good = () => conversation(
  answer("a", "one two three", { stats: { tokens: 3, speed: 50 } }), answer("b", "six", { from: { node: "a", at: 2 } }),
);

function changed(way, to) {
  const made = good();
  let inside = made;
  for (const step of way.slice(0, -1)) inside = inside[step];
  inside[way.at(-1)] = to;
  return made;
}

test("a conversation that is malformed is not taken", () => {
  assert.deepEqual(conversationOf(good(), "c"), good());
  const broken = [
    [["nodes"], []], [["chosen", ""], "nobody"], [["chosen", "ask"], "ask"], [["nodes", "ask", "parent"], "ask"], [["nodes", "ask", "parent"], "nobody"],
    [["nodes", "ask", "text"], { a: 1 }], [["nodes", "ask", "role"], "constructor"], [["nodes", "a", "tokens"], [{ i: 1 }]], [["nodes", "a", "calls"], null],
    [["nodes", "a", "stats"], { speed: "fast" }], [["nodes", "b", "from"], { node: "b", at: 0 }], [["nodes", "b", "from"], { node: "a", at: 100_000 }],
    [["title"], 5], [["after"], {}], [["nodes", "a", "tokens", 0, "a"], [1, "x"]], [["nodes", "a", "tokens", 0, "a"], ["x", 1, 2]],
  ];
  for (const [way, to] of broken) assert.equal(conversationOf(changed(way, to), "c"), null, String(way));
  for (const other of [null, 5, "{", [], {}]) assert.equal(conversationOf(other, "c"), null);
  assert.equal(conversationOf(good(), "d"), null); // under another name than its own
  assert.equal(isHead({ id: "c", title: "", changed: 1 }, "c"), true);
  for (const head of [null, {}, { id: "d", title: "", changed: 1 }, { id: "c", title: 1, changed: 1 }]) assert.equal(isHead(head, "c"), false);
});

const VALUES = [null, true, -1, 0, 7, 1e300, 0.5, "", "x", [], {}, [[]], { a: 1 }, [256], "a", "b", "ask"];

function ways(value, way = []) {
  const inner = typeof value === "object" && value !== null ? Object.entries(value).flatMap(([key, below]) => ways(below, [...way, key])) : [];
  return way.length ? [way, ...inner] : inner;
}

test("whatever is taken can be shown, sent and written down", () => {
  const [random, all] = [chance(1), ways(good())];
  let taken = 0;
  for (let k = 0; k < 3000; k += 1) {
    const way = all[Math.floor(random() * all.length)];
    const found = conversationOf(changed(way, VALUES[Math.floor(random() * VALUES.length)]), "c");
    if (!found) continue;
    taken += 1;
    treeOf(found);
    transcriptOf(found);
    for (const node of shownIn(found)) if (node.role === "assistant") messagesFor(found, node, pathOf(found, node));
  }
  assert.ok(taken > 100 && taken < 3000);
});

test("settings that are nonsense are the defaults", () => {
  for (const nonsense of [5, "text", null, [1], { stop: { a: 1 }, temperature: 0, toString: "x" }]) assert.deepEqual(settingsOf(nonsense), DEFAULTS);
  assert.equal(settingsOf({ top_p: "0.9" }).top_p, "0.9");
});

test("what is exported can be imported and is the same; other files are refused", () => {
  assert.deepEqual(imported(exported([good()]), "some.json"), [good()]);
  const [nested, flat] = [good(), good()];
  nested.nodes.a.tokens[0].a = [[1, "x", -1], [2, [195], null]]; // as files had it at first
  flat.nodes.a.tokens[0].a = [1, "x", -1, 2, [195], null];
  assert.deepEqual(imported(exported([nested]), "some.json"), [flat]);
  const ours = { format: "mlxgen conversations", version: 1, conversations: [] };
  const cases = [
    ["{", /is not JSON/], ["[]", /has no conversations/], [JSON.stringify({ ...ours, version: 2 }), /has version 2/],
    [JSON.stringify({ ...ours, conversations: [{ id: "x" }] }), /Nothing was imported: conversation 1 of 1/],
  ];
  for (const [text, why] of cases) assert.throws(() => imported(text, "some.json"), (error) => error instanceof ImportError && why.test(error.message));
});
