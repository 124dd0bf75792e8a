// The search from a node of the map: its form, how far it is, and what it found.

import { button, el } from "./dom.js";
import { Search } from "./search-run.js";

const number = (label, props) => el("input", { type: "number", "aria-label": label, ...props });

const shown = (value, digits) => value.toFixed(digits).replace("-", "−");

export class MapSearch {
  #session;
  #acts;
  #search = null;
  #keep = el("select", { "aria-label": "How many to keep" }, [2, 3, 4, 5].map((count) => el("option", { value: count, selected: count === 3 }, count)));
  #sure = number("Branch where a token is less likely than, in percent", { min: 1, max: 100, step: 1, value: 80 });
  #budget = number("Most tokens to generate", { min: 10, max: 100000, step: 10, value: 1000 });
  #list = el("ol", { class: "map-ranks small" });

  /** `acts` has close(), say(sentence), place() and settings() of the selected node, show(answer) and
   *  prune(answers). */
  constructor(session, acts) {
    this.#session = session;
    this.#acts = acts;
    const word = (text) => el("span", { class: "small quiet" }, text);
    this.form = el("form", {
      class: "map-name", hidden: true, "aria-label": "Keep the most likely of several",
      submit: (event) => {
        event.preventDefault();
        this.#start();
      },
      keydown: (event) => {
        if (event.key !== "Escape") return;
        event.preventDefault();
        event.stopPropagation();
        acts.close();
      },
    }, word("Keep the"), this.#keep, word("most likely; branch where a token is under"), this.#sure, word("%; at most"), this.#budget,
      word("tokens"), el("button", { type: "submit", class: "main" }, "Search"), button("Cancel", () => acts.close()));
    this.result = el("div", { class: "map-result", hidden: true }, this.#list);
  }

  open() {
    this.form.hidden = false;
    this.#keep.focus();
  }

  forget() {
    this.#search = null;
    this.result.hidden = true;
  }

  async #start() {
    const options = { keep: Number(this.#keep.value), threshold: Number(this.#sure.value) / 100, budget: Number(this.#budget.value) };
    const [place, settings] = [this.#acts.place(), this.#acts.settings()];
    this.#acts.close();
    this.#acts.say("Searching …");
    const search = await this.#session.grow((conversation, changed) => new Search(conversation, place, settings, options, () => {
      changed();
      if (this.#search) this.#tell(options);
    }));
    this.#search = search;
    await search.ended;
    if (this.#search !== search) return; // another conversation is shown
    this.#end(search, options);
  }

  /** How far it is. */
  #tell({ budget }) {
    const { rounds, spent, kept, dropped } = this.#search;
    this.#acts.say(`Searching: round ${rounds + 1}, ${spent} of ${budget} tokens, ${dropped.length} dropped.`);
    this.#rank(kept);
  }

  #rank(kept) {
    this.result.hidden = !kept.length;
    const rows = kept.map(({ outcome }, k) => {
      const { node, score, tokens, done } = outcome;
      const each = `${shown(score / Math.max(1, tokens), 3)} a token`;
      const facts = [`log p ${shown(score, 2)} · ${each}`, `${tokens} ${tokens === 1 ? "token" : "tokens"}${done ? "" : " so far"}`];
      return el("li", {}, button([el("strong", {}, k + 1), ...facts.map((fact) => el("span", {}, fact))],
        () => this.#acts.show(node), { class: "map-chip", title: node.content.trim() }));
    });
    this.#list.replaceChildren(...rows);
  }

  #end(search, { budget }) {
    this.#rank(search.kept);
    if (search.problem) {
      this.#acts.say(`The search failed: ${search.problem.message}`);
      return;
    }
    const { length } = search.dropped;
    const why = search.isOver ? "The search is over" : search.spent >= budget ? `The ${budget} tokens are used` : "The search was stopped";
    const rest = `${length} ${length === 1 ? "branch was" : "branches were"} dropped.`;
    const what = search.kept[0]?.outcome.done ? "answer" : "beginning";
    this.#acts.say(`${why}: the most likely ${what} is shown. ${length ? rest : ""}`.trim());
    if (length) {
      const remove = button(length === 1 ? "Remove the dropped one" : `Remove the ${length} dropped`, () => {
        remove.parentElement.remove();
        this.#acts.prune(search.dropped);
      });
      this.#list.append(el("li", {}, remove));
    }
    if (search.kept.length) this.#acts.show(search.kept[0].outcome.node);
  }
}
