// The map: the conversation's branches as a picture, and what can be done with a node of it.
//
// Owns the panel and its controls, what is selected, folded, marked and found. The picture is
// map-canvas.js, the tree map-tree.js. What is done goes through the session.

import { button, byId, el, setText } from "./dom.js";
import { icon } from "./icons.js";
import { MapCanvas } from "./map-canvas.js";
import { ChipRow, chipsOf } from "./map-chips.js";
import { mapLegend } from "./map-legend.js";
import { endOf, inLogs } from "./map-node.js";
import { MapSearch } from "./map-search.js";
import { isFound, placeOf, rename, treeOf } from "./map-tree.js";
import { presets } from "./presets.js";
import { prune, putBack } from "./pruning.js";
import { percent, visible } from "./records.js";

const WAYS = [2, 3, 4, 6, 8];
const PATIENCE = 4; // times as long as the last drawing took, the next one waits

export class MapPanel {
  #element = byId("map");
  #opener = byId("show-map");
  #session;
  #acts;
  #canvas;
  #folded = new Set();
  #marked = []; // ids of nodes, two at most
  #pruned = []; // what can be put back, the last one last
  #messages = 0; // of the user, when it was drawn last
  #cost = 0;
  #drawnAt = 0;
  #later = 0;
  #chips = [];
  #row = new ChipRow();
  #parts = {};
  #search;

  /** `acts` has go(node, at), compare(one, other) and isNarrow(). */
  constructor(session, acts) {
    this.#session = session;
    this.#acts = acts;
    this.#canvas = new MapCanvas({
      choose: (node) => this.#go(node),
      selected: () => this.#showPlace(),
      fold: (node) => this.#fold(node),
      takes: (node) => node.kind !== "start",
      drop: (node, id) => this.#try(node, this.#chips.find((chip) => chip.id === id)),
      undo: () => this.#undo(),
      prune: (node) => this.#prune(node),
      name: () => this.#askName(),
    });
    this.#search = new MapSearch(session, {
      close: () => this.#closeForms(),
      say: (sentence) => this.#say(sentence),
      place: () => this.#placeFor(this.#canvas.node()),
      settings: () => this.#settingsOf(this.#canvas.node()),
      show: (answer) => this.#showAnswer(answer),
      prune: (answers) => this.#take(answers),
    });
    this.#make();
    this.#opener.addEventListener("click", () => (this.isOpen ? this.close() : this.open()));
    this.#element.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented) return;
      event.stopPropagation();
      this.close();
    });
  }

  get isOpen() {
    return !this.#element.hidden;
  }

  open({ focus = true } = {}) {
    this.#element.hidden = false;
    document.body.classList.add("map-open");
    this.#opener.setAttribute("aria-expanded", "true");
    this.#draw();
    this.#canvas.fit();
    if (focus) this.#canvas.focus();
  }

  close() {
    this.#element.hidden = true;
    document.body.classList.remove("map-open");
    this.#opener.setAttribute("aria-expanded", "false");
    this.#opener.focus();
  }

  /** Begin anew with another conversation. */
  forget() {
    this.#folded.clear();
    this.#marked = [];
    this.#pruned = [];
    this.#canvas.selected = null;
    this.#search.forget();
    this.#say("");
  }

  /** Draw what has changed; often while answers grow, but never so often that the page stalls. */
  update() {
    if (!this.isOpen || this.#later) return;
    const wait = this.#drawnAt + this.#cost * PATIENCE - performance.now();
    if (wait <= 0) this.#draw();
    else {
      this.#later = setTimeout(() => {
        this.#later = 0;
        this.#draw();
      }, wait);
    }
  }

  /** Select the place of an answer, and sample from there. */
  sampleFrom(answer, at) {
    if (!this.isOpen) this.open({ focus: false });
    this.#sample({ node: answer, at }, answer.settings);
  }

  // ---- its parts -------------------------------------------------------------------------------

  #make() {
    const parts = this.#parts;
    parts.find = el("input", { type: "search", placeholder: "Find", "aria-label": "Find a name or text in the map", input: () => this.#find() });
    parts.find.addEventListener("keydown", (event) => event.key === "Enter" && this.#nextFound());
    parts.status = el("p", { role: "status", class: "small" });
    parts.said = el("span");
    parts.undo = button("Undo", () => this.#undo(), { hidden: true });
    parts.status.append(parts.said);
    parts.what = el("p", { class: "map-what small" });
    parts.acts = el("div", { class: "map-acts", role: "group", "aria-label": "The selected node" });
    parts.name = this.#nameForm();
    this.#makeActs();
    this.#element.append(
      el("div", { class: "map-top" },
        el("h2", { class: "unseen" }, "Map"), ...this.#row.elements, parts.find,
        el("span", { class: "map-zoom", role: "group", "aria-label": "Zoom" },
          button("−", () => this.#canvas.zoom(0.8), { class: "icon", "aria-label": "Zoom out", title: "Zoom out" }),
          button("+", () => this.#canvas.zoom(1.25), { class: "icon", "aria-label": "Zoom in", title: "Zoom in" }),
          button("Fit", () => this.#canvas.fit(), { title: "Fit, and follow what grows" }),
          button("All", () => this.#canvas.overview(), { title: "Show the whole map" })),
        button([icon("close"), el("span", { class: "unseen" }, "Close the map")], () => this.close(), { class: "icon", title: "Close the map" })),
      el("div", { class: "map-canvas" }, this.#canvas.element, mapLegend(), this.#search.result),
      el("div", { class: "map-bottom" },
        el("div", { class: "map-said" }, parts.what, parts.status, parts.undo),
        parts.acts, parts.name, this.#search.form),
    );
  }

  #makeActs() {
    const parts = this.#parts;
    parts.read = button("Read it", () => this.#go(this.#canvas.node(), { read: true }), { class: "narrow-only" });
    parts.ways = el("select", { "aria-label": "How many ways" }, WAYS.map((count) => el("option", { value: count, selected: count === 4 }, count)));
    parts.heat = el("input", { type: "number", min: 0.1, max: 5, step: 0.1, inputmode: "decimal", "aria-label": "Temperature of the ways" });
    parts.sample = button("Sample", () => this.#sampleSelected(), { class: "main" });
    parts.search = button("Search …", () => this.#openForm(this.#search), { title: "Keep the most likely of several ways from here" });
    parts.mark = button("Mark", () => this.#mark(), { title: "Mark two nodes to compare them" });
    parts.compare = button("Compare", () => this.#compare());
    parts.rename = button("Name", () => this.#askName());
    parts.fold = button("Fold", () => this.#fold(this.#canvas.node()));
    parts.prune = button("Prune", () => this.#prune(this.#canvas.node()));
    parts.stop = button("Stop", () => this.#session.stop(), { class: "main" });
    const group = (...inside) => el("span", { class: "map-group" }, inside);
    parts.acts.append(parts.stop,
      group(parts.sample, parts.ways, el("span", { class: "small quiet" }, "ways at temperature"), parts.heat),
      parts.read, parts.search, parts.mark, parts.compare, parts.rename, parts.fold, parts.prune);
  }

  #nameForm() {
    const box = el("input", { "aria-label": "Name of the node", maxlength: 80, autocomplete: "off" });
    const form = el("form", {
      class: "map-name", hidden: true,
      submit: async (event) => {
        event.preventDefault();
        const node = this.#canvas.node();
        await this.#session.change(() => rename(node, box.value.trim()), { halts: false });
        this.#draw();
        this.#closeForms();
      },
      keydown: (event) => {
        if (event.key !== "Escape") return;
        event.preventDefault();
        event.stopPropagation();
        this.#closeForms();
      },
    }, box, el("button", { type: "submit", class: "main" }, "Save"), button("Cancel", () => this.#closeForms()));
    this.#parts.nameBox = box;
    return form;
  }

  // ---- showing ---------------------------------------------------------------------------------

  #draw() {
    const began = performance.now();
    const { current } = this.#session;
    const messages = Object.values(current.nodes).filter(({ role }) => role === "user").length;
    if (messages > this.#messages) this.#canvas.selected = null; // what was said last is selected
    this.#messages = messages;
    const tree = treeOf(current, { isGrowing: (node) => this.#session.isRunning(node), folded: this.#folded });
    this.#canvas.show(tree, this.#session.runOf(current) !== null);
    const known = new Set(this.#canvas.nodes.map(({ id }) => id));
    this.#marked = this.#marked.filter((id) => known.has(id));
    this.#showMarks();
    this.#showChips(current.settings);
    this.#search.update();
    this.#showPlace();
    if (this.#parts.find.value) this.#find();
    this.#drawnAt = performance.now();
    this.#cost = this.#drawnAt - began;
  }

  #showChips(settings) {
    this.#chips = chipsOf(settings, presets());
    this.#row.show(this.#chips, (chip) => this.#try(this.#canvas.node(), chip));
  }

  #showMarks() {
    this.#canvas.mark("marked", new Set(this.#marked));
  }

  #showPlace() {
    const node = this.#canvas.node();
    const parts = this.#parts;
    const running = this.#session.runOf(this.#session.current) !== null;
    parts.stop.hidden = !running;
    setText(parts.what, node ? whatOf(node) : "");
    const real = Boolean(node) && node.kind !== "start";
    for (const name of ["sample", "search", "rename", "prune", "mark"]) parts[name].disabled = !real;
    parts.mark.disabled = !real || !node.answers;
    parts.fold.disabled = !node || (!node.children.length && !node.hidden);
    setText(parts.fold, node?.hidden ? "Unfold" : "Fold");
    setText(parts.mark, node && this.#marked.includes(node.id) ? "Unmark" : "Mark");
    parts.compare.disabled = this.#marked.length < 2;
    if (real && document.activeElement !== parts.heat) {
      const { temperature } = this.#settingsOf(node);
      parts.heat.value = Number(temperature) > 0 ? temperature : "1";
    }
  }

  #say(sentence, { undo = false } = {}) {
    setText(this.#parts.said, sentence);
    this.#parts.undo.hidden = !undo;
  }

  // ---- doing -----------------------------------------------------------------------------------

  #showAnswer(answer) {
    this.#session.show(answer);
    this.#draw();
    this.#canvas.select(answer.id);
  }

  /** The answer that stands for a node: the shown one, if it leads through it. */
  #answerOf({ answers }) {
    return answers?.find((answer) => this.#session.current.chosen[answer.parent] === answer.id) ?? answers?.[0];
  }

  #settingsOf(node) {
    return this.#answerOf(node)?.settings ?? this.#session.current.settings;
  }

  /** Show a node in the conversation; on a phone the map stays until that is asked for. */
  #go(node, { read = false } = {}) {
    if (!node || node.kind === "start") return;
    const away = !this.#acts.isNarrow() || read;
    if (away && this.#acts.isNarrow()) this.close();
    const place = node.kind === "message" ? node.node : this.#answerOf(node);
    this.#acts.go(place, node.kind === "message" ? null : node.at, { focus: away });
  }

  #fold(node) {
    if (!node) return;
    if (!this.#folded.delete(node.id) && node.children.length) this.#folded.add(node.id);
    this.#draw();
    this.#canvas.focus(node.id);
  }

  #sampleSelected() {
    const node = this.#canvas.node();
    this.#sample(this.#placeFor(node), { ...this.#settingsOf(node), temperature: this.#parts.heat.value || "1" });
  }

  /** Where other ways from a node begin. */
  #placeFor(node) {
    return placeOf({ ...node, answers: node.answers && [this.#answerOf(node)] });
  }

  async #sample(place, settings, count = Number(this.#parts.ways.value)) {
    const heated = { ...settings };
    if (!(Number(settings.temperature) > 0)) heated.temperature = "1"; // others would be the same
    if (settings.seed) heated.seed = String(Math.floor(Math.random() * 2 ** 31));
    await this.#attempt(async () => {
      const nodes = await this.#session.sample(place, count, heated);
      this.#say(`Sampling ${count} ways at temperature ${heated.temperature}.`);
      this.#draw();
      this.#canvas.focus(nodes[0].id);
    });
  }

  async #try(node, chip) {
    if (!chip || !node || node.kind === "start") return;
    await this.#attempt(async () => {
      const [made] = await this.#session.sample(this.#placeFor(node), 1, { ...this.#settingsOf(node), ...chip.change });
      this.#say(`Trying from here with: ${chip.label}.`);
      this.#draw();
      this.#canvas.focus(made.id);
    });
  }

  async #attempt(work) {
    this.#say("Asking the server …");
    try {
      await work();
    } catch (error) {
      this.#say(refusal(error));
    }
  }

  #mark() {
    const { id } = this.#canvas.node();
    if (this.#marked.includes(id)) this.#marked = this.#marked.filter((each) => each !== id);
    else this.#marked = [...this.#marked.slice(-1), id];
    this.#showMarks();
    this.#showPlace();
    this.#say(this.#marked.length === 2 ? "Two nodes are marked: press Compare." : `${this.#marked.length ? "One node is" : "No node is"} marked.`);
  }

  #compare() {
    const [one, other] = this.#marked.map((id) => this.#answerOf(this.#canvas.node(id)));
    if (one === other) this.#say("Both marked nodes are on the same branch. Mark one on another branch.");
    else this.#acts.compare(one, other);
  }

  #askName() {
    const node = this.#canvas.node();
    if (!node || node.kind === "start") return;
    this.#parts.nameBox.value = node.name;
    this.#openForm({ open: () => {
      this.#parts.name.hidden = false;
      this.#parts.nameBox.focus();
    } });
  }

  #openForm(form) {
    this.#parts.acts.hidden = true;
    form.open();
  }

  #closeForms() {
    this.#parts.name.hidden = this.#search.form.hidden = true;
    this.#parts.acts.hidden = false;
    this.#canvas.focus();
  }

  async #prune(node) {
    if (!node || node.kind === "start") return;
    const parent = this.#canvas.parent(node.id);
    await this.#take(node.answers ?? [node.node]);
    this.#canvas.focus(parent?.id);
  }

  async #take(gone) {
    this.#pruned.push(await this.#session.change((current) => prune(current, gone)));
    this.#draw();
    this.#say(gone.length === 1 ? "One branch was pruned." : `${gone.length} branches were pruned.`, { undo: true });
  }

  async #undo() {
    const pruned = this.#pruned.pop();
    if (!pruned) {
      this.#say("There is nothing to undo.");
      return;
    }
    await this.#session.change((current) => putBack(current, pruned));
    this.#draw();
    this.#canvas.focus();
    this.#say("Put back.", { undo: this.#pruned.length > 0 });
  }

  #find() {
    const text = this.#parts.find.value;
    const found = this.#canvas.nodes.filter((node) => isFound(node, text)).map(({ id }) => id);
    this.#canvas.mark("found", new Set(found));
    this.#say(text.trim() ? `${found.length || "Nothing"} found.` : "");
    return found;
  }

  #nextFound() {
    const found = this.#find();
    if (!found.length) return;
    this.#canvas.select(found[(found.indexOf(this.#canvas.selected) + 1) % found.length]);
  }
}

/** A node in a line. */
function whatOf(node) {
  if (node.kind === "start") return "Where the conversation begins.";
  if (node.kind === "message") return `${node.role === "user" ? "You" : "Tools"}: ${node.text}`;
  const way = node.edge ? `“${visible(node.edge.record.b)}” ${percent(node.edge.record.l)}` : "";
  if (node.kind === "fork") return [way, `${node.ways} ways part after token ${node.at}`].filter(Boolean).join(" · ");
  const each = node.known ? `${inLogs(node.logprob / node.known, 3)} a token` : "";
  return [way, endOf(node), node.known ? `log p ${inLogs(node.logprob, 3)}` : "", each, node.settings, node.text].filter(Boolean).join(" · ");
}

/** Why the server does not go on from a place, as a sentence for the map. */
function refusal(error) {
  if (error.param === "prefix_tokens" && /do not allow/.test(error.said ?? "")) {
    return "The answer format does not allow the text before this node. Try it from an earlier one.";
  }
  return error.message;
}
