// The drawing of the map: its nodes and edges, what of it is seen, and how keys move in it.
//
// Pan, zoom and pinch are d3-zoom's, which is loaded when a map is first opened. `acts` has select(id),
// choose(node), fold(node), prune(node) and undo(); what they do is not known here.

import { useImperativeHandle, useLayoutEffect, useMemo, useRef } from "preact/hooks";
import { html, useElement } from "./html.js";
import { boundsOf, cut, endOf, labelOf, layOut, sum, widthOf } from "./map-tree.js";
import { percent, visible } from "./records.js";

const LEAST = 0.06;
const MOST = 2;
const READABLE = 0.85; // no fit shows less than this scale, so that its text can be read
const PLAIN = 0.3; // below this scale, nothing can be read and no text is drawn
const EDGE = 24; // pixels beside what is fitted
const ABOVE = 14;
const BELOW = 34; // with room for the legend
const PAD = 10; // between a box and its words
const FILES = ["color", "dispatch", "ease", "interpolate", "selection", "timer", "drag", "transition", "zoom"];

/** d3-zoom, after what it builds on, in the order in which they need one another. */
export async function loadZoom() {
  for (const name of FILES) await import(`./vendor/d3/${name}/d3-${name}.min.js`);
  return /** @type {any} */ (globalThis).d3;
}

/** `view` gets fit(), overview(), zoom(by), focus() and parentOf(id). `growing` keeps what is shown in sight. */
export function MapPicture({ d3, tree, selected, growing, found, acts, view }) {
  const picture = useElement();
  const moved = useElement();
  const follows = useRef(true); // whether it is fitted to what grows, until a person moves it
  const places = useMemo(() => layOut(tree), [tree]);
  const byId = useMemo(() => new Map(places.map((place) => [place.node.id, place])), [places]);
  const zoom = useMemo(() => d3.zoom().scaleExtent([LEAST, MOST]).filter((event) => !event.button && !(event.type === "wheel" && isPan(event))), []);

  const look = (x, y, scale) => {
    const before = follows.current; // a pointer may be down, and d3 takes this for a part of its gesture
    zoom.transform(d3.select(picture.current), d3.zoomIdentity.translate(x, y).scale(scale));
    follows.current = before;
  };
  /** Show all of it at a scale, in the middle, or its beginning if there is less room. */
  const lookAt = (scaleOf) => {
    const { clientWidth: width, clientHeight: height } = picture.current;
    if (!width) return;
    const box = boundsOf(places);
    const scale = scaleOf(Math.min((width - 2 * EDGE) / box.width, (height - ABOVE - BELOW) / box.height));
    look(EDGE + Math.max(0, width - 2 * EDGE - box.width * scale) / 2 - box.left * scale,
      ABOVE + Math.max(0, height - ABOVE - BELOW - box.height * scale) / 2 - box.top * scale, scale);
  };
  /** Show as much of it as can be read, with what is selected. */
  const fit = () => {
    follows.current = true;
    lookAt((whole) => Math.min(1, Math.max(whole, READABLE)));
    reveal(growing ? (places.filter(({ node }) => node.shown).at(-1) ?? places[0]).node.id : selected);
  };
  const overview = () => {
    follows.current = false;
    lookAt((whole) => Math.max(LEAST, Math.min(1, whole)));
  };
  const zoomBy = (by) => {
    follows.current = false;
    zoom.scaleBy(d3.select(picture.current), by);
  };
  /** Bring a node into sight, if it is not: in the middle between above and below. */
  const reveal = (id) => {
    const place = byId.get(id);
    const { clientWidth: width, clientHeight: height } = picture.current;
    if (!place || !width) return;
    const { x, y, k: scale } = d3.zoomTransform(picture.current);
    const [left, middle] = [place.x * scale + x, place.y * scale + y];
    const right = left + place.width * scale;
    const half = (place.height / 2 + 16) * scale;
    const dx = left < EDGE ? EDGE - left : Math.min(0, Math.max(width - EDGE - right, EDGE - left));
    const dy = middle - half < 8 || middle + half > height - 8 ? height / 2 - middle : 0;
    if (dx || dy) look(x + dx, y + dy, scale);
  };
  const focus = () => picture.current.querySelector('[aria-selected="true"]')?.focus({ preventScroll: true });
  useImperativeHandle(view, () => ({ fit, overview, zoom: zoomBy, focus, parentOf: (id) => byId.get(id)?.parent ?? null }));

  const last = useRef(fit);
  last.current = fit;
  useLayoutEffect(() => {
    zoom.on("zoom", ({ transform, sourceEvent }) => {
      if (sourceEvent) follows.current = false; // a person has moved it
      moved.current.setAttribute("transform", transform);
      picture.current.classList.toggle("plain", transform.k < PLAIN);
    });
    d3.select(picture.current).call(zoom).on("dblclick.zoom", null);
    const sized = new ResizeObserver(() => follows.current && last.current());
    sized.observe(picture.current);
    fit();
    focus();
    return () => sized.disconnect();
  }, []);
  useLayoutEffect(() => {
    if (follows.current) fit();
  }, [tree]);
  useLayoutEffect(() => reveal(selected), [selected]);

  const wheel = (event) => {
    if (!isPan(event)) return;
    event.preventDefault();
    follows.current = false;
    zoom.translateBy(d3.select(picture.current), -(event.deltaX || event.deltaY) / d3.zoomTransform(picture.current).k, 0);
  };
  const nodeAt = (event) => byId.get(event.target.closest?.(".map-node")?.dataset.id)?.node;
  const click = (event) => {
    const node = nodeAt(event);
    if (!node) return;
    acts.select(node.id, { focus: true });
    if (event.target.closest(".hidden-ends")) acts.fold(node);
    else acts.choose(node);
  };
  const focusIn = (event) => {
    const node = nodeAt(event);
    if (node && node.id !== selected) acts.select(node.id);
  };
  const key = (event) => {
    const node = byId.get(selected)?.node;
    if (!node || event.altKey) return;
    if (event.ctrlKey || event.metaKey) {
      if (event.key.toLowerCase() !== "z") return;
      acts.undo();
    } else if (event.key === "Enter") acts.choose(node);
    else if (event.key === " ") acts.fold(node);
    else if (event.key === "Delete") acts.prune(node);
    else if (event.key === "+" || event.key === "=") zoomBy(1.25);
    else if (event.key === "-") zoomBy(0.8);
    else if (event.key === "0") fit();
    else {
      const next = neighbour(places, byId.get(selected), event.key, acts);
      if (!next) return;
      acts.select(next, { focus: true });
    }
    event.preventDefault();
    event.stopPropagation();
  };
  return html`<svg ref=${picture} role="tree" aria-label="Branches of the conversation" class="map-picture"
    onClick=${click} onKeyDown=${key} onFocusIn=${focusIn} onWheel=${wheel}>
    <g role="presentation" ref=${moved}>
      <g aria-hidden="true">${places.map((place) => place.parent && html`<${Edge} key=${place.node.id} from=${byId.get(place.parent.id)} to=${place} />`)}</g>
      <g role="presentation">${places.map((place) => html`<${Node} key=${place.node.id} place=${place} selected=${place.node.id === selected}
        found=${found.has(place.node.id)} />`)}</g>
    </g>
  </svg>`;
}

const isPan = (event) => event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);

/** The id of the node that a key leads to; null for other keys. */
function neighbour(places, here, key, acts) {
  switch (key) {
    case "ArrowLeft": return here.parent?.id ?? here.node.id;
    case "ArrowRight":
      if (here.node.hidden) acts.fold(here.node);
      return (here.node.children.find((child) => child.shown) ?? here.node.children[0] ?? here.node).id;
    case "ArrowUp": return beside(places, here, -1);
    case "ArrowDown": return beside(places, here, 1);
    case "Home": return places[0].node.id;
    case "End": return places.at(-1).node.id;
    default: return null;
  }
}

/** The next node of the same depth above or below; where there is none, the next end. */
function beside(places, here, sign) {
  const away = ({ y }) => (y - here.y) * sign;
  const all = places.filter((place) => place !== here && away(place) > 0);
  const same = all.filter(({ depth }) => depth === here.depth);
  const from = same.length ? same : all.filter(({ node }) => !node.children.length);
  return from.length ? from.reduce((best, place) => (away(place) < away(best) ? place : best)).node.id : here.node.id;
}

// ---- nodes and edges -------------------------------------------------------------------------

function Node({ place, selected, found }) {
  const { node, x, y, depth, siblings } = place;
  const classes = ["map-node", node.kind, node.shown && "shown", node.dropped && "dropped", node.growing && "growing", found && "found"];
  return html`<g role="treeitem" data-id=${node.id} class=${classes.filter(Boolean).join(" ")} transform=${`translate(${x},${y})`}
    aria-label=${labelOf(node)} aria-level=${depth + 1} aria-posinset=${place.place} aria-setsize=${siblings} aria-selected=${selected}
    tabindex=${selected ? 0 : -1} aria-expanded=${node.hidden ? "false" : node.children.length ? "true" : null}>${insideOf(place)}</g>`;
}

function Edge({ from, to }) {
  const { node, x, y } = to;
  const start = from.x + from.width;
  const bend = Math.min(40, (x - start) * 0.8);
  const path = `M${start},${from.y} C${start + bend * 0.6},${from.y} ${start + bend * 0.4},${y} ${start + bend},${y} L${x},${y}`;
  return html`<g class=${["map-edge", node.shown && "shown", node.dropped && "dropped"].filter(Boolean).join(" ")}>
    <path d=${path} stroke-width=${node.edge ? widthOf(node.edge.record.l) : 1.5} />${wordsOfEdge(from, to, start + bend + 2)}</g>`;
}

/** A shape and its words. The middle of its left edge is at 0, 0. */
function insideOf({ node, width, height }) {
  const shape = node.kind === "fork" ? html`<circle class="box" cx=${width / 2} cy="0" r=${width / 2} />`
    : html`<rect class="box" x="0" y=${-height / 2} width=${width} height=${height} rx=${node.kind === "message" ? 14 : 6} />`;
  return html`${shape}${wordsOf(node, width)}
    ${node.settings && line(2, height / 2 + 13, cut(node.settings, width, 11), "tried")}
    ${node.hidden > 0 && html`<g class="hidden-ends"><rect x=${width + 4} y="-10" width="34" height="20" rx="10" />${line(width + 21, 4, `+${node.hidden}`, "middle")}</g>`}`;
}

const line = (x, y, text, kind = "") => html`<text x=${x} y=${y} class=${kind}>${text}</text>`;

function wordsOf(node, width) {
  const room = width - 2 * PAD;
  if (node.kind === "fork") return null;
  if (node.kind === "start") return line(PAD, 4, node.text);
  if (node.kind === "message") return [line(PAD, -5, node.role === "user" ? "You" : "Tools", "quiet"), line(PAD, 12, cut(node.text, room, 12.4))];
  const end = node.finish === "length" && !node.growing ? "cut off" : endOf(node);
  const facts = [end, sum(node), `${node.at} token${node.at === 1 ? "" : "s"}`];
  return [line(PAD, -5, tail(node.text || (node.growing ? "…" : "(no text)"), room)), line(PAD, 12, cut(facts.join(" · "), room, 10.2), "quiet")];
}

/** The end of a text, as much as there is room for. */
function tail(text, width) {
  const whole = text.replace(/^…/, "");
  const back = cut([...whole].reverse().join(""), width, 12.8);
  if (!back.endsWith("…") && whole === text) return text;
  return `…${[...back.replace(/…$/, "")].reverse().join("").trimStart()}`;
}

/** The token that was taken, its odds, and what follows it. */
function wordsOfEdge(from, { node: { edge, growing }, x, y }, start) {
  if (!edge) return from.node.kind === "fork" ? line(start, y - 7, growing ? "waiting" : "ends here", "quiet") : null;
  const room = x - start - 8;
  const odds = percent(edge.record.l);
  const rest = edge.text.replace(/\s+/g, " ").trim() || (edge.text && visible(edge.text));
  return html`<text x=${start} y=${y - 9}><tspan class="taken">${cut(visible(edge.record.b), room - 6.5 * odds.length - 5, 13.6)}</tspan><tspan class="quiet" dx="5">${odds}</tspan></text>
    ${rest && line(start, y + 17, cut(`… ${rest}`, room, 11), "quiet run")}`;
}
