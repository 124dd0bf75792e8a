// Where the nodes of the map are: leaves one below the other, and what leads to them on their left.
//
// Owns the sizes of things. Nothing here touches the page.

import cluster from "./vendor/d3-hierarchy/cluster.js";
import hierarchy from "./vendor/d3-hierarchy/hierarchy/index.js";

export const RUN = 170; // the length of an edge, with room for its label
const WIDTHS = { start: 60, message: 164, fork: 16, end: 208 };
const HEIGHTS = { start: 30, message: 44, fork: 16, end: 44 };
const BESIDE = 27; // above and below a leaf, for its box and the label of its edge
const LINE = 15; // what settings below a box take more

/** The nodes of a tree with their places: `x` and `y` are the middle of the left edge of each. Nodes
 *  come in the order of reading: each before those that it leads to. */
export function layOut(tree) {
  const root = hierarchy(tree);
  /** @type {any} */ (cluster().nodeSize([1, 1])).separation((_, before) => roomBelow(before) + BESIDE)(root);
  const places = [];
  root.eachBefore((each) => {
    const { data, parent, depth, x: y } = each;
    const { kind } = data;
    each.left = parent ? parent.left + WIDTHS[parent.data.kind] + (data.edge || parent.data.kind === "fork" ? RUN : RUN / 3) : 0;
    places.push({
      node: data, parent: parent?.data ?? null, depth, x: each.left, y, width: WIDTHS[kind], height: HEIGHTS[kind],
      place: parent ? parent.children.indexOf(each) + 1 : 1, siblings: parent ? parent.children.length : 1,
    });
  });
  return places;
}

const roomBelow = (leaf) => BESIDE + (alone(leaf).some(({ data }) => data.settings) ? LINE : 0);

/** A leaf, and those before it that are in the same row. */
function alone(leaf) {
  const row = [leaf];
  while (row.at(-1).parent?.children.length === 1) row.push(row.at(-1).parent);
  return row;
}

/** The rectangle around all of them. */
export function boundsOf(places) {
  const xs = places.flatMap(({ x, width }) => [x, x + width]);
  const ys = places.flatMap(({ y, height, node }) =>
    [y - height / 2, y + height / 2 + (node.settings ? LINE : 0)]);
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  return { left, top, width: Math.max(...xs) - left, height: Math.max(...ys) - top };
}

/** Cut a text to a width in pixels; characters of East Asia and emoji are twice as wide. */
export function cut(text, width, size = 12) {
  const most = width / (size * 0.53);
  let wide = 0;
  let end = 0;
  for (const sign of text) {
    wide += sign.codePointAt(0) > 0x1100 ? 1.9 : 1;
    if (wide > most) return `${text.slice(0, Math.max(0, end - 1)).trimEnd()}…`;
    end += sign.length;
  }
  return text;
}
