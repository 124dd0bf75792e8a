// The drawing of the map: its nodes and edges, what of it is seen, and how keys move in it.
//
// Owns the picture, pan and zoom, and which node has the focus. `acts` has choose(node), enter(node),
// fold(node), drop(node, what) and menu keys; what they do is not known here.

import { boundsOf, layOut } from "./map-layout.js";
import { edgeOf, insideOf, labelOf, signOf } from "./map-node.js";
import { svg } from "./svg.js";

const LEAST = 0.06;
const MOST = 2;
const READABLE = 0.85; // no fit shows less than this scale, so that its text can be read
const PLAIN = 0.3; // below this scale, nothing can be read and no text is drawn
const AROUND = 200; // pixels around the picture in which things are drawn already
const EDGE = 24; // pixels beside what is fitted
const ABOVE = 14;
const BELOW = 34; // with room for the legend

export class MapCanvas {
  #acts;
  #edges = svg("g", { "aria-hidden": "true" });
  #nodes = svg("g", { role: "presentation" });
  #moved = svg("g", { role: "presentation" }, this.#edges, this.#nodes);
  #drawn = new Map(); // by id: {element, edge, sign, and what was painted: inside, way}
  #places = [];
  #byId = new Map();
  #view = { x: 0, y: 0, scale: 1 };
  #follows = true; // fit what grows, until a person has moved the picture
  #growing = false;
  #frame = 0;
  #pointers = new Map();
  #dragged = false;
  selected = null; // the id of the node that has the focus, or had it last

  constructor(acts) {
    this.#acts = acts;
    this.element = svg("svg", { role: "tree", "aria-label": "Branches of the conversation", class: "map-picture" }, this.#moved);
    this.#listen();
  }

  /** Draw a tree. While it grows, `growing`, what the conversation shows is kept in sight. */
  show(tree, growing) {
    this.#growing = growing;
    this.#places = layOut(tree);
    this.#byId = new Map(this.#places.map((place) => [place.node.id, place]));
    if (!this.#byId.has(this.selected)) this.selected = this.#fallback();
    for (const [id, { element, edge }] of this.#drawn) {
      if (this.#byId.has(id)) continue;
      element.remove();
      edge?.remove();
      this.#drawn.delete(id);
    }
    let before = null;
    for (const place of this.#places) {
      const { element } = this.#draw(place);
      const next = before ? before.nextSibling : this.#nodes.firstChild;
      if (element !== next) this.#nodes.insertBefore(element, next);
      before = element;
    }
    if (this.#follows) this.fit();
    this.#paint();
  }

  /** The node that has an id, or the selected one. */
  node(id = this.selected) {
    return this.#byId.get(id)?.node ?? null;
  }

  parent(id = this.selected) {
    return this.#byId.get(id)?.parent ?? null;
  }

  get nodes() {
    return this.#places.map(({ node }) => node);
  }

  #fallback() {
    const shown = this.#places.filter(({ node }) => node.shown);
    return (shown.at(-1) ?? this.#places[0])?.node.id ?? null;
  }

  #draw(place) {
    const { node } = place;
    let drawn = this.#drawn.get(node.id);
    if (!drawn) {
      drawn = { element: svg("g", { role: "treeitem", "data-id": node.id }), edge: null, sign: "", inside: "", way: "" };
      this.#drawn.set(node.id, drawn);
    }
    const { element } = drawn;
    const sign = signOf(place);
    if (drawn.sign !== sign) {
      element.setAttribute("class", ["map-node", node.kind, node.shown ? "shown" : "", node.dropped ? "dropped" : "",
        node.growing ? "growing" : ""].filter(Boolean).join(" "));
      element.setAttribute("aria-label", labelOf(place));
      drawn.sign = sign;
    }
    const facts = {
      transform: `translate(${place.x},${place.y})`, "aria-level": place.depth + 1, "aria-posinset": place.place,
      "aria-setsize": place.siblings, "aria-selected": node.id === this.selected, tabindex: node.id === this.selected ? 0 : -1,
      "aria-expanded": node.hidden ? "false" : node.children.length ? "true" : null,
    };
    for (const [name, value] of Object.entries(facts)) {
      if (value === null) element.removeAttribute(name);
      else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
    }
    return drawn;
  }

  /** Paint what is seen; of all others there is only what a screen reader needs. */
  #paint() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const { x, y, scale } = this.#view;
    const plain = scale < PLAIN;
    const [left, top] = [(-AROUND - x) / scale, (-AROUND - y) / scale];
    const [right, bottom] = [left + (this.element.clientWidth + 2 * AROUND) / scale, top + (this.element.clientHeight + 2 * AROUND) / scale];
    const isSeen = (x0, x1, y0, y1) => x1 >= left && x0 <= right && y1 >= top && y0 <= bottom;
    for (const place of this.#places) {
      const drawn = this.#drawn.get(place.node.id);
      const from = place.parent && this.#byId.get(place.parent.id);
      const { x: at, y: middle, width, height } = place;
      const inside = isSeen(at, at + width + 40, middle - height, middle + height) ? `${plain} ${drawn.sign}` : "";
      if (drawn.inside !== inside) {
        drawn.inside = inside;
        drawn.element.replaceChildren(...(inside ? insideOf(place, plain) : []));
      }
      const seen = from && isSeen(from.x, at, Math.min(from.y, middle) - 20, Math.max(from.y, middle) + 20);
      this.#paintEdge(drawn, place, seen ? from : null, plain);
    }
  }

  #paintEdge(drawn, place, from, plain) {
    const way = from ? `${plain},${from.x},${from.y},${from.width},${place.x},${place.y},${drawn.sign}` : "";
    if (drawn.way === way) return;
    drawn.way = way;
    const edge = from ? edgeOf(from, place, plain) : null;
    if (drawn.edge && edge) drawn.edge.replaceWith(edge);
    else if (edge) this.#edges.append(edge);
    else drawn.edge?.remove();
    drawn.edge = edge;
  }

  /** Mark some nodes in the picture: `ids` by the name of a class. */
  mark(name, ids) {
    for (const [id, { element }] of this.#drawn) element.classList.toggle(name, ids.has(id));
  }

  // ---- what is seen ----------------------------------------------------------------------------

  #look(view) {
    this.#view = view;
    this.#moved.setAttribute("transform", `translate(${view.x},${view.y}) scale(${view.scale})`);
    this.#frame ||= requestAnimationFrame(() => this.#paint());
  }

  /** Show all of it, or as much as can be read, beginning with what is selected. */
  fit() {
    const { clientWidth: width, clientHeight: height } = this.element;
    if (!width || !this.#places.length) return;
    const box = boundsOf(this.#places);
    const whole = wholeScale(box, width, height);
    const scale = Math.min(1, Math.max(whole, READABLE));
    this.#follows = true;
    this.#look(viewOf(box, width, height, scale));
    if (whole < scale) this.#reveal(this.#growing ? this.#fallback() : this.selected, { middle: box.height * scale > height });
  }

  /** The whole picture, however small. */
  overview() {
    const { clientWidth: width, clientHeight: height } = this.element;
    const box = boundsOf(this.#places);
    this.#follows = false;
    this.#look(viewOf(box, width, height, Math.max(LEAST, Math.min(1, wholeScale(box, width, height)))));
  }

  zoom(by, x = this.element.clientWidth / 2, y = this.element.clientHeight / 2) {
    const { x: left, y: top, scale } = this.#view;
    const next = Math.min(MOST, Math.max(LEAST, scale * by));
    this.#follows = false;
    this.#look({ x: x - ((x - left) * next) / scale, y: y - ((y - top) * next) / scale, scale: next });
  }

  #pan(dx, dy) {
    this.#follows = false;
    this.#look({ ...this.#view, x: this.#view.x + dx, y: this.#view.y + dy });
  }

  /** Bring a node into sight; or to the middle, from above to below. */
  #reveal(id, { middle: centred = false } = {}) {
    const place = this.#byId.get(id);
    if (!place) return;
    const { clientWidth: width, clientHeight: height } = this.element;
    const { x, y, scale } = this.#view;
    const left = place.x * scale + x;
    const right = left + place.width * scale;
    const middle = place.y * scale + y;
    const half = (place.height / 2 + 16) * scale;
    let [dx, dy] = [0, 0];
    if (right > width - EDGE) dx = width - EDGE - right;
    if (left + dx < EDGE) dx = EDGE - left;
    if (middle + half > height - 8) dy = height - 8 - half - middle;
    if (middle - half + dy < 8) dy = 8 + half - middle;
    if (centred) dy = height / 2 - middle;
    if (dx || dy) this.#look({ x: x + dx, y: y + dy, scale });
  }

  // ---- what a person does ----------------------------------------------------------------------

  /** Put the focus on a node. */
  focus(id = this.selected) {
    this.select(id);
    this.#drawn.get(this.selected)?.element.focus({ preventScroll: true });
  }

  select(id) {
    if (!this.#byId.has(id)) return;
    const before = this.#drawn.get(this.selected)?.element;
    before?.setAttribute("tabindex", "-1");
    before?.setAttribute("aria-selected", "false");
    this.selected = id;
    const { element } = this.#drawn.get(id);
    element.setAttribute("tabindex", "0");
    element.setAttribute("aria-selected", "true");
    this.#reveal(id);
    this.#paint(); // so that it can have the focus
    this.#acts.selected(this.node());
  }

  #listen() {
    const { element } = this;
    element.addEventListener("click", (event) => this.#click(event));
    element.addEventListener("keydown", (event) => this.#key(event));
    element.addEventListener("focusin", (event) => {
      const node = this.#at(event);
      if (node && node.id !== this.selected) this.select(node.id);
    });
    element.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    element.addEventListener("pointerdown", (event) => this.#down(event));
    element.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) element.addEventListener(name, (event) => this.#pointers.delete(event.pointerId));
    element.addEventListener("dragover", (event) => this.#over(event));
    element.addEventListener("dragleave", () => this.mark("target", new Set()));
    element.addEventListener("drop", (event) => this.#drop(event));
    new ResizeObserver(() => this.#follows && this.fit()).observe(element);
  }

  #at(event) {
    return this.node(event.target.closest?.(".map-node")?.dataset.id ?? "");
  }

  #click(event) {
    const node = this.#at(event);
    if (!node || this.#dragged) return;
    this.focus(node.id);
    if (event.target.closest(".hidden-ends")) this.#acts.fold(node);
    else this.#acts.choose(node);
  }

  #wheel(event) {
    event.preventDefault();
    const step = event.deltaMode ? 16 : 1; // lines or pixels
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      this.#pan(-(event.deltaX || event.deltaY) * step, 0);
    } else {
      const box = this.element.getBoundingClientRect();
      this.zoom(Math.exp(-event.deltaY * step * (event.ctrlKey ? 0.01 : 0.0016)), event.clientX - box.left, event.clientY - box.top);
    }
  }

  #down(event) {
    if (event.button !== 0) return;
    if (!this.#pointers.size) this.#dragged = false;
    this.#pointers.set(event.pointerId, event);
  }

  #move(event) {
    const before = this.#pointers.get(event.pointerId);
    if (!before) return;
    const [dx, dy] = [event.clientX - before.clientX, event.clientY - before.clientY];
    if (!this.#dragged && Math.hypot(dx, dy) < 5) return; // a click that trembles
    if (!this.#dragged) this.element.setPointerCapture(event.pointerId);
    this.#dragged = true;
    const other = [...this.#pointers.values()].find((each) => each.pointerId !== event.pointerId);
    this.#pointers.set(event.pointerId, event);
    if (!other) {
      this.#pan(dx, dy);
      return;
    }
    const apart = (one) => Math.hypot(one.clientX - other.clientX, one.clientY - other.clientY);
    const box = this.element.getBoundingClientRect();
    this.zoom(apart(event) / Math.max(1, apart(before)), (event.clientX + other.clientX) / 2 - box.left, (event.clientY + other.clientY) / 2 - box.top);
  }

  #over(event) {
    const node = this.#at(event);
    this.mark("target", new Set(node && this.#acts.takes(node) ? [node.id] : []));
    if (node && this.#acts.takes(node)) event.preventDefault();
  }

  #drop(event) {
    event.preventDefault();
    this.mark("target", new Set());
    const node = this.#at(event);
    if (!node) return;
    this.select(node.id);
    this.#acts.drop(node, event.dataTransfer.getData("text/plain"));
  }

  #key(event) {
    const node = this.node();
    if (!node || event.altKey) return;
    if (event.ctrlKey || event.metaKey) {
      if (event.key.toLowerCase() !== "z") return;
      this.#acts.undo();
    } else if (event.key === "Enter") this.#acts.choose(node);
    else if (event.key === " ") this.#acts.fold(node);
    else if (event.key === "Delete") this.#acts.prune(node);
    else if (event.key === "F2") this.#acts.name(node);
    else if (event.key === "+" || event.key === "=") this.zoom(1.25);
    else if (event.key === "-") this.zoom(0.8);
    else if (event.key === "0") this.fit();
    else {
      const next = this.#neighbour(event.key);
      if (!next) return;
      if (next !== node.id) this.focus(next);
    }
    event.preventDefault();
    event.stopPropagation();
  }

  /** The id of the node that a key leads to. */
  #neighbour(key) {
    const here = this.#byId.get(this.selected);
    switch (key) {
      case "ArrowLeft": return here.parent?.id ?? here.node.id;
      case "ArrowRight":
        if (here.node.hidden) this.#acts.fold(here.node);
        return (here.node.children.find((child) => child.shown) ?? here.node.children[0] ?? here.node).id;
      case "ArrowUp": return this.#beside(here, -1);
      case "ArrowDown": return this.#beside(here, 1);
      case "Home": return this.#places[0].node.id;
      case "End": return this.#places.at(-1).node.id;
      default: return null;
    }
  }

  /** The next node of the same depth above or below; where there is none, the next end. */
  #beside(here, sign) {
    const away = ({ y }) => (y - here.y) * sign;
    const all = this.#places.filter((place) => place !== here && away(place) > 0);
    const same = all.filter(({ depth }) => depth === here.depth);
    const ends = all.filter(({ node }) => !node.children.length);
    const from = same.length ? same : ends;
    return from.length ? from.reduce((best, place) => (away(place) < away(best) ? place : best)).node.id : here.node.id;
  }
}

/** The scale at which all of a rectangle is seen. */
const wholeScale = (box, width, height) => Math.min((width - 2 * EDGE) / box.width, (height - ABOVE - BELOW) / box.height);

/** The view with a rectangle in the middle, or its beginning if it is larger. */
const viewOf = (box, width, height, scale) => ({
  x: EDGE + Math.max(0, width - 2 * EDGE - box.width * scale) / 2 - box.left * scale,
  y: ABOVE + Math.max(0, height - ABOVE - BELOW - box.height * scale) / 2 - box.top * scale,
  scale,
});
