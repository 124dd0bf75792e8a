// A conversation as Markdown, as it is shown: headings say who speaks, thoughts are folded away, and
// calls of tools and their results are code. Nothing here touches the page.

import { fenced } from "./attached.js";
import { shownIn } from "./conversation.js";

/** The shown messages of a conversation as a Markdown text. */
export function transcriptOf(conversation) {
  const title = (conversation.title || "Conversation").replace(/\s+/g, " ").trim();
  return `${[`# ${title}`, ...shownIn(conversation).flatMap(partsOf)].join("\n\n")}\n`;
}

function partsOf(node) {
  if (node.role === "user") return userParts(node);
  if (node.role === "tool") return ["## Tool", ...node.results.map(({ name, content }) => code(`Result of ${name}`, content))];
  return answerParts(node);
}

function userParts({ text, files = [], images = [] }) {
  return ["## User", ...files.map(fenced), ...images.map(({ name }) => `*Image: ${name}*`), text.trim()].filter(Boolean);
}

function answerParts({ reasoning, content, calls, problem }) {
  return [
    "## Assistant",
    reasoning.trim() && `<details>\n<summary>Thoughts</summary>\n\n${reasoning.trim()}\n\n</details>`,
    content.trim(),
    ...calls.map(({ name, arguments: given }) => code(`Calls ${name}`, given, "json")),
    problem && `*${problem}*`,
  ].filter(Boolean);
}

/** A line, and below it a block of code that nothing in the text can end. */
function code(line, text, language = "") {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${line}:\n\n${fence}${language}\n${text}\n${fence}`;
}
