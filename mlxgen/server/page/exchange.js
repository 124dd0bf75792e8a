// Conversations as a file, and back: everything that the page keeps of them, as JSON.
//
// `imported(exported(conversations))` equals `conversations`. Nothing here touches the page or the store.

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
