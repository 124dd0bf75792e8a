// What the browser stores: conversations, the last settings, and how the page looks.
//
// Never the API key. If there is no room, the probabilities of the oldest conversations go first.
// What cannot be read as a conversation is set aside: kept under another name and not read again.

import { conversationOf, settingsOf } from "./stored.js";

const CONVERSATION = "mlxgen/conversation/";
const ASIDE = "mlxgen/set-aside/";
const SETTINGS = "mlxgen/settings";
const LOOK = "mlxgen/look";

/** The browser's store; null if it is disabled. */
const kept = (() => {
  try {
    return window.localStorage;
  } catch {
    return null;
  }
})();

export const keepsNothing = kept === null;

function read(name) {
  try {
    return JSON.parse(kept.getItem(name));
  } catch {
    return null; // what another program, or an older page, left there
  }
}

/** Write, or say that there was no room. */
function write(name, value) {
  if (keepsNothing) return true; // said once, when the page opens
  try {
    kept.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

/** What follows `prefix` in the names that begin with it. */
const behind = (prefix) =>
  Object.keys(kept ?? {}).filter((name) => name.startsWith(prefix)).map((name) => name.slice(prefix.length));

/** All conversations, the newest first. */
export function loadAll() {
  return behind(CONVERSATION).map(loadConversation).filter(Boolean).sort((one, other) => other.changed - one.changed);
}

/** A conversation; null if there is none, or it cannot be read. */
export const loadConversation = (id) => conversationOf(read(CONVERSATION + id), id);

/** Set aside what is not a conversation; returns how many there were. */
export function setAsideMalformed() {
  const malformed = behind(CONVERSATION).filter((id) => !loadConversation(id));
  for (const id of malformed) {
    const text = kept.getItem(CONVERSATION + id);
    kept.removeItem(CONVERSATION + id); // first, as there may be no room for both
    try {
      kept.setItem(ASIDE + id, text);
    } catch {
      // Another tab took the room; it could not be read anyway.
    }
  }
  return malformed.length;
}

/** Delete everything that was set aside. */
export function removeSetAside() {
  for (const id of behind(ASIDE)) kept.removeItem(ASIDE + id);
}

/** Store a conversation; false if there is no room even without the probabilities of others. */
export function saveConversation(conversation) {
  if (write(CONVERSATION + conversation.id, conversation)) return true;
  for (const old of loadAll().reverse()) {
    if (old.id === conversation.id || !thin(old)) continue;
    write(CONVERSATION + old.id, old);
    if (write(CONVERSATION + conversation.id, conversation)) return true;
  }
  return false;
}

/** Drop the alternatives of all tokens; returns whether there were any. */
function thin(conversation) {
  let found = false;
  for (const node of Object.values(conversation.nodes)) {
    for (const record of node.tokens ?? []) {
      found ||= Boolean(record.a);
      delete record.a;
    }
  }
  return found;
}

export function removeConversation(id) {
  kept?.removeItem(CONVERSATION + id);
}

/** Call `changed(id)` when another tab changes a conversation. */
export function onChangedElsewhere(changed) {
  addEventListener("storage", ({ key }) => {
    if (key?.startsWith(CONVERSATION)) changed(key.slice(CONVERSATION.length));
  });
}

export const loadSettings = () => settingsOf(read(SETTINGS));
export const saveSettings = (settings) => write(SETTINGS, settings);

export const THEMES = ["system", "light", "dark"];

export function loadLook() {
  const { theme, tokens } = read(LOOK) ?? {};
  return { theme: THEMES.includes(theme) ? theme : THEMES[0], tokens: tokens === true };
}

export const saveLook = (look) => write(LOOK, look);
