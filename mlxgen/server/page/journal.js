// What localStorage has of conversations, as text by id: a page that is left has no time to write to
// the database, but for this; and an older page kept everything here.
//
// Owns these names and nothing else: what is in the texts is for store.js to judge.

const CONVERSATION = "mlxgen/conversation/"; // whole, from an older page
const UNWRITTEN = "mlxgen/unwritten/"; // what the database lacked when a page was left, by id and page
const ASIDE = "mlxgen/set-aside/"; // what could not be read

/** localStorage; null if it is disabled. */
const kept = (() => {
  try {
    return window.localStorage;
  } catch {
    return null;
  }
})();

function put(name, text) {
  try {
    kept?.setItem(name, text);
  } catch {
    // There is no room; nothing better is left to do.
  }
}

/** What stands under a prefix, as {id, text, remove(), setAside()}. */
function entries(prefix) {
  return Object.keys(kept ?? {}).filter((name) => name.startsWith(prefix)).map((name) => {
    const id = name.slice(prefix.length);
    const text = kept.getItem(name);
    const remove = () => kept.removeItem(name);
    return {
      id, text, remove,
      setAside() {
        remove(); // first, as there may be no room for both
        put(ASIDE + id, text);
      },
    };
  });
}

export const olderConversations = () => entries(CONVERSATION);
export const unwritten = () => entries(UNWRITTEN).map((entry) => ({ ...entry, id: entry.id.split("/")[0] }));
export const putUnwritten = (id, page, value) => put(`${UNWRITTEN}${id}/${page}`, JSON.stringify(value));
export const removeUnwritten = (id, page) => kept?.removeItem(`${UNWRITTEN}${id}/${page}`);
export const removeSetAside = () => entries(ASIDE).forEach(({ remove }) => remove());
