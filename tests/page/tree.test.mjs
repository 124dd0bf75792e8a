import assert from "node:assert/strict";
import test from "node:test";
import { ServerError } from "../../mlxgen/server/page/api.js";
import { cutBack, messagesFor, pathOf, prune, putBack, twinOf } from "../../mlxgen/server/page/conversation.js";
import { findIn, patternOf } from "../../mlxgen/server/page/finding.js";
import { inLogs, layOut, treeOf, widthOf } from "../../mlxgen/server/page/map-tree.js";
import { isEnd, refusalOf } from "../../mlxgen/server/page/run.js";
import { bestOf, tokensAt, uncertainAt, waysOf } from "../../mlxgen/server/page/search.js";
import { DEFAULTS } from "../../mlxgen/server/page/settings.js";
import { answer, conversation, words } from "./made.mjs";

/** A tree as nested lists: what leads to each node, and what follows. */
const drawn = ({ edge, children }) => [edge && [edge.record.b.trim(), edge.count], ...children.map(drawn)];

test("answers part where their tokens do, whoever they branch off from", () => {
  const [first, fork, alone, other] = [
    answer("a", "one two three four"), answer("b", "six", { from: { node: "a", at: 2 } }), answer("c", "one two three five"),
    answer("d", "one", { settings: { system: "Be brief." } }),
  ];
  const tree = treeOf(conversation(first, fork, alone, other));
  assert.deepEqual(drawn(tree), [null, [["one", 2], [["three", 1], [["four", 1]], [["five", 1]]], [["six", 1]]], [["one", 1]]]); // another prompt has other odds
  const [at] = tree.children;
  assert.deepEqual([at.kind, at.at, at.logprob], ["fork", 2, -2]);
  assert.deepEqual(at.children.map(({ shown }) => shown), [true, false]);
});

test("answers with the same tokens have ends of their own", () => {
  const tree = treeOf(conversation(answer("a", "one two"), answer("b", "one two", { settings: { temperature: "0" } })));
  assert.deepEqual(drawn(tree), [null, [["one", 2], [null], [null]]]);
  assert.deepEqual(tree.children[0].children.map(({ settings }) => settings), ["", "temperature 0"]);
});

test("edges are as wide as they are likely, and log-probabilities have a minus sign unless they are none", () => {
  assert.deepEqual([0, -2.302585, -6.907755, -50, null].map(widthOf), [9, 6.3, 1, 1, 1]);
  const given = [[-1.234, 2], [-0.004, 2], [-0.0004, 3], [0, 2], [-8894.9, 0]];
  assert.deepEqual(given.map(([value, digits]) => inLogs(value, digits)), ["−1.23", "0.00", "0.000", "0.00", "−8895"]);
});

test("rows are apart by what is written below them", () => {
  const plain = { edge: null, settings: "", children: [] };
  const ends = [{}, {}, { settings: "x" }, {}].map((more, id) => ({ ...plain, id, kind: "end", ...more }));
  const places = layOut({ ...plain, id: "m", kind: "message", children: ends }).filter(({ node }) => node.kind === "end");
  assert.deepEqual(places.map(({ y }) => y - places[0].y), [0, 54, 108, 177]);
});

test("what shared tokens with a pruned branch stays whole, and comes back", () => {
  const given = () => {
    const made = conversation(answer("a", "one two three four"), answer("b", "six seven", { from: { node: "a", at: 2 } }), answer("c", "eight", { from: { node: "b", at: 3 } }));
    made.nodes.next = { id: "next", parent: "a", role: "user", text: "And then?" };
    made.chosen.a = "next";
    return made;
  };
  const texts = (made) => Object.fromEntries(Object.values(made.nodes).filter(({ tokens }) => tokens).map((node) => [node.id, pathOf(made, node).map(({ b }) => b).join("").trim()]));
  const made = given();
  const pruned = prune(made, [made.nodes.a]);
  assert.deepEqual(texts(made), { b: "one two six seven", c: "one two six eight" });
  assert.deepEqual(made.chosen, { "": "ask", ask: "c" });
  assert.deepEqual([made.nodes.b.from, made.nodes.c.from.node], [null, "b"]);
  putBack(made, pruned);
  const inOrder = (object) => Object.entries(object).sort();
  assert.deepEqual(inOrder(made.nodes), inOrder(given().nodes));
  assert.deepEqual(inOrder(made.chosen), inOrder(given().chosen));
  const other = given();
  prune(other, [other.nodes.b]);
  assert.deepEqual(texts(other), { a: "one two three four", c: "one two six eight" });
});

test("an answer that is cut back counts the tokens that it has left", () => {
  const made = conversation(answer("a", "1 2 3"), answer("b", "4 5 6 7 8", { from: { node: "a", at: 2 }, stats: { tokens: 9, held: 4, speed: 50 } }));
  cutBack(made, made.nodes.b, 4);
  assert.deepEqual([made.nodes.b.tokens.length, made.nodes.b.stats], [2, { tokens: 2, held: 0, speed: 50 }]);
});

test("an answer that came out the same has a twin, and only that", () => {
  const made = conversation(answer("a", "one two"), answer("b", "two", { from: { node: "a", at: 1 }, content: "one two" }), answer("c", "one"), answer("d", "one two", { finish: "length" }));
  assert.equal(twinOf(made, made.nodes.b)?.id, "a");
  assert.equal(twinOf(made, made.nodes.c), undefined);
  assert.equal(twinOf(made, made.nodes.d), undefined);
});

test("questions without an answer are asked together, and the oldest exchanges can be left out", () => {
  const image = { name: "i", url: "data:image/png;base64," };
  const said = (between, more = {}) => {
    const nodes = [{ id: "u", parent: "", role: "user", text: "One" }];
    if (between) nodes.push({ ...answer("n", ""), ...between, parent: "u" });
    nodes.push({ id: "v", parent: nodes.at(-1).id, role: "user", text: "Two", images: [image] });
    return messagesFor({ nodes: Object.fromEntries(nodes.map((node) => [node.id, node])), ...more }, { parent: "v", settings: { ...DEFAULTS, system: "S" } });
  };
  const system = { role: "system", content: "S" };
  const two = [{ type: "image_url", image_url: { url: image.url } }, { type: "text", text: "Two" }];
  const together = [system, { role: "user", content: [{ type: "text", text: "One" }, ...two] }];
  for (const finish of ["error", "stopped"]) assert.deepEqual(said({ finish, reasoning: "Hm", content: "" }), together);
  const half = { finish: "error", content: "Half" };
  assert.deepEqual(said(half), [system, { role: "user", content: "One" }, { role: "assistant", content: "Half" }, { role: "user", content: two }]);
  assert.deepEqual(said(half, { after: "v" }), [system, { role: "user", content: two }]);
  assert.deepEqual(said(half, { after: "elsewhere" }).length, 4);
});

test("a refusal of the server is told by its code and its place", () => {
  const refused = (code, index) => new ServerError("", { status: 400, code, param: `prefix_tokens[${index}]` });
  const fork = { ...answer("b", "six seven", { settings: { form: "schema" } }), from: { node: "a", at: 2 } };
  const path = words("one two six seven");
  const said = (code, index) => refusalOf(refused(code, index), fork, path)?.refused ?? null;
  assert.equal(said("token_not_allowed", 2), "The JSON schema does not allow “six” here.");
  assert.equal(said("token_not_allowed", 3), "The JSON schema does not allow “seven” after “six”.");
  assert.equal(said("end_not_allowed", 2), "The JSON schema does not let the answer end here.");
  assert.equal(said("text_banned", 3), "A banned string would end with “seven”.");
  assert.equal(said("text_ended", 2), "Nothing can follow “six”, which ends the answer.");
  assert.equal(said("text_ended", 3), null); // it is the end
  assert.equal(said("invalid_value", 3), null);
  assert.equal(refusalOf(new ServerError("", { code: "token_not_allowed", param: "stop" }), fork, path), null);
  assert.ok(isEnd(refused("text_ended", 3), path) && !isEnd(refused("text_ended", 2), path));
  const edited = { ...fork, edited: true };
  assert.deepEqual(refusalOf(refused("token_not_allowed", 1), edited, words("one two")), { at: 4, refused: "The JSON schema does not allow “two ” here." });
  const cut = { ...fork, tokens: [] }; // nothing of it was typed
  assert.match(refusalOf(refused("text_ended", 1), cut, words("one two")).refused, /would end at “two ”/);
});

test("a search finds words whatever the case and the white space", () => {
  const texts = [["a", "The capital of\n FRANCE  is Paris."], ["b", "Nothing."]];
  const { hits } = findIn("Title", texts, patternOf("france is"));
  assert.deepEqual(hits, [{ node: "a", before: "The capital of ", match: "FRANCE is", after: " Paris." }]);
  assert.equal(findIn("Title", texts, patternOf("zebra")), null);
  assert.deepEqual(findIn("Title", texts, patternOf("title")), { hits: [], more: 0 });
});

test("a search branches where the model was not sure and had a choice", () => {
  const sure = { i: 1, b: "a", p: "content", l: -0.01, a: [1, "a", -0.01, 2, "b", -5] };
  const [forced, alone, unsure] = [{ ...sure, l: -3, f: 1 }, { ...sure, l: -3, a: [1, "a", -3, 2, "b", -1], x: [2] }, { ...sure, l: -1, a: [2, "b", -0.5, 1, "a", -1] }];
  const path = [unsure, sure, forced, alone, unsure];
  assert.equal(uncertainAt(path, 1, 0.8), 4);
  assert.equal(uncertainAt(path.slice(0, 4), 1, 0.8), -1);
  assert.deepEqual(tokensAt(unsure), [{ id: 1, logprob: -1 }, { id: 2, logprob: -0.5 }]);
});

/** What a search keeps, what growing everything would keep, and how many each has grown. */
async function searched(keep, depth, seed) {
  const random = (key) => { // the same for the same key
    let hash = seed;
    for (const sign of key) hash = Math.imul(hash ^ sign.charCodeAt(0), 2654435761) >>> 0;
    return (hash % 9973) / 9973;
  };
  let grown = 0;
  const outcomeOf = ({ key, score }) => {
    grown += 1;
    if (key !== "r" && random(`no${key}`) < 0.2) return null;
    const left = score - random(`run${key}`);
    const ways = [0, 1, 2, 3].map((k) => ({ key: key + k, score: left - random(key + k) * 3 })).sort((one, other) => other.score - one.score);
    return { key, score: left, done: key.length > depth || random(`end${key}`) < 0.15, ways };
  };
  const soon = async (way) => {
    for (let k = Math.floor(random(`wait${way.key}`) * 9); k > 0; k -= 1) await null; // they end in another order
    return outcomeOf(way);
  };
  const all = async (ways, ended) => [...ended, ...ways.map(outcomeOf).filter(Boolean)].sort((one, other) => other.score - one.score).slice(0, keep);
  const run = async (round) => {
    let kept = [];
    grown = 0;
    for (let ways = [{ key: "r", score: 0 }]; ways.length; ways = waysOf(kept, keep)) kept = await round(ways, kept.filter(({ done }) => done));
    return { kept: kept.map(({ key }) => key), grown };
  };
  return [await run((ways, ended) => bestOf(ways, ended, keep, soon)), await run(all)];
}

test("a search keeps what growing everything would keep, and grows less", async () => {
  let less = 0;
  for (const keep of [1, 2, 3, 5]) {
    for (let seed = 0; seed < 12; seed += 1) {
      const [found, wanted] = await searched(keep, 5, seed);
      assert.deepEqual(found.kept, wanted.kept);
      assert.ok(found.grown <= wanted.grown);
      less += wanted.grown - found.grown;
    }
  }
  assert.ok(less > 0);
});
