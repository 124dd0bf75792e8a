// How sure the model was along a whole answer: a strip of columns, one for each token or for a few,
// that scrolls to a place when somebody clicks, drags or presses arrow keys on it.
//
// Owns the strip's elements. Which tokens can be seen, and how to get to one, is told from outside.

import { el } from "./dom.js";
import { levelOf, percent } from "./records.js";

const SVG = "http://www.w3.org/2000/svg";
const MOST = 480; // columns
const LEAST = 8; // percent of the height that a column has at least

/** The columns of a strip: {logprob, height} of the least likely token of each; null if none is known. */
export function columnsOf(logprobs, most = MOST) {
  const width = Math.max(1, Math.ceil(logprobs.length / most));
  const columns = [];
  for (let start = 0; start < logprobs.length; start += width) {
    let least = null;
    for (let k = start; k < start + width && k < logprobs.length; k += 1) {
      const logprob = logprobs[k];
      if (logprob !== null && (least === null || logprob < least)) least = logprob;
    }
    columns.push(least === null ? null : { logprob: least, height: heightOf(least) });
  }
  return columns;
}

/** From 0 (99.99 % or more) to 1 (0.1 % or less): the logarithm of the odds, evenly. */
export function heightOf(logprob) {
  const p = Math.min(0.9999, Math.max(0.001, Math.exp(logprob)));
  const [most, least] = [Math.log(0.9999 / 0.0001), Math.log(0.001 / 0.999)];
  return Math.max(0, (most - Math.log(p / (1 - p))) / (most - least));
}

export class TokenStrip {
  #logprobs = [];
  #at = 0;
  #goTo;
  #enter;
  #bars = document.createElementNS(SVG, "svg");
  #paths = new Map();
  #window = el("span", { class: "window" });

  /** `goTo(index)` scrolls to a token, and `enter(index)` moves the focus to it. */
  constructor({ goTo, enter }) {
    this.#goTo = goTo;
    this.#enter = enter;
    this.#bars.setAttribute("preserveAspectRatio", "none");
    this.#bars.setAttribute("aria-hidden", "true");
    this.element = el("div", {
      class: "strip", role: "slider", tabindex: "0", "aria-label": "How sure the model was; place in the answer",
      title: "How sure the model was, from the first token to the last: click or drag to go to a place",
      "aria-valuemin": "1", "aria-valuenow": "1",
      keydown: (event) => this.#key(event), pointerdown: (event) => this.#press(event),
      pointermove: (event) => this.#drag(event),
    }, this.#bars, this.#window);
  }

  /** Show these log-probabilities; those that were shown before are a beginning of them, or all are new. */
  update(logprobs) {
    this.#logprobs = logprobs;
    const columns = columnsOf(logprobs);
    const lines = new Map();
    columns.forEach((column, k) => {
      if (!column) return;
      const level = levelOf(column.logprob);
      const height = LEAST + (100 - LEAST) * column.height;
      lines.set(level, `${lines.get(level) ?? ""}M${k} 100v-${height.toFixed(1)}h1v${height.toFixed(1)}z`);
    });
    this.#bars.setAttribute("viewBox", `0 0 ${Math.max(columns.length, 1)} 100`);
    for (const level of new Set([...this.#paths.keys(), ...lines.keys()])) this.#path(level).setAttribute("d", lines.get(level) ?? "");
    this.element.style.setProperty("--columns", columns.length);
    this.element.setAttribute("aria-valuemax", Math.max(1, logprobs.length));
    this.#say(Math.min(this.#at, Math.max(0, logprobs.length - 1)));
  }

  /** Mark the tokens that can be seen, from `first` to `last`. */
  showWindow(first, last) {
    const count = this.#logprobs.length;
    // All of it, or nothing, needs no mark.
    this.#window.hidden = first === null || !count || (first === 0 && last === count - 1);
    if (first === null || !count) return;
    this.#window.style.setProperty("inset-inline-start", `${(first / count) * 100}%`);
    this.#window.style.setProperty("inline-size", `${((last + 1 - first) / count) * 100}%`);
    if (this.#at < first || this.#at > last) this.#say(first);
  }

  #path(level) {
    if (!this.#paths.has(level)) {
      const path = document.createElementNS(SVG, "path");
      path.classList.add(`bar-${level}`);
      this.#bars.append(path);
      this.#paths.set(level, path);
    }
    return this.#paths.get(level);
  }

  #say(index) {
    this.#at = index;
    this.element.setAttribute("aria-valuenow", index + 1);
    this.element.setAttribute("aria-valuetext", `token ${index + 1} of ${this.#logprobs.length}, ${percent(this.#logprobs[index] ?? null)}`);
  }

  #move(index) {
    this.#say(Math.max(0, Math.min(index, this.#logprobs.length - 1)));
    this.#goTo(this.#at);
  }

  #press(event) {
    if (event.button !== 0) return;
    this.element.setPointerCapture(event.pointerId);
    this.#drag(event);
  }

  #drag(event) {
    if (!this.element.hasPointerCapture(event.pointerId)) return;
    const { left, width } = this.element.getBoundingClientRect();
    const share = (event.clientX - left) / width;
    const forward = getComputedStyle(this.element).direction === "ltr";
    this.#move(Math.floor((forward ? share : 1 - share) * this.#logprobs.length));
  }

  #key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const step = Math.max(1, Math.round(this.#logprobs.length / 100));
    const steps = { ArrowRight: step, ArrowUp: step, ArrowLeft: -step, ArrowDown: -step, PageUp: 10 * step, PageDown: -10 * step, Home: -Infinity, End: Infinity };
    if (event.key === "Enter") this.#enter(this.#at);
    else if (event.key in steps) this.#move(this.#at + steps[event.key]);
    else return;
    event.preventDefault();
  }
}
