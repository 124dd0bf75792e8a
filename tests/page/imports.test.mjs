import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import test from "node:test";

const PAGE = new URL("../../mlxgen/server/page/", import.meta.url);
const ours = readdirSync(PAGE).filter((name) => name.endsWith(".js"));
const imports = Object.fromEntries(ours.map((name) =>
  [name, [...readFileSync(new URL(name, PAGE), "utf8").matchAll(/from "\.\/([\w-]+\.js)"/g)].map(([, other]) => other)]));

test("imports point one way, and every file is part of the page", () => {
  const reached = new Set();
  const walk = (name, way) => {
    assert.ok(!way.includes(name), [...way, name].join(" imports "));
    reached.add(name);
    for (const other of imports[name]) walk(other, [...way, name]);
  };
  walk("app.js", []);
  assert.deepEqual(ours.filter((name) => !reached.has(name)), []);
});
