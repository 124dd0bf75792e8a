// How full the context is: what the conversation uses, and what the message being written adds.

import { countTokens, post } from "./api.js";
import { button, el, setText } from "./dom.js";
import { grouped } from "./figures.js";
import { bodyOf } from "./settings.js";

const NEARLY = 0.9; // of the context, from which on the page says what can be done
const PAUSE = 400; // milliseconds without a key after which a text is counted

/** How many tokens a message adds, the system prompt and tools before a first one included. */
export async function added({ settings, nodes }, text) {
  const { model, tools, chat_template_kwargs } = bodyOf(settings);
  if (Object.keys(nodes).length) return countTokens(text, model);
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  const messages = [...system, { role: "user", content: text }];
  return (await post("/tokenize", { model, messages, tools, chat_template_kwargs })).count;
}

/** What an answer and all before it take: {used, cached}; the last of `nodes` that knows is asked. */
export function usedBy(nodes) {
  const { stats } = nodes.findLast((node) => node.stats?.prompt) ?? {};
  return stats ? { used: stats.prompt + (stats.tokens ?? 0), cached: stats.cached ?? 0 } : { used: 0, cached: 0 };
}

/** The meter in words. `context` is null if nobody knows it, `adds` 0 if nothing is written. */
export function contextText({ used, cached, adds, context }) {
  const parts = [context ? `${grouped(used)} / ${grouped(context)} tokens` : `${grouped(used)} ${used === 1 ? "token" : "tokens"}`];
  if (cached) parts.push(`${grouped(cached)} cached`);
  if (adds) parts.push(`about ${grouped(adds)} more to send`);
  if (context) parts.push(`${grouped(Math.max(0, context - used - adds))} left`);
  return parts.join(" · ");
}

/** What to say if there is little room, or none; empty otherwise. */
export function warningOf({ used, adds, context }) {
  if (!context || used + adds < NEARLY * context) return "";
  const left = context - used;
  if (adds >= left) return `This message takes about ${grouped(adds)} tokens, and ${grouped(Math.max(0, left))} are left.`;
  return `The context is nearly full: ${grouped(left - adds)} tokens are left for the answer.`;
}

export class ContextMeter {
  #element;
  #bar = el("div", { class: "gauge", role: "meter", "aria-label": "Context", "aria-valuemin": 0 },
    el("span", { "data-part": "used" }), el("span", { "data-part": "adds" }));
  #text = el("span", {});
  #warning = el("p", { class: "warning small", role: "status" });
  #said = el("span", {});
  #count;
  #known = { used: 0, cached: 0, adds: 0, context: null };
  #counted = ""; // the text that `adds` belongs to
  #timer = 0;
  #box;

  /** `count(text)` resolves to the tokens that a message adds, or to null if that cannot be told now;
   *  `begin()` starts another conversation. */
  constructor(element, box, { count, begin }) {
    this.#element = element;
    this.#count = count;
    this.#box = box;
    this.#warning.hidden = true;
    this.#warning.append(this.#said, " Edit an earlier message to go on from there, or ",
      button("start a new conversation", begin, { class: "link" }), ".");
    element.append(this.#warning, el("div", { class: "line" }, this.#bar, this.#text));
    box.addEventListener("input", () => this.look());
  }

  /** Show what is known: any of `used`, `cached` and `context`. */
  update(known) {
    Object.assign(this.#known, known);
    this.#show();
    if (this.#box.value !== this.#counted) this.look();
  }

  /** Count what is in the box when nothing was typed for a moment. */
  look() {
    clearTimeout(this.#timer);
    if (!this.#box.value.trim()) this.#take(this.#box.value, 0);
    else if (this.#box.value !== this.#counted) this.#timer = setTimeout(() => this.#ask(this.#box.value), PAUSE);
  }

  async #ask(text) {
    let adds = text.trim() ? null : 0; // it may have been sent meanwhile
    try {
      adds ??= await this.#count(text);
    } catch {
      // It is only an estimate; sending says what is wrong.
    }
    if (adds !== null && this.#box.value === text) this.#take(text, adds);
  }

  #take(text, adds) {
    this.#counted = text;
    this.#known.adds = adds;
    this.#show();
  }

  #show() {
    const { used, adds, context } = this.#known;
    this.#element.hidden = !used && !adds;
    const text = contextText(this.#known);
    setText(this.#text, text);
    this.#bar.hidden = !context;
    if (context) {
      this.#bar.style.setProperty("--used", Math.min(1, used / context));
      this.#bar.style.setProperty("--adds", Math.min(1 - Math.min(1, used / context), adds / context));
      this.#bar.setAttribute("aria-valuemax", context);
      this.#bar.setAttribute("aria-valuenow", Math.min(context, used + adds));
      this.#bar.setAttribute("aria-valuetext", text);
    }
    const warning = warningOf(this.#known);
    this.#bar.classList.toggle("near", Boolean(warning));
    this.#warning.hidden = !warning;
    setText(this.#said, warning);
  }
}
