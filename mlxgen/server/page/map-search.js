// The search from a node of the map: its form, how far it is, and what it found.

import { button, el } from "./dom.js";
import { icon } from "./icons.js";
import { inLogs } from "./map-node.js";
import { Search } from "./search-run.js";

const number = (label, props) => el("input", { type: "number", "aria-label": label, ...props });

export class MapSearch {
  #session;
  #acts;
  #search = null;
  #keep = el("select", { "aria-label": "How many to keep" }, [2, 3, 4, 5].map((count) => el("option", { value: count, selected: count === 3 }, count)));
  #sure = number("Branch where a token is less likely than, in percent", { min: 1, max: 100, step: 1, value: 80 });
  #budget = number("Most tokens to generate", { min: 10, max: 100000, step: 10, value: 1000 });
  #list = el("ol", { class: "map-ranks small" });
  #rows = []; // {node, row} of those in the list

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
    this.result = el("div", { class: "map-result", hidden: true },
      el("div", { class: "map-title small" }, "The most likely",
        button([icon("close"), el("span", { class: "unseen" }, "Close the list")], () => this.#closeList(), { class: "icon", title: "Close the list" })),
      this.#list);
  }

  open() {
    this.form.hidden = false;
    this.#keep.focus();
  }

  forget() {
    this.#search = null;
    this.#closeList();
  }

  #closeList() {
    this.#rows = [];
    this.update();
  }

  /** List what is still in the conversation: a branch that was found may have been pruned, or put back. */
  update() {
    const { nodes } = this.#session.current;
    for (const { node, row } of this.#rows) row.hidden = !nodes[node.id];
    this.result.hidden = this.#rows.every(({ row }) => row.hidden);
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
    this.#rows = kept.map(({ outcome }, k) => {
      const { node, score, tokens, done } = outcome;
      const each = `${inLogs(score / Math.max(1, tokens), 3)} a token`;
      const facts = [`log p ${inLogs(score, 2)} · ${each}`, `${tokens} ${tokens === 1 ? "token" : "tokens"}${done ? "" : " so far"}`];
      const row = el("li", {}, button([el("strong", {}, k + 1), ...facts.map((fact) => el("span", {}, fact))],
        () => this.#acts.show(node), { class: "map-chip", title: node.content.trim() }));
      return { node, row };
    });
    this.#list.replaceChildren(...this.#rows.map(({ row }) => row));
    this.update();
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
