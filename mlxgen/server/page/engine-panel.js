// The panel that says what the engine is doing; it asks the server only while it is open.

import { getText } from "./api.js";
import { byId, el } from "./dom.js";
import { engineOf, inBytes } from "./engine.js";
import { grouped } from "./figures.js";
import { stopEscape } from "./model-picker.js";
import { DRAFTERS } from "./records.js";

const EVERY = 1000; // milliseconds

/** The parts of memory that are shown in the bar, in this order. */
const PARTS = [["weights", "Weights"], ["kv", "KV caches of answers"], ["prefixes", "Prefix cache"]];

const share = (part, whole) => `${whole ? Math.round((100 * part) / whole) : 0}\u00a0%`;

export class EnginePanel {
  #panel = byId("engine");
  #body = el("div", {});
  #timer = 0;
  #last = null; // {tokens, at} of the time before

  constructor() {
    this.#panel.append(el("h2", { id: "engine-title" }, "Engine"), this.#body);
    this.#panel.addEventListener("toggle", ({ newState }) => {
      clearTimeout(this.#timer);
      this.#last = null;
      if (newState === "open") this.#ask();
    });
    for (const element of [this.#panel, byId("show-engine")]) element.addEventListener("keydown", stopEscape);
  }

  get #isOpen() {
    return this.#panel.matches(":popover-open");
  }

  async #ask() {
    try {
      const engine = engineOf(await getText("/metrics"));
      this.#body.replaceChildren(...this.#shown(engine, performance.now()));
    } catch (error) {
      this.#body.replaceChildren(el("p", { class: "problem" }, error.message));
    }
    if (this.#isOpen) this.#timer = setTimeout(() => this.#ask(), EVERY);
  }

  #shown(engine, at) {
    const before = this.#last;
    this.#last = { tokens: engine.tokens, at };
    const speed = before ? Math.max(0, engine.tokens - before.tokens) / ((at - before.at) / 1000) : 0;
    const { generating, reading, waiting, prompt, cached, drafts } = engine;
    const counts = [[generating, "generating"], [reading, "reading"], [waiting, "waiting"]];
    const sequences = counts.filter(([count]) => count).map(([count, what]) => `${count} ${what}`);
    const rows = [
      ["Device", engine.device],
      ["Answers", sequences.length ? sequences.join(", ") : "None"],
      ["Speed now", generating ? `${grouped(speed)} tokens/s in all` : "Idle"],
      ["Prompts", prompt ? `${grouped(prompt)} tokens, ${share(cached, prompt)} cached` : "None yet"],
      ...drafts.map(({ drafter, drafted, accepted }) => [
        `Drafts ${DRAFTERS[drafter] ?? drafter}`, `${grouped(accepted)} of ${grouped(drafted)} stood (${share(accepted, drafted)})`,
      ]),
    ];
    return [el("dl", {}, rows.flatMap(([name, said]) => [el("dt", {}, name), el("dd", {}, said)])), ...memory(engine.bytes)];
  }
}

function memory(bytes) {
  const used = PARTS.map(([part]) => bytes[part]);
  const said = PARTS.map(([part, name]) => `${name} ${inBytes(bytes[part])}`).join(", ");
  const bar = el("div", { class: "memory", role: "img", "aria-label": `Memory: ${said}, of ${inBytes(bytes.device)}` },
    PARTS.map(([part]) => el("span", { "data-part": part })));
  [...bar.children].forEach((child, k) => child.style.setProperty("--part", bytes.device ? used[k] / bytes.device : 0));
  const rows = [
    ...PARTS.map(([part, name]) => [el("span", { class: "swatch", "data-part": part }), name, inBytes(bytes[part])]),
    [null, "Limit of both caches", inBytes(bytes.caches)],
    [null, "Held by MLX now", inBytes(bytes.held)],
    [null, "Limit of the device", inBytes(bytes.device)],
    ...(bytes.diskLimit ? [[null, "Prefixes on disk", `${inBytes(bytes.disk)} of ${inBytes(bytes.diskLimit)}`]] : []),
  ];
  return [el("h3", {}, "Memory"), bar,
    el("dl", {}, rows.flatMap(([swatch, name, size]) => [el("dt", {}, swatch, name), el("dd", {}, size)]))];
}
