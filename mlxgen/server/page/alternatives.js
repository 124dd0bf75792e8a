// The panel with the alternatives of a token: the likely ones, what was rejected, and any other.
//
// Owns the panel's elements, place and focus. Choosing calls `choose(node, index, id)`, and typing
// `type(node, index, text)`; their outcome is reported with `say`, `refuse` or `close`. The panel
// never covers the line of its token. Where it has little room, only the list of the likely ones scrolls.

import { button, el } from "./dom.js";
import { icon } from "./icons.js";
import { DRAFTERS, percent, spoken, visible } from "./records.js";
import { formName } from "./settings.js";
import { marksOf } from "./token-element.js";

const GAP = 8; // pixels between the panel, its token and the edges of the window
const LEAST = 240; // pixels of height that it wants

export class AlternativesPanel {
  #element;
  #choose;
  #type;
  #again;
  #sample;
  #anchor = null;
  #note = null;
  #box = null;
  #waits = false; // for the server's word on an alternative

  /** `again(node, index)` draws the place of a token and all that follows anew; `sample` draws it several times. */
  constructor(element, { choose, type, again, sample }) {
    this.#element = element;
    this.#choose = choose;
    this.#type = type;
    this.#again = again;
    this.#sample = sample;
    element.tabIndex = -1; // a click on its text must not count as leaving it
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("focusout", (event) => {
      if (!element.contains(event.relatedTarget)) this.close({ refocus: false });
    });
    addEventListener("resize", () => this.#place());
    const moved = ({ target }) => {
      if (!element.contains(target)) this.#place();
    };
    document.addEventListener("scroll", moved, { capture: true, passive: true });
  }

  get isOpen() {
    return !this.#element.hidden;
  }

  /** Show the alternatives of the token `index` of `node`; `has(id)` says whether one has a branch. */
  open(anchor, { node, index, record, has }) {
    this.close({ refocus: false });
    this.#anchor = anchor;
    this.#waits = false;
    anchor.setAttribute("aria-expanded", "true");
    this.#note = el("p", { role: "status", class: "small" });
    const rows = rowsOf(record).map((row) => this.#row(row, { node, index, record, has }));
    this.#element.replaceChildren(
      el("h2", { id: "alternatives-title" }, "Instead of ", el("code", {}, visible(record.b))),
      el("p", { class: "small" }, about(record, index, node)),
      ...rejections(record),
      el("ul", { class: "choices" }, rows),
      this.#typing(node, index),
      el("div", { class: "again" },
        this.#action("retry", "Generate again from here", "Keep what is before this token, and draw the rest anew", () => this.#again(node, index)),
        this.#action("map", "Sample ways from here", "Draw this token and the rest several times at once, on the map", () => this.#sample(node, index))),
      button(icon("close"), () => this.close(), { class: "icon close", title: "Close", "aria-label": "Close" }),
    );
    if (!record.a) this.say("The server was not asked for alternatives, or there was no room to keep them.");
    this.#element.hidden = false;
    this.#makeRoom();
    this.#place();
    const first = this.#element.querySelector('li button:enabled:not([aria-disabled="true"])');
    (first ?? this.#box).focus({ preventScroll: true });
  }

  close({ refocus = true } = {}) {
    if (!this.isOpen) return;
    const anchor = this.#anchor;
    this.#anchor = null;
    this.#element.hidden = true;
    anchor.removeAttribute("aria-expanded");
    anchor.closest("#scroll")?.style.removeProperty("padding-bottom");
    if (refocus) anchor.focus();
  }

  say(sentence) {
    this.#waits = false;
    this.#note.textContent = sentence;
    this.#place();
    this.#note.scrollIntoView({ block: "nearest" });
  }

  /** Cross out an alternative, and say why; without `id`, what was typed was refused. */
  refuse(sentence, id = null) {
    this.say(sentence);
    if (id === null) {
      this.#box.setAttribute("aria-invalid", "true");
      this.#box.focus();
      return;
    }
    const row = this.#element.querySelector(`[data-id="${id}"]`);
    row?.classList.add("refused");
    row?.setAttribute("aria-disabled", "true");
  }

  #ask(work) {
    if (this.#waits) return;
    this.say("Asking the server …");
    this.#waits = true;
    work();
  }

  #row({ id, piece, logprob }, { node, index, record, has }) {
    const here = id === record.i;
    const refused = !here && record.x?.includes(id);
    const bar = el("span", { class: "odds", "aria-hidden": "true" });
    bar.style.setProperty("--share", `${Math.exp(logprob ?? -Infinity) * 100}%`);
    const remark = here ? "in this answer" : refused ? "not allowed" : has(id) ? "has a branch" : "";
    const label = [spoken(piece), percent(logprob), refused ? "not allowed here" : remark];
    const choose = button("", () => {
      if (choose.getAttribute("aria-disabled") !== "true") this.#ask(() => this.#choose(node, index, id));
    }, {
      "data-id": id, class: `alternative${refused ? " refused" : ""}`, disabled: here,
      "aria-disabled": refused ? "true" : null, "aria-label": label.filter(Boolean).join(", "),
    });
    choose.append(el("code", {}, visible(piece)), bar, el("span", { class: "share" }, percent(logprob)),
      el("span", { class: "quiet small" }, remark));
    return el("li", {}, choose);
  }

  #action(drawing, name, title, act) {
    return button([icon(drawing), name], () => {
      this.close({ refocus: false });
      act();
    }, { title });
  }

  #typing(node, index) {
    this.#box = el("input", {
      id: "other-token", autocomplete: "off", autocapitalize: "off", spellcheck: "false", "aria-describedby": "other-token-hint",
      input: () => this.#box.removeAttribute("aria-invalid"),
    });
    const submit = (event) => {
      event.preventDefault();
      this.#ask(() => this.#type(node, index, this.#box.value));
    };
    return el("form", { class: "typing", submit },
      el("label", { for: "other-token", class: "small" }, "Any other token or text"),
      this.#box, el("button", { type: "submit" }, "Use it"), this.#note,
      el("p", { id: "other-token-hint", class: "quiet small" }, "A space begins a word, #123 is a token's id, \\n a line break."));
  }

  #key(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.close();
      return;
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const stops = [...this.#element.querySelectorAll("button:enabled, input")];
    const step = event.key === "ArrowDown" ? 1 : -1;
    const next = stops.indexOf(document.activeElement) + step;
    stops.at(next % stops.length)?.focus();
    event.preventDefault();
  }

  /** Scroll the token to where the panel has room next to it. */
  #makeRoom() {
    const scroller = this.#anchor.closest("#scroll");
    if (!scroller) return;
    if (isSheet()) {
      const { top } = this.#element.getBoundingClientRect();
      scroller.style.setProperty("padding-bottom", `${innerHeight - top}px`);
      const over = this.#lines().bottom + GAP - top;
      if (over > 0) scroller.scrollBy({ top: over, behavior: "instant" });
    } else if (Math.max(...this.#rooms()) < LEAST) {
      this.#anchor.scrollIntoView({ block: "center" });
    }
  }

  /** Where the lines of the token begin and end, and its left edge. */
  #lines() {
    const boxes = this.#anchor.getClientRects();
    const whole = this.#anchor.closest(".character")?.getBoundingClientRect();
    const [first, last] = [whole ?? boxes[0], whole ?? boxes[boxes.length - 1]];
    return { top: first?.top ?? 0, bottom: last?.bottom ?? 0, left: first?.left ?? 0 };
  }

  /** The room above and below the token. */
  #rooms() {
    const { top, bottom } = this.#lines();
    return [top - 2 * GAP, innerHeight - bottom - 2 * GAP];
  }

  /** Below the token, or above if there is more room; on a phone the style puts it at the bottom. */
  #place() {
    if (!this.isOpen || isSheet()) return;
    const own = this.#element;
    const { top, bottom, left } = this.#lines();
    const [above, below] = this.#rooms();
    own.style.removeProperty("max-height");
    const { offsetWidth: width, offsetHeight: height } = own;
    const goesBelow = height <= below || below >= above;
    const room = Math.max(GAP * 8, goesBelow ? below : above);
    own.style.setProperty("max-height", `${Math.min(room, 0.7 * innerHeight)}px`);
    const shown = Math.min(height, room);
    own.style.setProperty("--left", `${Math.max(GAP, Math.min(left, innerWidth - width - GAP))}px`);
    own.style.setProperty("--top", `${goesBelow ? bottom + GAP : top - GAP - shown}px`);
  }
}

const isSheet = () => matchMedia("(max-width: 46rem)").matches;

/** The alternatives, and the token itself if it is not one of them. */
function rowsOf(record) {
  const rows = (record.a ?? []).map(([id, piece, logprob]) => ({ id, piece, logprob }));
  if (!rows.some((row) => row.id === record.i)) rows.push({ id: record.i, piece: record.b, logprob: record.l });
  return rows;
}

/** What was rejected here, and why. */
function rejections(record) {
  if (!record.j?.length) return [];
  const why = (reason, by) => {
    if (reason === "ban") return `banned: ${visible(by ?? "")}`;
    if (reason === "draft") return `drafted ${DRAFTERS[by] ?? ""}, but the model drew another`;
    if (reason === "length") return "left no room for a valid end";
    return "rejected by a hook";
  };
  return [el("ul", { class: "rejections small", "aria-label": "Rejected here" },
    record.j.map(([, piece, reason, by]) => el("li", {}, el("s", {}, el("code", {}, visible(piece))), ` ${why(reason, by)}`)))];
}

function about(record, index, node) {
  const marks = marksOf(record).map((mark) => {
    if (mark === "forced") return `forced: the ${formName(node.settings) || "format"} left no other token`;
    if (mark.startsWith("drafted")) return `${mark} and accepted by the model`;
    if (mark.startsWith("drawn")) return `${mark} because earlier draws were rejected`;
    return mark;
  });
  const odds = record.l === null ? "of unknown probability" : `${percent(record.l)} likely`;
  return `${[`Token ${index + 1} of the answer, ${odds}`, ...marks].join("; ")}.`;
}
