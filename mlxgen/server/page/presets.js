// Presets: settings with a name, a few built in and one's own, which the browser keeps.
//
// A preset changes the settings that it names and leaves the others. A built-in one names those of
// one group, so "Precise" ends what "Creative" began; one's own names all but the model.

import { DEFAULTS, FIELDS, GROUPS, MODEL } from "./settings.js";

const KEY = "mlxgen/presets";
const MOST = 60; // characters of a name

const namesOf = (title) => GROUPS.find((group) => group.title === title).fields.map(({ name }) => name);
const emptied = (title) => Object.fromEntries(namesOf(title).map((name) => [name, DEFAULTS[name]]));
const sampling = (more) => ({ ...emptied("Sampling"), ...more });

const BUILT_IN = [
  { name: "Precise", hint: "Always the most likely token", settings: sampling({ temperature: "0" }) },
  { name: "Creative", hint: "Less likely tokens, too", settings: sampling({ temperature: "1", min_p: "0.05" }) },
  { name: "JSON object", hint: "The answer is a JSON object", settings: { ...emptied("Answer format"), form: "object" } },
  { name: "No thinking", hint: "Answers at once", settings: { thinking: "off" } },
].map((preset) => Object.freeze({ ...preset, builtIn: true }));

let own = read();

function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY));
    return Array.isArray(found) ? found.map(checked).filter(Boolean) : [];
  } catch {
    return []; // there is no store, or another program wrote to it
  }
}

/** What is known of a preset from elsewhere, or null. */
function checked(found) {
  const name = typeof found?.name === "string" ? found.name.trim().slice(0, MOST) : "";
  if (!name || typeof found.settings !== "object" || found.settings === null) return null;
  const known = Object.entries(found.settings).filter(
    ([key, value]) => key !== MODEL && Object.hasOwn(DEFAULTS, key) && typeof value === "string",
  );
  return { name, settings: Object.fromEntries(known) };
}

function keep(list) {
  own = list;
  try {
    localStorage.setItem(KEY, JSON.stringify(own));
  } catch {
    // Then they last as long as the page.
  }
}

/** All presets, the built-in ones first: {name, hint, settings, builtIn}. */
export const presets = () => [...BUILT_IN, ...own.map((preset) => ({ ...preset, hint: "", builtIn: false }))];

/** Whether the settings are already what a preset would make of them. */
export const isInForce = (preset, settings) =>
  Object.entries(preset.settings).every(([name, value]) => settings[name] === value);

/** Why a preset cannot have this name, as a sentence; empty if it can. */
export function problemOf(name, before = "") {
  const wanted = name.trim();
  if (!wanted) return "Enter a name for the preset.";
  if (wanted.length > MOST) return `A name has at most ${MOST} characters.`;
  if (BUILT_IN.some((preset) => preset.name === wanted)) return `“${wanted}” is built in; choose another name.`;
  if (before && wanted !== before && own.some((preset) => preset.name === wanted)) return `There is a preset “${wanted}” already.`;
  return "";
}

/** Keep the settings under a name; one of that name is replaced. */
export function savePreset(name, settings) {
  const made = { name: name.trim(), settings: Object.fromEntries(FIELDS.map((field) => [field.name, settings[field.name]])) };
  keep([...own.filter((preset) => preset.name !== made.name), made]);
}

export function renamePreset(name, to) {
  keep(own.map((preset) => (preset.name === name ? { ...preset, name: to.trim() } : preset)));
}

export function removePreset(name) {
  keep(own.filter((preset) => preset.name !== name));
}
