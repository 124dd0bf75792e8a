// Conversations as files: everything that the page keeps of them, as JSON and back, and what is shown as Markdown.
//
// `imported(exported(conversations))` equals `conversations`. Nothing here touches the page or the store.

import { fence, fenced, shownIn } from "./conversation.js";
import { conversationOf } from "./stored.js";

const FORMAT = "mlxgen conversations";
const VERSION = 1;

/** Why a file cannot be imported: `message` is a sentence. */
export class ImportError extends Error {}

/** The text of a file with these conversations. */
export const exported = (conversations) => JSON.stringify({ format: FORMAT, version: VERSION, conversations });

/** The conversations of a file: all of them, or it throws `ImportError`. */
export function imported(text, name) {
  const found = parsed(text, name);
  if (found?.format !== FORMAT || !Array.isArray(found.conversations)) {
    throw new ImportError(`“${name}” has no conversations of this page. Import a file that was downloaded here as JSON.`);
  }
  if (found.version !== VERSION) {
    throw new ImportError(`“${name}” has version ${found.version} of the format, and this page reads version ${VERSION}. Use the newest mlxgen.`);
  }
  return found.conversations.map((one, k) => {
    const conversation = conversationOf(flattened(one), one?.id);
    if (conversation) return conversation;
    throw new ImportError(`Nothing was imported: conversation ${k + 1} of ${found.conversations.length} in “${name}” is malformed.`);
  });
}

/** Alternatives were lists of their own at first: [[id, piece, logprob], ...]. */
function flattened(one) {
  for (const { tokens } of Object.values(one?.nodes ?? {}).filter(Boolean)) {
    for (const record of Array.isArray(tokens) ? tokens : []) {
      if (Array.isArray(record?.a?.[0])) record.a = record.a.flat();
    }
  }
  return one;
}

function parsed(text, name) {
  try {
    return JSON.parse(text);
  } catch {
    throw new ImportError(`“${name}” is not JSON. Import a file that was downloaded here as JSON.`);
  }
}

/** A name for the file of a conversation. */
export function fileName(title, kind) {
  const plain = title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60).replace(/-+$/, "");
  return `${plain || "conversation"}.${kind}`;
}

// ---- conversations as Markdown -------------------------------------------------------------------

/** The shown messages of a conversation as a Markdown text. */
export function transcriptOf(conversation) {
  const title = (conversation.title || "Conversation").replace(/\s+/g, " ").trim();
  return `${[`# ${title}`, ...shownIn(conversation).flatMap(partsOf)].join("\n\n")}\n`;
}

function partsOf(node) {
  const { text, files = [], images = [], reasoning, content, calls, problem } = node;
  if (node.role === "user") {
    return ["## User", ...files.map(fenced), ...images.map(({ name }) => `*Image: ${name}*`), text.trim()].filter(Boolean);
  }
  if (node.role === "tool") return ["## Tool", ...node.results.map((one) => `Result of ${one.name}:\n\n${fence(one.content, "")}`)];
  return [
    "## Assistant",
    reasoning.trim() && `<details>\n<summary>Thoughts</summary>\n\n${reasoning.trim()}\n\n</details>`,
    content.trim(),
    ...calls.map(({ name, arguments: given }) => `Calls ${name}:\n\n${fence(given, "json")}`),
    problem && `*${problem}*`,
  ].filter(Boolean);
}
