// What is said of the nodes of the map. Nothing here touches the page.

import { percent, spoken, visible } from "./records.js";

/** How an answer ends, in a word or two. */
export function endOf(node) {
  if (node.growing) return "growing";
  if (node.calls.length && node.finish === "tool_calls") return `calls ${node.calls.join(", ")}`;
  return { stop: "ended", length: "at the token limit", stopped: "stopped", error: "failed" }[node.finish] ?? "stopped";
}

/** A log-probability with some decimals; none is −0. */
export function inLogs(value, digits) {
  const said = value.toFixed(digits);
  return Number(said) ? said.replace("-", "−") : said.replace("-", "");
}

/** A sum of log-probabilities, in four digits or a few more. */
export function sum({ logprob, known }) {
  if (!known) return "log p unknown";
  return `log p ${inLogs(logprob, logprob > -100 ? 2 : logprob > -1000 ? 1 : 0)}`;
}

const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

/** Everything about a node in one line, for a screen reader. */
export function labelOf(node) {
  const said = [];
  if (node.edge) {
    const { record, count: tokens } = node.edge;
    said.push(`${spoken(record.b)}, ${percent(record.l)}${tokens > 1 ? `, and ${count(tokens - 1, "more token")}` : ""}`);
  }
  if (node.kind === "start") said.push(node.text);
  if (node.kind === "message") said.push(`${node.role === "user" ? "You" : "Tools"}: ${node.text}`);
  if (node.kind === "fork") said.push(`${node.ways} ways part here`);
  if (node.kind === "end") said.push(`${endOf(node)}: ${node.text || "no text"}`, sum(node), count(node.at, "token"));
  if (node.settings) said.push(`with ${node.settings}`);
  if (node.dropped) said.push("dropped");
  if (node.hidden) said.push(`folded, ${count(node.hidden, "end")} below`);
  if (node.shown) said.push("shown in the conversation");
  return said.join("; ");
}

/** A node in a line, for what is selected. */
export function whatOf(node) {
  if (node.kind === "start") return "Where the conversation begins.";
  if (node.kind === "message") return `${node.role === "user" ? "You" : "Tools"}: ${node.text}`;
  const way = node.edge ? `“${visible(node.edge.record.b)}” ${percent(node.edge.record.l)}` : "";
  if (node.kind === "fork") return [way, `${node.ways} ways part after token ${node.at}`].filter(Boolean).join(" · ");
  const each = node.known ? `${inLogs(node.logprob / node.known, 3)} a token` : "";
  return [way, endOf(node), node.known ? `log p ${inLogs(node.logprob, 3)}` : "", each, node.settings, node.text].filter(Boolean).join(" · ");
}
