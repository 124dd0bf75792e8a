// What the lines and shapes of the map mean.

import { el } from "./dom.js";
import { widthOf } from "./map-tree.js";
import { svg } from "./svg.js";

const STEPS = [["100 %", 1], ["10 %", 0.1], ["1 %", 0.01], ["0.1 %", 0.001]];

export function mapLegend() {
  const lines = STEPS.map(([label, p]) => el("li", {},
    svg("svg", { viewBox: "0 0 28 12", width: 28, height: 12, "aria-hidden": "true" },
      svg("path", { d: "M0,6 H28", "stroke-width": widthOf(Math.log(p)) })), label));
  return el("div", { class: "map-legend", title: "The odds of the first token of an edge; log p is that of the whole path" },
    el("span", {}, "Odds"), el("ul", {}, lines));
}
