// Two versions of an answer side by side, token by token.

import { branchName } from "./answer-view.js";
import { childrenOf, commonLength, pathOf, siblingsOf } from "./conversation.js";
import { button, el } from "./dom.js";
import { statsOf } from "./figures.js";
import { Speller } from "./records.js";
import { tokenText } from "./token-element.js";

export class CompareDialog {
  #dialog;
  #show;

  /** `show(node)` makes a version the one that the conversation continues from. */
  constructor(dialog, show) {
    this.#dialog = dialog;
    this.#show = show;
  }

  /** Compare an answer with another one: by default the one that it branches off from. */
  open(conversation, node, given = null) {
    const versions = siblingsOf(conversation, node);
    if (given && !versions.includes(given)) versions.push(...siblingsOf(conversation, given));
    const other = given ?? versions.find((one) => one.id === node.from?.node) ?? versions.find((one) => one !== node);
    const sides = [other, node].map((shown, k) => this.#side(conversation, versions, shown, k, () => fill()));
    const fill = () => {
      const paths = sides.map(({ chosen }) => pathOf(conversation, chosen()));
      const common = commonLength(...paths);
      summary.textContent = common
        ? `The first ${common} ${common === 1 ? "token is" : "tokens are"} the same.`
        : "They differ from the first token.";
      sides.forEach((side, k) => side.fill(paths[k], common));
    };
    const summary = el("p", { role: "status", class: "small" });
    this.#dialog.replaceChildren(
      el("div", { class: "row" }, el("h2", { id: "compare-title" }, "Two versions side by side"),
        button("Close", () => this.#dialog.close())),
      summary,
      el("div", { class: "sides" }, sides.map((side) => side.element)),
    );
    fill();
    this.#dialog.showModal();
  }

  #side(conversation, versions, shown, k, changed) {
    const choice = el("select", { "aria-label": k ? "Right version" : "Left version", change: changed },
      versions.map((node) => el("option", { value: node.id, selected: node === shown }, branchName(conversation, node))));
    const chosen = () => conversation.nodes[choice.value];
    const text = el("div", { class: "token-text", tabindex: "0", role: "group", "aria-label": k ? "Right text" : "Left text" });
    const stats = el("p", { class: "quiet small" });
    const use = button("Continue with this one", () => {
      this.#dialog.close();
      this.#show(chosen());
    });
    return {
      chosen,
      element: el("section", { "aria-label": k ? "Right" : "Left" }, choice, text, stats, use),
      fill(path, common) {
        text.replaceChildren(...parts(path, common));
        if (!path.length) text.textContent = chosen().content;
        stats.textContent = statsOf(chosen(), { answered: childrenOf(conversation, chosen()).length > 0 });
      },
    };
  }
}

/** The tokens that both have, then the rest of this one, so that a screen reader tells them apart. */
function parts(path, common) {
  const speller = new Speller();
  const made = path.map((record) => tokenText(record, speller.spell(record)));
  made[common]?.classList.add("differs");
  return [el("span", { class: "common" }, made.slice(0, common)), ...made.slice(common)];
}
