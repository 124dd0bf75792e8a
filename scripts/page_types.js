// Check the types of the page with tsc: node scripts/page_types.js
// tsc also looks at the libraries that the page imports; what it says of those is left out.

import { spawnSync } from "node:child_process";

const { stdout, stderr } = spawnSync("npx", ["--no-install", "tsc", "--project", "jsconfig.json", "--pretty", "false"], { encoding: "utf-8" });
let ours = true; // lines that go on with an error are indented
const lines = stdout.split("\n").filter((line) => {
  if (!line.startsWith(" ")) ours = Boolean(line) && !line.startsWith("mlxgen/server/page/vendor/");
  return ours;
});
if (stderr) console.error(stderr);
for (const line of lines) console.log(line);
process.exitCode = lines.length || stderr ? 1 : 0;
