// The model of the conversation in the header: its name, or a choice if the server has several.

import { button, byId, el, setText } from "./dom.js";
import { icon } from "./icons.js";
import { stateOf } from "./models.js";

const shortOf = (name) => name.split("/").at(-1);

export class ModelPicker {
  #place = byId("model");
  #models;
  #choose;
  #list = el("ul", {});
  #menu;
  #opener;
  #name = el("span", { class: "name" });
  #mark = el("span", { class: "mark", "aria-hidden": "true" });
  #gone = byId("gone");
  #shown = "";

  /** `choose(name)` uses a model for the conversation. */
  constructor(models, choose) {
    this.#models = models;
    this.#choose = choose;
    this.#menu = el("div", { id: "models", class: "popover menu", popover: "auto", role: "dialog", "aria-label": "Models" },
      el("h2", {}, "Models"), this.#list,
      el("p", { class: "quiet small" }, "For this conversation. Another model may be unloaded if there is no room beside it."));
    this.#opener = button([this.#mark, this.#name, icon("down")], null, { popovertarget: "models", class: "picker" });
    document.body.append(this.#menu);
    this.#menu.addEventListener("toggle", ({ newState }) => models.watch(this, newState === "open"));
    for (const element of [this.#menu, this.#opener]) element.addEventListener("keydown", stopEscape);
  }

  /** Show the model of a conversation; `name` is empty for the default one. */
  update(name) {
    const { all } = this.#models;
    if (!all.length) return;
    this.#showGone(name, all[0].id);
    const key = JSON.stringify([name, all]);
    if (key === this.#shown) return;
    this.#shown = key;
    const gone = this.#models.isGone(name);
    const model = gone ? { id: name, status: { value: "gone" } } : this.#models.find(name);
    document.title = `${model.id} · mlxgen`;
    this.#place.title = model.id;
    if (all.length === 1 && !gone) {
      setText(this.#place, shortOf(model.id)); // the whole of it where there is room
      return;
    }
    if (!this.#opener.isConnected) this.#place.replaceChildren(this.#opener);
    setText(this.#name, shortOf(model.id));
    const state = gone ? "not on this server" : stateOf(model.status);
    this.#mark.dataset.state = gone || model.status.failed ? "failed" : model.status.value;
    this.#opener.setAttribute("aria-label", `Model: ${model.id}, ${state.toLowerCase()}. Choose another one`);
    this.#showList(model, all);
  }

  /** Say that the conversation's model is gone, and who answers. */
  #showGone(name, other) {
    const gone = this.#models.isGone(name);
    if (this.#gone.hidden === !gone && this.#gone.dataset.model === name) return;
    this.#gone.hidden = !gone;
    this.#gone.dataset.model = name;
    this.#gone.replaceChildren(`The model ${name} is not on this server any more, so ${other} answers. `,
      button(`Use ${other} from now on`, () => this.#choose(other), { class: "link" }));
  }

  #showList(current, all) {
    const focused = this.#list.contains(document.activeElement) ? document.activeElement.dataset.model : null;
    this.#list.replaceChildren(...all.map((model) => this.#entry(model, model.id === current.id)));
    if (focused) [...this.#list.querySelectorAll("button")].find((one) => one.dataset.model === focused)?.focus();
  }

  #entry({ id, status, parent }, current) {
    const loads = status.value === "loading" && status.progress !== undefined;
    const choose = () => {
      this.#menu.hidePopover();
      this.#choose(id);
    };
    return el("li", {},
      button([
        el("span", { class: "mark", "data-state": status.failed ? "failed" : status.value, "aria-hidden": "true" }),
        el("span", { class: "name" }, id, parent ? el("span", { class: "quiet small" }, ` on ${shortOf(parent)}`) : null),
        el("span", { class: "quiet small" }, stateOf(status)),
      ], choose, { class: "entry", "data-model": id, "aria-current": current ? "true" : null }),
      loads ? el("progress", { max: 1, value: status.progress, "aria-label": `How far ${id} is loaded` }) : null,
      status.failed ? el("p", { class: "problem small" }, status.reason) : null);
  }
}

/** Escape closes what is open, and does not stop the answer as well. */
export function stopEscape(event) {
  if (event.key === "Escape" && document.querySelector(":popover-open")) event.stopPropagation();
}
