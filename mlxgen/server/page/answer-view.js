// An answer on the page: its thoughts, text and calls, or its tokens; its figures and its branches.

import { AnswerEditor } from "./answer-editor.js";
import { branchesOf, childrenOf, pathOf, siblingsOf } from "./conversation.js";
import { button, copyButton, el, setText } from "./dom.js";
import { Figures } from "./figures.js";
import { icon, iconButton } from "./icons.js";
import { Markdown } from "./markdown.js";
import { percent, visible } from "./records.js";
import { TokenView } from "./token-view.js";
import { resultsForm } from "./tool-results.js";
import { Walker } from "./walker.js";

export class AnswerView {
  #node;
  #conversation;
  #acts;
  #walker;
  #tokens = null;
  #parts = {};
  #editor = null;

  constructor(node, conversation, acts) {
    this.#node = node;
    this.#conversation = conversation;
    this.#acts = acts;
    this.#walker = new Walker(node, conversation, acts, "answer");
    const parts = this.#parts;
    parts.thought = el("summary");
    parts.reasoning = new Markdown(acts.redraw);
    const unfolded = () => this.#showThoughts();
    parts.folded = el("details", { class: "reasoning", toggle: unfolded }, parts.thought, parts.reasoning.element);
    parts.content = new Markdown(acts.redraw);
    parts.content.element.classList.add("content");
    parts.plain = el("div", {}, parts.folded, parts.content.element);
    parts.calls = el("div", { class: "calls" });
    parts.problem = el("p", { class: "problem", role: "alert" });
    parts.figures = new Figures();
    parts.actions = this.#makeActions();
    parts.tree = el("div", { class: "tree" });
    parts.article = el("article", { "aria-label": "Answer" }, parts.plain, parts.calls, parts.problem, parts.figures.element,
      parts.actions, parts.tree);
    this.element = el("li", { class: "message answer", "data-node": node.id }, parts.article);
  }

  #makeActions() {
    const { retry, goOn, compare } = this.#acts;
    const node = this.#node;
    const parts = this.#parts;
    parts.goOn = iconButton("go", "Continue", () => goOn(node), { "data-act": "go-on" });
    parts.compare = iconButton("compare", "Compare", () => compare(node), { "data-act": "compare" });
    parts.again = iconButton("retry", "Try again", () => retry(node), { "data-act": "retry" });
    parts.edit = iconButton("edit", "Edit", () => this.edit(), { "data-act": "edit" });
    parts.remove = iconButton("remove", "Delete", () => this.#acts.remove(node), { "data-act": "remove", title: "Delete this version and what follows it" });
    parts.copy = copyButton("Copy", () => node.content, { "data-act": "copy", "aria-label": "Copy the answer" }, icon("copy"));
    parts.fix = iconButton("settings", "Show the setting", () => this.#acts.showSetting(node), { "data-act": "fix" });
    return el("div", { class: "actions" }, this.#walker.element, parts.copy, parts.edit, parts.again, parts.goOn, parts.fix, parts.compare, parts.remove);
  }

  update() {
    const node = this.#node;
    const parts = this.#parts;
    const running = this.#acts.isRunning(node);
    if (this.#acts.showsTokens()) this.#updateTokens();
    else this.#updatePlain(running);
    this.#updateCalls(running);
    setText(parts.problem, node.problem ?? "");
    parts.figures.update(node, {
      running, answered: childrenOf(this.#conversation, node).length > 0, load: this.#acts.loadOf(node),
    });
    parts.article.setAttribute("aria-busy", String(running));
    parts.again.hidden = running;
    parts.copy.hidden = !node.content;
    parts.edit.hidden = running || !node.content;
    parts.remove.hidden = running;
    parts.goOn.hidden = running || !["length", "stopped", "error", "stop"].includes(node.finish) || !(node.tokens.length || node.from || node.content)
      || childrenOf(this.#conversation, node).length > 0;
    parts.fix.hidden = running || !this.#acts.settingOf(node);
    parts.compare.hidden = siblingsOf(this.#conversation, node).length < 2;
    this.#walker.update();
    this.#updateTree();
  }

  /** Edit the text in its place; another text makes another version. */
  edit() {
    if (this.#editor) return;
    const { content, settings, calls } = this.#node;
    const parts = this.#parts;
    const close = () => {
      parts.article.classList.remove("editing");
      this.#editor.element.remove();
      this.#editor = null;
      parts.edit.focus();
    };
    const { retype, showVersion } = this.#acts;
    const done = async (text, options) => {
      if (text === content && !options.goOn) return close();
      const { node, ...refusal } = await retype(this.#node, text, options);
      if (!node) return refusal;
      close();
      showVersion(node);
    };
    this.#editor = new AnswerEditor(content, {
      formed: Boolean(settings.form), calls: calls.length > 0,
      at: parts.content.startOf(getSelection().anchorNode), // the paragraph that was clicked last
    }, {
      save: (text) => done(text, { goOn: false }),
      goOn: (text) => done(text, { goOn: true }),
      again: (text) => done(text, { goOn: true, isAnew: true }),
      close,
    });
    parts.article.classList.add("editing");
    parts.article.prepend(this.#editor.element);
    this.#editor.focus();
  }

  /** The view of the tokens, for the focus; null while the plain text is shown. */
  get tokens() {
    return this.#tokens;
  }

  #updateTokens() {
    const parts = this.#parts;
    this.#tokens ??= new TokenView((index, token) => this.#acts.open(this.#node, index, token), { unfolded: parts.folded.open });
    if (parts.plain.isConnected) parts.plain.replaceWith(this.#tokens.element);
    this.#tokens.update(pathOf(this.#conversation, this.#node));
  }

  #updatePlain(running) {
    const parts = this.#parts;
    if (this.#tokens) {
      if (this.#tokens.element.isConnected) this.#tokens.element.replaceWith(parts.plain);
      parts.folded.open = this.#tokens.isUnfolded;
      this.#tokens = null;
    }
    const { reasoning, content, settings } = this.#node;
    parts.folded.hidden = !reasoning;
    setText(parts.thought, running && !content ? "Thinking …" : "Thoughts");
    this.#showThoughts();
    parts.content.element.classList.toggle("formed", Boolean(settings.form));
    if (settings.form) parts.content.showCode(content, settings.form === "regex" ? "" : "json");
    else parts.content.show(content, { growing: running });
  }

  /** Thoughts are often long, and nothing is drawn of them while they are folded away. */
  #showThoughts() {
    if (!this.#parts.folded.open) return;
    const { reasoning, content } = this.#node;
    this.#parts.reasoning.show(reasoning, { growing: this.#acts.isRunning(this.#node) && !content });
  }

  #updateCalls(running) {
    const { calls, finish } = this.#node;
    const open = !running && finish === "tool_calls" && !childrenOf(this.#conversation, this.#node).length;
    const key = `${calls.map((call) => call.arguments.length)}/${open}`;
    if (this.#parts.calls.dataset.key === key) return; // what was typed into the form stays
    this.#parts.calls.dataset.key = key;
    const cards = calls.map(callElement);
    this.#parts.calls.replaceChildren(...(open ? [resultsForm(calls, cards, (results) => this.#acts.giveResults(this.#node, results))] : cards));
  }

  #updateTree() {
    const siblings = siblingsOf(this.#conversation, this.#node);
    const { tree } = this.#parts;
    const key = siblings.map((node) => `${node.id}${node.finish}`).join();
    if (tree.dataset.key === key) return;
    tree.dataset.key = key;
    if (siblings.length < 2) return;
    const open = tree.querySelector("details")?.open ?? false;
    tree.replaceChildren(el("details", { open },
      el("summary", {}, `All ${siblings.length} versions of this answer`),
      this.#branchList(branchesOf(this.#conversation, this.#node))));
  }

  #branchList(branches) {
    return el("ul", {}, branches.map(({ node, branches: below }) =>
      el("li", {},
        button(branchName(this.#conversation, node), () => this.#acts.show(node), {
          class: "branch", "aria-current": node.id === this.#node.id ? "true" : null,
        }),
        below.length ? this.#branchList(below) : null)));
  }
}

/** A branch in a few words: where it begins, and what it says. */
export function branchName(conversation, node) {
  const number = siblingsOf(conversation, node).indexOf(node) + 1;
  const text = node.content.replace(/\s+/g, " ").trim() || "(no text)";
  const short = text.length > 60 ? `…${text.slice(-59)}` : text;
  const [picked] = node.tokens;
  if (node.edited) return `${number}, edited${node.from ? ` from token ${node.from.at + 1} on` : ""}: ${short}`;
  if (!node.from || !picked) return `${number}: ${short}`;
  return `${number}, from token ${node.from.at + 1}, “${visible(picked.b)}” (${percent(picked.l)}): ${short}`;
}

function callElement({ name, arguments: given }) {
  return el("div", { class: "call" }, el("span", { class: "small" }, "Calls ", el("code", {}, name)),
    el("pre", { tabindex: "0", "aria-label": `Arguments of ${name}` }, given));
}
