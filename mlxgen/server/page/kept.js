// What the browser keeps beside the conversations: how the page looks, presets, and the settings that a person
// chose to begin with, for all visits; messages that are not sent and the API key for this tab.

import { DEFAULTS, FIELDS, GROUPS, MODEL } from "./settings.js";
import { settingsOf } from "./stored.js";

const DRAFT = "draft/";
const MOST = 60; // characters of a name

export const THEMES = ["system", "light", "dark"];
export const NOTHING = { text: "", files: [], images: [] };

/** @param {"localStorage" | "sessionStorage"} store */
function read(store, name) {
  try {
    return JSON.parse(globalThis[store].getItem(`mlxgen/${name}`) ?? "null");
  } catch {
    return null; // the browser keeps nothing, or another program left something else there
  }
}

/** Keep a value, or with null none; returns whether there was room. @param {"localStorage" | "sessionStorage"} store */
function write(store, name, value) {
  try {
    if (value === null) globalThis[store].removeItem(`mlxgen/${name}`);
    else globalThis[store].setItem(`mlxgen/${name}`, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}

export const loadKey = () => String(read("sessionStorage", "key") ?? "");
export const saveKey = (key) => write("sessionStorage", "key", key);

export function loadLook() {
  const { theme, tokens } = read("localStorage", "look") ?? {};
  return { theme: THEMES.includes(theme) ? theme : THEMES[0], tokens: tokens === true };
}

export const saveLook = (look) => write("localStorage", "look", look);

/** The settings of a new conversation: the defaults, unless a person has chosen others for that. */
export const loadStart = () => settingsOf(read("localStorage", "start"));
export const saveStart = (settings) => write("localStorage", "start", { ...settings, model: DEFAULTS.model });

export const loadDraft = (id) => ({ ...NOTHING, ...read("sessionStorage", DRAFT + id) });

/** Keep a draft; without its attachments if there is no room for them. */
export function saveDraft(id, { text, files, images }) {
  if (!text && !files.length && !images.length) write("sessionStorage", DRAFT + id, null);
  else [{ text, files, images }, { text, files }, { text }].some((draft) => write("sessionStorage", DRAFT + id, draft));
}

// ---- presets -----------------------------------------------------------------------------------
//
// A preset changes the settings that it names and leaves the others. A built-in one names those of one group, so
// "Precise" ends what "Creative" began; one's own names all but the model.

const emptied = (title) =>
  Object.fromEntries(GROUPS.filter((group) => group.title === title).flatMap(({ fields }) => fields).map(({ name }) => [name, DEFAULTS[name]]));

/** @typedef {{name: string, hint?: string, settings: Record<string, string>}} Preset */

/** @type {Preset[]} */
export const BUILT_IN = [
  { name: "Precise", hint: "Always the most likely token", settings: { ...emptied("Sampling"), temperature: "0" } },
  { name: "Creative", hint: "Less likely tokens, too", settings: { ...emptied("Sampling"), temperature: "1", min_p: "0.05" } },
  { name: "JSON object", hint: "The answer is a JSON object", settings: { ...emptied("Answer format"), form: "object" } },
  { name: "No thinking", hint: "Answers at once", settings: { thinking: "off" } },
];

/** One's own presets, as far as they are whole. @returns {Preset[]} */
export function loadPresets() {
  const found = read("localStorage", "presets");
  return Array.isArray(found) ? found.flatMap(checked) : [];
}

export const savePresets = (presets) => write("localStorage", "presets", presets);

function checked(found) {
  const name = typeof found?.name === "string" ? found.name.trim().slice(0, MOST) : "";
  if (!name || typeof found.settings !== "object" || found.settings === null) return [];
  const isKnown = ([key, value]) => key !== MODEL && Object.hasOwn(DEFAULTS, key) && typeof value === "string";
  return [{ name, settings: Object.fromEntries(Object.entries(found.settings).filter(isKnown)) }];
}

/** Whether the settings are already what a preset would make of them. */
export const isInForce = (preset, settings) =>
  Object.entries(preset.settings).every(([name, value]) => settings[name] === value);

/** Why a preset cannot have this name, as a sentence; empty if it can. `before` is the name that it has. */
export function problemOf(own, name, before = "") {
  const wanted = name.trim();
  if (!wanted) return "Enter a name for the preset.";
  if (wanted.length > MOST) return `A name has at most ${MOST} characters.`;
  if (BUILT_IN.some((preset) => preset.name === wanted)) return `“${wanted}” is built in; choose another name.`;
  if (before && wanted !== before && own.some((preset) => preset.name === wanted)) return `There is a preset “${wanted}” already.`;
  return "";
}

/** One's own presets with these settings under a name, instead of one of that name. */
export const withPreset = (own, name, settings) => [
  ...own.filter((preset) => preset.name !== name.trim()),
  { name: name.trim(), settings: Object.fromEntries(FIELDS.map((field) => [field.name, settings[field.name]])) },
];
