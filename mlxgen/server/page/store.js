// What the browser keeps: conversations, the settings used last, and how the page looks.
//
// Never the API key. Where there is no room, the probabilities of the oldest conversations go first.

import { DEFAULTS } from "./settings.js";

const CONVERSATION = "mlxgen/conversation/";
const SETTINGS = "mlxgen/settings";
const LOOK = "mlxgen/look";

/** The browser's store; null where the person has forbidden it. */
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

/** All conversations, the newest first. */
export function loadAll() {
  return Object.keys(kept ?? {})
    .filter((name) => name.startsWith(CONVERSATION))
    .map((name) => loadConversation(name.slice(CONVERSATION.length)))
    .filter(Boolean)
    .sort((one, other) => other.changed - one.changed);
}

export function loadConversation(id) {
  const found = read(CONVERSATION + id);
  if (!found?.nodes || !found.chosen) return null;
  found.settings = { ...DEFAULTS, ...found.settings };
  for (const node of Object.values(found.nodes)) {
    // The page was closed while this answer was on its way.
    if (node.role === "assistant") node.finish ??= "stopped";
  }
  return found;
}

/** Keep a conversation; false where there is no room for it even without others' probabilities. */
export function saveConversation(conversation) {
  if (write(CONVERSATION + conversation.id, conversation)) return true;
  for (const old of loadAll().reverse()) {
    if (old.id === conversation.id || !thin(old)) continue;
    write(CONVERSATION + old.id, old);
    if (write(CONVERSATION + conversation.id, conversation)) return true;
  }
  return false;
}

/** Drop the alternatives of all tokens; whether there were any. */
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

export const loadSettings = () => ({ ...DEFAULTS, ...read(SETTINGS) });
export const saveSettings = (settings) => write(SETTINGS, settings);

export const loadLook = () => ({ theme: "system", tokens: false, ...read(LOOK) });
export const saveLook = (look) => write(LOOK, look);
