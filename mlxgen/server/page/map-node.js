// One node of the map, and the edge that leads to it, as elements.

import { cut } from "./map-layout.js";
import { percent, spoken, visible } from "./records.js";
import { widthOf } from "./map-tree.js";
import { svg } from "./svg.js";

const PAD = 10;

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
export function labelOf({ node }) {
  const said = [];
  if (node.name) said.push(node.name);
  if (node.edge) {
    const { record, count: tokens } = node.edge;
    said.push(`${spoken(record.b)}, ${percent(record.l)}${tokens > 1 ? `, and ${count(tokens - 1, "more token")}` : ""}`);
  }
  if (node.kind === "message") said.push(`${node.role === "user" ? "You" : "Tools"}: ${node.text}`);
  if (node.kind === "fork") said.push(`${node.ways} ways part here`);
  if (node.kind === "end") said.push(`${endOf(node)}: ${node.text || "no text"}`, sum(node), count(node.at, "token"));
  if (node.settings) said.push(`with ${node.settings}`);
  if (node.dropped) said.push("dropped");
  if (node.hidden) said.push(`folded, ${count(node.hidden, "end")} below`);
  if (node.shown) said.push("shown in the conversation");
  return said.join("; ");
}

/** What is drawn of a node; two that give the same are drawn the same. */
export const signOf = (place) => {
  const { node, width, height } = place;
  return JSON.stringify([
    width, height, node.kind, node.text, node.name, node.shown, node.dropped, node.growing, node.finish, node.settings,
    node.hidden, node.ways, node.logprob, node.at, node.edge?.count, node.edge?.text,
  ]);
};

/** The inside of a node: a shape and, unless it is `plain`, its words. The middle of its left edge is at 0, 0. */
export function insideOf({ node, width, height }, plain = false) {
  const parts = [];
  if (node.kind === "fork") {
    parts.push(svg("circle", { class: "box", cx: width / 2, cy: 0, r: width / 2 }));
  } else {
    parts.push(svg("rect", { class: "box", x: 0, y: -height / 2, width, height, rx: node.kind === "message" ? 14 : 6 }));
    if (!plain) parts.push(...wordsOf(node, width));
  }
  if (plain) return parts;
  if (node.name) parts.push(line(node.kind === "fork" ? 0 : 2, node.kind === "fork" ? 24 : -height / 2 - 6, cut(node.name, 200, 12), "name"));
  if (node.settings) parts.push(line(2, height / 2 + 13, cut(node.settings, width, 11), "tried"));
  if (node.hidden) {
    parts.push(svg("g", { class: "hidden-ends" },
      svg("rect", { x: width + 4, y: -10, width: 34, height: 20, rx: 10 }), line(width + 21, 4, `+${node.hidden}`, "middle")));
  }
  return parts;
}

function wordsOf(node, width) {
  const room = width - 2 * PAD;
  if (node.kind === "start") return [line(PAD, 4, node.text)];
  if (node.kind === "message") {
    const who = node.role === "user" ? "You" : "Tools";
    return [line(PAD, -5, who, "quiet"), line(PAD, 12, cut(node.text, room, 12.4))];
  }
  const text = node.text || (node.growing ? "…" : "(no text)");
  const end = node.finish === "length" && !node.growing ? "cut off" : endOf(node);
  const facts = [end, sum(node), count(node.at, "token")];
  return [line(PAD, -5, tail(text, room)), line(PAD, 12, cut(facts.join(" · "), room, 10.2), "quiet")];
}

/** The end of a text, as much as there is room for. */
function tail(text, width) {
  const whole = text.replace(/^…/, "");
  const back = cut([...whole].reverse().join(""), width, 12.8);
  if (!back.endsWith("…") && whole === text) return text;
  return `…${[...back.replace(/…$/, "")].reverse().join("").trimStart()}`;
}

const line = (x, y, text, kind = "") => svg("text", { x, y, class: kind }, text);

/** The edge from a node to the next, with the token that was taken. */
export function edgeOf(from, to, plain = false) {
  const x = from.x + from.width;
  const bend = Math.min(40, (to.x - x) * 0.8);
  const path = `M${x},${from.y} C${x + bend * 0.6},${from.y} ${x + bend * 0.4},${to.y} ${x + bend},${to.y} L${to.x},${to.y}`;
  const { edge } = to.node;
  const classes = ["map-edge", to.node.shown ? "shown" : "", to.node.dropped ? "dropped" : ""].filter(Boolean).join(" ");
  return svg("g", { class: classes }, svg("path", { d: path, "stroke-width": edge ? widthOf(edge.record.l) : 1.5 }),
    plain ? [] : wordsOfEdge(from, to, x + bend + 2));
}

function wordsOfEdge(from, { node, x, y }, start) {
  const { edge, growing } = node;
  if (!edge) return from.node.kind === "fork" ? [line(start, y - 7, growing ? "waiting" : "ends here", "quiet")] : [];
  const room = x - start - 8;
  const odds = percent(edge.record.l);
  const taken = svg("tspan", { class: "taken" }, cut(visible(edge.record.b), room - 6.5 * odds.length - 5, 13.6));
  const first = svg("text", { x: start, y: y - 9 }, taken, svg("tspan", { class: "quiet", dx: 5 }, odds));
  const rest = edge.text.replace(/\s+/g, " ").trim() || (edge.text && visible(edge.text));
  return rest ? [first, line(start, y + 17, cut(`… ${rest}`, room, 11), "quiet run")] : [first];
}
