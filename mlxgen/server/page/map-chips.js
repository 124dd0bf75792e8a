// What can be tried from a node of the map with other settings: chips that are dragged, or chosen.

import { button, el } from "./dom.js";
import { formName, summaryOf } from "./settings.js";

const TEMPERATURES = ["0", "0.7", "1", "1.5"];

/** The chips for a conversation: each has `id`, `label` and `change`, the settings that it brings. */
export function chipsOf(settings, presets) {
  const { form, schema, regex } = settings;
  const chips = TEMPERATURES.map((value) => ({ id: `t${value}`, label: `Temperature ${value}`, change: { temperature: value } }));
  const name = formName(settings);
  if (name) chips.unshift({ id: "form", label: name[0].toUpperCase() + name.slice(1), change: { form, schema, regex } });
  chips.push({ id: "free", label: "Any text", change: { form: "" } });
  const inForce = summaryOf(settings);
  if (inForce) chips.push({ id: "now", label: "Settings in force", title: inForce, change: { ...settings } });
  return [...chips, ...presets.map((preset) => ({ id: `preset ${preset.name}`, label: preset.name, title: preset.hint || undefined, change: preset.settings }))];
}

/** A row of chips; pressing one tries it from the selected node, `use(chip)`. */
export function chipRow(chips, use) {
  return chips.map((chip) => {
    const made = button(chip.label, () => use(chip), {
      class: "map-chip", draggable: "true", title: chip.title ?? "Drag onto a node, or press to try it from the selected one",
    });
    made.addEventListener("dragstart", (event) => {
      event.dataTransfer.setData("text/plain", chip.id);
      event.dataTransfer.effectAllowed = "copy";
    });
    return el("li", {}, made);
  });
}
