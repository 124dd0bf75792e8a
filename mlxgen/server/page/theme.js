// The choice of light or dark colours, or of what the system has.

import { el } from "./dom.js";
import { icon } from "./icons.js";
import { THEMES } from "./preferences.js";

const NAMES = { system: "System", light: "Light", dark: "Dark" };

/** Radio buttons in the fieldset `place`; `change(theme)` gets the one that was chosen. */
export function showThemes(place, chosen, change) {
  const apply = (theme) => (document.documentElement.dataset.theme = theme);
  const choices = THEMES.map((theme) => el("label", { title: `Colors: ${NAMES[theme].toLowerCase()}` },
    el("input", {
      type: "radio", name: "theme", value: theme, checked: theme === chosen, class: "unseen",
      change: () => {
        apply(theme);
        change(theme);
      },
    }), icon(theme), el("span", { class: "unseen" }, NAMES[theme])));
  place.append(...choices);
  apply(chosen);
}
