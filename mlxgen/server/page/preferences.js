// What the browser keeps beside the conversations: the last settings, and how the page looks.

import { settingsOf } from "./stored.js";

const SETTINGS = "mlxgen/settings";
const LOOK = "mlxgen/look";

function read(name) {
  try {
    return JSON.parse(window.localStorage.getItem(name));
  } catch {
    return null; // the browser keeps nothing, or another program left something else there
  }
}

function write(name, value) {
  try {
    window.localStorage.setItem(name, JSON.stringify(value));
  } catch {
    // Without room for them, the next visit begins with the ones before.
  }
}

export const loadSettings = () => settingsOf(read(SETTINGS));
export const saveSettings = (settings) => write(SETTINGS, settings);

export const THEMES = ["system", "light", "dark"];

export function loadLook() {
  const { theme, tokens } = read(LOOK) ?? {};
  return { theme: THEMES.includes(theme) ? theme : THEMES[0], tokens: tokens === true };
}

export const saveLook = (look) => write(LOOK, look);
