// The form in which a person answers for the tools that the model called.

import { el } from "./dom.js";

/** `cards` show the calls; `give(results)` gets {id, name, content} for each, in their order. */
export function resultsForm(calls, cards, give) {
  const results = calls.map((call, k) => new Result(call, calls.length > 1 ? k + 1 : null));
  const form = el("form", {
    class: "results",
    submit: (event) => {
      event.preventDefault();
      give(results.map((result) => result.value));
    },
    keydown: (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
    },
  },
  results.flatMap((result, k) => [cards[k], result.element]),
  el("div", { class: "row end" },
    el("button", { type: "submit", class: "main", title: "Ctrl+Enter sends, too" }, calls.length > 1 ? "Send the results" : "Send the result")));
  return form;
}

class Result {
  #call;
  #box;
  #failed = el("input", { type: "checkbox", change: () => this.#check() });
  #said = el("span", { class: "quiet small", role: "status" });

  constructor(call, number) {
    this.#call = call;
    const name = `Result of ${call.name}${number ? `, call ${number}` : ""}`;
    this.#box = el("textarea", {
      rows: 2, class: "mono", spellcheck: "false", "aria-label": name,
      placeholder: "What the tool returned: text or JSON", input: () => this.#check(),
    });
    this.element = el("div", { class: "result" }, this.#box,
      el("div", { class: "row" }, this.#said,
        el("label", { class: "small", title: "The model gets an object with the field error" }, this.#failed, " Answer with an error")));
  }

  get value() {
    const { id, name } = this.#call;
    const text = this.#box.value;
    return { id, name, content: this.#failed.checked ? JSON.stringify({ error: text.trim() || "The tool failed." }) : text };
  }

  /** Say what it is; text that only looks like JSON may be meant, and is sent as it is. */
  #check() {
    this.#box.setAttribute("placeholder", this.#failed.checked ? "What went wrong" : "What the tool returned: text or JSON");
    this.#said.textContent = this.#failed.checked ? "" : kindOf(this.#box.value.trim());
  }
}

function kindOf(text) {
  if (!/^[[{]/.test(text)) return "";
  try {
    JSON.parse(text);
    return "Valid JSON";
  } catch (error) {
    return `Not valid JSON: ${error.message}`;
  }
}
