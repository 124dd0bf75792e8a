// What the browser keeps beside the conversations: how the page looks and the settings that a person
// chose to begin with, for all visits, and messages that are not sent, for this tab.

import { DEFAULTS } from "./settings.js";
import { settingsOf } from "./stored.js";

const LOOK = "mlxgen/look";
const START = "mlxgen/start";
const DRAFT = "mlxgen/draft/";

export const THEMES = ["system", "light", "dark"];
export const NOTHING = { text: "", files: [], images: [] };

/** A store of the browser; null if it is disabled. @param {"localStorage" | "sessionStorage"} name */
function storeOf(name) {
  try {
    return window[name];
  } catch {
    return null;
  }
}

function read(store, name) {
  try {
    return JSON.parse(storeOf(store).getItem(name));
  } catch {
    return null; // the browser keeps nothing, or another program left something else there
  }
}

/** Keep a value; returns whether there was room. */
function write(store, name, value) {
  try {
    storeOf(store).setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export function loadLook() {
  const { theme, tokens } = read("localStorage", LOOK) ?? {};
  return { theme: THEMES.includes(theme) ? theme : THEMES[0], tokens: tokens === true };
}

export const saveLook = (look) => write("localStorage", LOOK, look);

/** The settings of a new conversation: the defaults, unless a person has chosen others for that. */
export const loadStart = () => settingsOf(read("localStorage", START));
export const saveStart = (settings) => write("localStorage", START, { ...settings, model: DEFAULTS.model });

export const loadDraft = (id) => ({ ...NOTHING, ...read("sessionStorage", DRAFT + id) });

/** Keep a draft; without its attachments if there is no room for them. */
export function saveDraft(id, { text, files, images }) {
  if (!text && !files.length && !images.length) storeOf("sessionStorage")?.removeItem(DRAFT + id);
  else [{ text, files, images }, { text, files }, { text }].some((draft) => write("sessionStorage", DRAFT + id, draft));
}
