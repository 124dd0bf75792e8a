// What can be tried from a node of the map with other settings: chips that are dragged, or chosen.

import { button, el, setText } from "./dom.js";
import { formName, summaryOf } from "./settings.js";

const TEMPERATURES = ["0", "0.7", "1", "1.5"];

/** The chips for a conversation: each has `id`, `label` and `change`, the settings that it brings; `short` is
 *  what it says after the word `of`. */
export function chipsOf(settings, presets) {
  const { form, schema, regex } = settings;
  const chips = TEMPERATURES.map((value) => ({
    id: `t${value}`, label: `Temperature ${value}`, of: "Temperature", short: value, change: { temperature: value },
  }));
  const name = formName(settings);
  if (name) chips.unshift({ id: "form", label: name[0].toUpperCase() + name.slice(1), change: { form, schema, regex } });
  chips.push({ id: "free", label: "Any text", change: { form: "" } });
  const inForce = summaryOf(settings);
  if (inForce) chips.push({ id: "now", label: "Settings in force", title: inForce, change: { ...settings } });
  return [...chips, ...presets.map((preset) => ({ id: `preset ${preset.name}`, label: preset.name, title: preset.hint || undefined, change: preset.settings }))];
}

/** The chips that one does not see are behind "More"; pressing one tries it from the selected node, `use(chip)`. */
export class ChipRow {
  #list = el("ul", { class: "map-chips", "aria-label": "Settings to try: drag one onto a node" });
  #more = button("More", () => this.#open(!this.#isOpen), { "aria-expanded": "false" });
  #key = "";

  constructor() {
    this.elements = [this.#list, this.#more];
    this.#list.addEventListener("focusin", ({ target }) => this.#isHidden(target) && this.#open(true));
    new ResizeObserver(() => this.#tell()).observe(this.#list);
  }

  show(chips, use) {
    const key = JSON.stringify(chips);
    if (this.#key === key) return;
    this.#key = key;
    const items = chips.flatMap((chip, k) => {
      const item = el("li", {}, chipOf(chip, use));
      return chip.of && chip.of !== chips[k - 1]?.of ? [wordOf(chip.of), item] : [item];
    });
    this.#list.replaceChildren(wordOf("Drag onto a node:", "wide-only"), ...items);
    this.#tell();
  }

  get #isOpen() {
    return this.#list.classList.contains("open");
  }

  #open(open) {
    this.#list.classList.toggle("open", open);
    this.#list.scrollTop = 0;
    setText(this.#more, open ? "Fewer" : "More");
    this.#more.setAttribute("aria-expanded", String(open));
    this.#tell();
  }

  /** Whether an element is below the first row. */
  #isHidden(element) {
    return !this.#isOpen && element.offsetTop > this.#list.offsetTop + this.#list.clientHeight / 2;
  }

  #tell() {
    this.#more.hidden = !this.#isOpen && this.#list.scrollHeight <= this.#list.clientHeight + 1;
  }
}

const wordOf = (text, where = "") => el("li", { class: `small quiet ${where}`.trim() }, text);

function chipOf(chip, use) {
  const made = button(chip.short ?? chip.label, () => use(chip), {
    class: "map-chip", draggable: "true", "aria-label": chip.label,
    title: chip.title ?? "Drag onto a node, or press to try it from the selected one",
  });
  made.addEventListener("dragstart", (event) => {
    event.dataTransfer.setData("text/plain", chip.id);
    event.dataTransfer.effectAllowed = "copy";
  });
  return made;
}
