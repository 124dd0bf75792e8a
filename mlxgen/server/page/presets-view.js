// The presets in the settings: chosen with one click, and one's own kept, renamed and deleted.

import { button, el } from "./dom.js";
import { icon } from "./icons.js";
import { isInForce, presets, problemOf, removePreset, renamePreset, savePreset } from "./presets.js";

export class PresetsView {
  #chips = el("div", { class: "chips" });
  #name = el("input", { id: "preset-name", autocomplete: "off", "aria-describedby": "preset-problem", maxlength: 60 });
  #problem = el("p", { id: "preset-problem", class: "problem small", role: "alert" });
  #own = el("ul", { class: "own" });
  #settings = null;
  #apply;

  /** `apply(preset)` takes its settings. */
  constructor(apply) {
    this.#apply = apply;
    const submit = (event) => {
      event.preventDefault();
      if (this.#refuses(this.#name, "")) return;
      savePreset(this.#name.value, this.#settings);
      this.#name.value = "";
      this.#show();
    };
    this.element = el("fieldset", { class: "presets" }, el("legend", {}, "Presets"), this.#chips,
      el("details", {}, el("summary", { class: "small" }, "Your own presets"),
        el("form", { submit, class: "row" }, el("label", { for: "preset-name", class: "unseen" }, "Name of the preset"), this.#name,
          el("button", { type: "submit" }, "Save")),
        el("p", { class: "quiet small" }, "Saves all of these settings under a name. The same name replaces it."),
        this.#problem, this.#own));
    this.#name.placeholder = "Name";
  }

  /** Show which presets are in force in these settings. */
  update(settings) {
    this.#settings = settings;
    const all = presets();
    if (this.#chips.children.length !== all.length) {
      this.#show();
      return;
    }
    all.forEach((preset, k) => this.#chips.children[k].setAttribute("aria-pressed", String(isInForce(preset, settings))));
  }

  #show() {
    const all = presets();
    this.#chips.replaceChildren(...all.map((preset) =>
      button(preset.name, () => this.#apply(preset), {
        class: "chip", title: preset.hint || null, "aria-pressed": String(isInForce(preset, this.#settings)),
      })));
    this.#own.replaceChildren(...all.filter((preset) => !preset.builtIn).map(({ name }) => this.#row(name)));
  }

  #row(name) {
    const input = el("input", { value: name, autocomplete: "off", "aria-label": `Name of the preset ${name}`, maxlength: 60, "aria-describedby": "preset-problem" });
    const submit = (event) => {
      event.preventDefault();
      if (this.#refuses(input, name)) return;
      renamePreset(name, input.value);
      this.#show();
      this.#name.focus();
    };
    const remove = button(icon("remove"), () => {
      removePreset(name);
      this.#show();
      this.#name.focus();
    }, { class: "icon", "aria-label": `Delete the preset ${name}`, title: "Delete" });
    return el("li", {}, el("form", { submit, class: "row" }, input, el("button", { type: "submit" }, "Rename"), remove));
  }

  #refuses(input, before) {
    const problem = problemOf(input.value, before);
    this.#problem.textContent = problem;
    input.setAttribute("aria-invalid", String(Boolean(problem)));
    if (problem) input.focus();
    return Boolean(problem);
  }
}
