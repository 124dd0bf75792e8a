// The form for the settings of a conversation.

import { button, byId, el } from "./dom.js";
import { icon } from "./icons.js";
import { PresetsView } from "./presets-view.js";
import { bodyOf, changesOf, defaultText, DEFAULTS, FieldError, FIELDS, GROUPS, reset } from "./settings.js";

export class SettingsForm {
  #element = byId("settings");
  #opener = byId("show-settings");
  #inputs = new Map();
  #resets = new Map();
  #changes = el("ul", { class: "chips", "aria-label": "Changed settings" });
  #presets = new PresetsView((preset) => {
    Object.assign(this.#settings, preset.settings);
    this.edit(this.#settings);
    this.#changed();
  });
  #settings = null;
  #changed;

  /** `changed()` is called after every change of the settings that are edited. */
  constructor(changed) {
    this.#changed = changed;
    this.#element.append(
      el("div", { class: "row" }, el("h2", { id: "settings-title", tabindex: "-1" }, "Settings"), button("Close", () => this.close())),
      el("p", { class: "quiet small" }, "For the next answers of this conversation. Empty fields use the server's defaults, shown in gray."),
      this.#changes,
      this.#presets.element,
      ...GROUPS.map((group) =>
        el("fieldset", {}, el("legend", {}, group.title), group.fields.map((field) => this.#makeField(field)))),
      button("Reset to the defaults", () => this.#reset()),
    );
    this.#opener.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    this.#element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.close();
    });
  }

  get isOpen() {
    return !this.#element.hidden;
  }

  /** Edit these settings, in place. */
  edit(settings) {
    this.#settings = settings;
    for (const { name } of FIELDS) {
      this.#inputs.get(name).value = settings[name];
      this.#complain(name, "");
    }
    this.#show();
  }

  /** Show the defaults of empty fields: the server's `params`, by field name. */
  showDefaults(params) {
    for (const field of FIELDS) {
      const said = defaultText(field, params);
      if (said) this.#inputs.get(field.name).placeholder = `${said} (default)`;
    }
  }

  open() {
    this.#element.hidden = false;
    this.#opener.setAttribute("aria-expanded", "true");
    byId("settings-title").focus();
  }

  close() {
    this.#element.hidden = true;
    this.#opener.setAttribute("aria-expanded", "false");
    this.#opener.focus();
  }

  /** Go to a setting and say what is wrong with it. */
  pointAt(name, message) {
    this.open();
    this.#complain(name, message);
    this.#inputs.get(name)?.focus();
  }

  #makeField(field) {
    const id = `set-${field.name}`;
    const input = this.#makeInput(field, id);
    input.addEventListener("input", () => this.#take(field.name, input.value));
    input.addEventListener("change", () => this.#check());
    this.#inputs.set(field.name, input);
    const back = button(icon("retry"), () => {
      input.value = DEFAULTS[field.name];
      this.#take(field.name, input.value);
      input.focus();
    }, { class: "icon back", hidden: true, title: "Back to the default", "aria-label": "Back to the default", "aria-describedby": `${id}-label` });
    this.#resets.set(field.name, back);
    return el("div", { class: "field", "data-field": field.name },
      el("div", { class: "row" }, el("label", { id: `${id}-label`, for: id }, field.label), back), input,
      field.hint ? el("p", { id: `${id}-hint`, class: "quiet small" }, field.hint) : null,
      el("p", { id: `${id}-problem`, class: "problem small", role: "alert" }));
  }

  #makeInput({ kind, options, min, max, step, hint }, id) {
    const props = { id, "aria-describedby": `${hint ? `${id}-hint ` : ""}${id}-problem` };
    if (kind === "choice") return el("select", props, options.map(([value, label]) => el("option", { value }, label)));
    if (kind === "number") {
      return el("input", { ...props, type: "number", min, max, step, inputmode: step === 1 ? "numeric" : "decimal" });
    }
    return el("textarea", { ...props, rows: kind === "code" ? 5 : 3, spellcheck: kind === "text" ? null : "false", class: kind === "code" ? "mono" : null });
  }

  #take(name, value) {
    this.#settings[name] = value;
    this.#complain(name, "");
    this.#show();
    this.#changed();
  }

  #reset() {
    reset(this.#settings);
    this.edit(this.#settings);
    this.#changed();
  }

  /** Show what differs from the defaults, and hide fields that another choice makes useless. */
  #show() {
    for (const { name, when } of FIELDS) {
      if (when) this.#inputs.get(name).parentElement.hidden = this.#settings[when[0]] !== when[1];
      this.#resets.get(name).hidden = this.#settings[name] === DEFAULTS[name];
    }
    const changes = changesOf(this.#settings);
    this.#changes.hidden = !changes.length;
    this.#changes.replaceChildren(el("li", { class: "quiet small" }, "Changed:"), ...changes.map(({ name, label, value }) =>
      el("li", {}, button(value ? `${label}: ${value}` : label, () => this.#inputs.get(name).focus(), { class: "chip" }))));
    this.#presets.update(this.#settings);
  }

  #check() {
    try {
      bodyOf(this.#settings);
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      // An empty field has only just appeared; it is reported when something is sent.
      if (this.#settings[error.field]) this.#complain(error.field, error.message);
    }
  }

  #complain(name, message) {
    const input = this.#inputs.get(name);
    if (!input) return;
    byId(`${input.id}-problem`).textContent = message;
    input.setAttribute("aria-invalid", String(Boolean(message)));
  }
}
