// What somebody types instead of a token: from the text of the field to tokens.
//
// `#123` is the token with that id, and several may follow each other; anything else is text, which
// the server cuts into tokens. Nothing here touches the page.

import { continuing, post } from "./api.js";

const SIGNS = { n: "\n", t: "\t", r: "\r", "\\": "\\", "#": "#" };

/** What is meant: {ids}, {text}, or null if nothing was typed. */
export function meantBy(typed) {
  if (/^\s*#\d+(?:[\s,]+#\d+)*\s*$/.test(typed)) return { ids: typed.match(/\d+/g).map(Number) };
  const text = typed.replace(/\\([ntr\\#])/g, (_, sign) => SIGNS[sign]);
  return text ? { text } : null;
}

/** The tokens of a model, as [{id, piece}]; throws with a sentence if there are none. */
export async function tokensOf(typed, model) {
  const meant = meantBy(typed);
  if (!meant) throw new Error("Type a token or a text first.");
  if (meant.text) return continuing(meant.text, model);
  return (await post("/detokenize", { model: model || undefined, tokens: meant.ids, with_pieces: true })).tokens;
}
