import assert from "node:assert/strict";
import test from "node:test";
import { ago, contextText, engineOf, fullDate, inBytes, statsOf, takeTimings, usedBy, waitingOf, warningOf } from "../../mlxgen/server/page/figures.js";
import { BUILT_IN, isInForce, problemOf, withPreset } from "../../mlxgen/server/page/kept.js";
import { bodyOf, DEFAULTS, FieldError, fieldOfParam, problemsOf, summaryOf } from "../../mlxgen/server/page/settings.js";

const ALWAYS = {
  stream: true, stream_options: { include_usage: true }, return_token_ids: true, return_progress: true, timings_per_token: true,
  logprobs: true, top_logprobs: 0,
};
const given = (more) => ({ ...DEFAULTS, ...more });

test("empty settings send nothing and others what they say", () => {
  assert.deepEqual(bodyOf({}), ALWAYS);
  const body = bodyOf({
    temperature: "0.5", stop: "\\n\\n\n###\n", form: "object", thinking: "off", tools: '{"name": "f"}', alternatives: "3", schema: "{",
  });
  assert.deepEqual(body, {
    ...ALWAYS, temperature: 0.5, stop: ["\n\n", "###"], response_format: { type: "json_object" },
    chat_template_kwargs: { enable_thinking: false }, tools: [{ type: "function", function: { name: "f" } }], top_logprobs: 3,
  });
});

test("what cannot be right is said of its field before anything is sent", () => {
  const cases = [
    ["temperature", "-3", "Temperature: enter 0 or more, not -3."], ["top_p", "1.5", "Top p: enter a number from 0 to 1, not 1.5."],
    ["top_k", "2.5", "Top k: enter a whole number, not 2.5."], ["max_tokens", "0", "Maximum tokens: enter 1 or more, not 0."],
    ["seed", "x", "Seed: “x” is not a number."], ["tools", '{"parameters": {}}', "Functions that the model may call: each needs a name"],
    ["tools", "{", "Functions that the model may call: invalid JSON"],
  ];
  for (const [field, value, sentence] of cases) {
    const settings = given({ [field]: value });
    assert.ok(problemsOf(settings)[field].startsWith(sentence), problemsOf(settings)[field]);
    assert.throws(() => bodyOf(settings), (error) => error instanceof FieldError && error.field === field);
  }
  for (const schema of ["{", "[1]", "3", "null"]) {
    assert.ok(problemsOf(given({ form: "schema", schema })).schema, schema);
    assert.deepEqual(problemsOf(given({ schema })), {}); // it is not used
  }
  assert.deepEqual(problemsOf(given({ form: "schema" })), {}); // it has only just appeared
  assert.throws(() => bodyOf(given({ form: "schema" })), FieldError);
  assert.deepEqual(problemsOf(given({ temperature: "0.7", seed: "-5", form: "schema", schema: "{}" })), {});
});

test("a summary has all that differs from the defaults, and what the server ignored", () => {
  assert.equal(summaryOf(given({ schema: "{}", model: "other" })), "");
  const settings = given({ system: "x", form: "schema", top_p: "0.9", stop: "a\n\nb", tools: "[]", thinking: "off", banned_strings: "c", alternatives: "3" });
  assert.equal(summaryOf(settings), "In force: system prompt, thinking off, JSON schema, top p 0.9, 2 stop strings, 1 banned string, tools, alternatives to request 3.");
  assert.equal(summaryOf(given({ thinking: "on" }), "chat_template_kwargs, foo"), "In force: thinking on. The server ignored: thinking, foo.");
  assert.equal(fieldOfParam("json_schema.properties", DEFAULTS), "schema");
});

test("a preset changes what it names, and one of the same name takes the place of another", () => {
  const own = given({ temperature: "0.5", top_p: "0.9", system: "Be brief." });
  const [precise] = BUILT_IN;
  const settings = { ...own, ...precise.settings };
  assert.deepEqual(settings, { ...own, temperature: "0", top_p: "" });
  assert.ok(isInForce(precise, settings) && !isInForce(precise, own));
  const [mine] = withPreset([], " Mine ", own);
  assert.equal(mine.name, "Mine");
  assert.deepEqual({ ...given({ model: "a" }), ...mine.settings }, { ...own, model: "a" });
  assert.deepEqual(withPreset([mine], "Mine", settings).map((preset) => preset.settings.temperature), ["0"]);
  assert.equal(problemOf([mine], "Mine"), "");
  assert.match(problemOf([mine], "Mine", "Ours"), /already/);
  assert.match(problemOf([mine], "Precise"), /built in/);
  assert.notEqual(problemOf([mine], "  "), "");
});

test("the age of a conversation takes a few letters", () => {
  const noon = 1_794_830_400_000; // of a Monday, November 16, 2026, in UTC
  const [minute, hour, day] = [60_000, 3_600_000, 86_400_000];
  const pasts = [-day, 0, 59_000, minute, 59 * minute, hour, 23 * hour, 2 * day, 14 * day, 700 * day];
  assert.deepEqual(pasts.map((past) => ago(noon - past, noon)), ["now", "now", "now", "1 min", "59 min", "1 h", "23 h", "Sat", "Nov 2", "Dec 2024"]);
  assert.match(fullDate(noon), /November 16, 2026/);
});

test("the figures of an answer are the server's", () => {
  const stats = { tokens: 36, read: 1200, queue: null };
  takeTimings(stats, { cache_n: 800, prompt_n: 400, prompt_ms: 1200, queued_ms: 300, predicted_ms: 100, predicted_per_second: 350 });
  assert.equal(statsOf({ stats, finish: "length" }),
    "36 tokens · 350 tokens/s · first token after 1.5 s · 800 of 1,200 prompt tokens from the cache · cut off at the token limit");
  const waits = [
    [null, "Waiting for the first token …"], [{ queue: 3, prompt: 9, read: 0 }, "Waiting for a place: 3 before it"],
    [{ queue: 0, prompt: 9, read: 0 }, "Waiting for a place: next in line"],
    [{ queue: null, prompt: 8000, read: 1200, cached: 800 }, "Reading the prompt: 1,200 of 8,000, 800 from the cache"],
    [{ prompt: 9, read: 9, cached: 0 }, "Waiting for the first token …"],
  ];
  for (const [found, said] of waits) assert.equal(waitingOf(found), said);
});

test("the context is told in words", () => {
  const cases = [
    [{ used: 1200, cached: 800, adds: 0, context: 8000 }, "1,200 / 8,000 tokens · 800 cached · 6,800 left", ""],
    [{ used: 700, cached: 0, adds: 250, context: 1000 }, "700 / 1,000 tokens · about 250 more to send · 50 left", "The context is nearly full: 50 tokens are left for the answer."],
    [{ used: 900, cached: 0, adds: 150, context: 1000 }, "900 / 1,000 tokens · about 150 more to send · 0 left", "This message takes about 150 tokens, and 100 are left."],
    [{ used: 1, cached: 0, adds: 0, context: null }, "1 token", ""],
  ];
  for (const [known, text, warning] of cases) assert.deepEqual([contextText(known), warningOf(known)], [text, warning]);
  assert.deepEqual(usedBy([{ text: "a" }, { stats: { prompt: 10, tokens: 5, cached: 3 } }]), { used: 15, cached: 3 });
  assert.equal(usedBy([{ stats: { prompt: 10, tokens: 5 } }, { text: "a" }]), null); // nobody has counted that
  assert.equal(usedBy([]), null);
});

test("figures for Prometheus are read", () => {
  const engine = engineOf(`# HELP mlxgen_x y
mlxgen_device_info{name="M5 \\"Max\\""} 1.0
mlxgen_weights_bytes 2.5e+09
mlxgen_batch_size 2.0
mlxgen_drafted_tokens_total{drafter="text"} 10.0
mlxgen_drafted_tokens_total{drafter="head"} 0.0
mlxgen_accepted_draft_tokens_total{drafter="text"} 7.0
`);
  assert.deepEqual([engine.device, engine.generating, engine.bytes.weights], ['M5 "Max"', 2, 2.5e9]);
  assert.deepEqual(engine.drafts, [{ drafter: "text", drafted: 10, accepted: 7 }]);
  assert.deepEqual([0, 999, 1500, 12_345_678, 2.5e9, 4e11].map(inBytes), ["0 B", "999 B", "1.5 kB", "12.3 MB", "2.5 GB", "400 GB"]);
});
