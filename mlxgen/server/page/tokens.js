// The tokens of an answer, tinted by their probability, under a strip of the whole answer.
//
// One tab stop for each group, and arrow keys within. What is seen as one character, but is several
// tokens, is one box that spans them.

import { h } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { html, useElement } from "./html.js";
import { LEVELS, levelOf, percent, Speller } from "./records.js";
import { classOf, columnsOf, hexOf, labelOf, MARKS, markNames, TokenLines } from "./token-lines.js";

const LEAST = 8; // percent of the height of the strip that a column has at least

/** `open(index, element)` is called for the token that was clicked; `unfolded` says whether thoughts are
 *  shown, and `fold(unfolded)` is called when that changes. */
export function TokenView({ path, open, unfolded, fold }) {
  const root = useElement();
  const lines = useRef(/** @type {any} */ (null));
  lines.current ??= new TokenLines();
  const { groups } = lines.current.update(path);
  const [seen, setSeen] = useState([null, null]);
  useWindow(root, ([first, last]) =>
    setSeen((before) => (before[0] === first && before[1] === last ? before : [first, last])));

  const tokens = () => root.current.querySelectorAll(".token[data-index]");
  const groupAt = (index) => groups.find(({ end }) => index < end);
  const move = (token) => {
    const { start, end } = groupAt(Number(token.dataset.index));
    for (const other of tokens()) {
      const index = Number(other.dataset.index);
      if (index >= start && index < end && other.tabIndex === 0) other.tabIndex = -1;
    }
    token.tabIndex = 0;
    token.focus();
  };
  const unfoldTo = (index) => {
    const token = tokens()[index];
    const folded = token?.closest("details");
    if (folded) folded.open = true;
    return token;
  };
  const click = (event) => {
    const token = event.target.closest(".token") ?? event.target.closest(".character")?.querySelector(".token");
    // A click that ends a selection is meant to select.
    if (!token?.dataset.index || String(getSelection())) return;
    move(token);
    open(Number(token.dataset.index), token);
  };
  const key = (event) => {
    const token = event.target.closest(".token");
    if (!token || event.altKey || event.ctrlKey || event.metaKey) return;
    const index = Number(token.dataset.index);
    if (event.key === "Enter" || event.key === " ") open(index, token);
    else {
      const next = neighbour(tokens(), groupAt(index), index, event.key);
      if (!next) return;
      move(next);
    }
    event.preventDefault();
  };

  return html`<div class="tokens" ref=${root} onClick=${click} onKeyDown=${key}>
    <${Strip} logprobs=${path.map(({ l }) => l)} seen=${seen}
      goTo=${(index) => unfoldTo(index)?.scrollIntoView({ block: "center", inline: "nearest" })}
      enter=${(index) => move(unfoldTo(index))} />
    ${groups.map((group) => {
      const thought = group.kind === "thought";
      const inner = html`<div class="token-text" role="group"
        aria-label=${`${thought ? "Tokens of the thoughts" : "Tokens of the answer"}; arrow keys move, Enter shows alternatives`}>
        ${group.boxes.map((box) => html`<${Lines} key=${box.start} box=${box} />`)}
      </div>`;
      return thought ? html`<details class="reasoning" open=${unfolded} onToggle=${(event) => fold(event.target.open)}>
        <summary>Thoughts, ${group.end - group.start} tokens</summary>${inner}</details>` : inner;
    })}
  </div>`;
}

/** A box of lines; it is drawn again only if it is another one. */
const Lines = ({ box }) => useMemo(() => h("div", { class: "lines" }, box.items.map(itemOf)), [box]);

function itemOf(item) {
  if (!item.parts) return tokenOf(item);
  return html`<span class="character"><span class="whole">${item.whole}</span><span class="parts">${item.parts.map(tokenOf)}</span></span>`;
}

const tokenOf = ({ record, index, text, first }) => h("span", {
  class: classOf(record, text), role: "button", "aria-haspopup": "dialog", tabindex: first ? 0 : -1, "aria-label": labelOf(record),
  "data-index": index, "data-hex": text ? null : hexOf(record),
}, text);

/** Tokens where nothing opens: plain text for a screen reader; that at `mark` differs from another text's. */
export function plainTokens(path, mark = -1) {
  const speller = new Speller();
  return path.map((record, k) => {
    const text = speller.spell(record);
    return h("span", { class: `${classOf(record, text)}${k === mark ? " differs" : ""}`, "data-hex": text ? null : hexOf(record) }, text);
  });
}

/** The token that a key leads to, or undefined. */
function neighbour(tokens, { start, end }, index, key) {
  switch (key) {
    case "ArrowLeft": return tokens[Math.max(start, index - 1)];
    case "ArrowRight": return tokens[Math.min(end - 1, index + 1)];
    case "Home": return tokens[start];
    case "End": return tokens[end - 1];
    case "ArrowUp": return inLine(tokens, index, -1, start - 1);
    case "ArrowDown": return inLine(tokens, index, 1, end);
    default: return undefined;
  }
}

/** The token of the next line that is most directly above or below. */
function inLine(tokens, index, sign, end) {
  const from = placeOf(tokens[index]);
  let best = /** @type {{away: number, other: number} | null} */ (null);
  let line = NaN; // where the next one is
  for (let other = index + sign; other !== end; other += sign) {
    const box = placeOf(tokens[other]);
    if (!box || (box.top - from.top) * sign < from.height / 2) continue;
    if (isNaN(line)) line = box.top;
    if (Math.abs(box.top - line) > from.height / 2) break;
    const away = Math.abs(box.left - from.left);
    if (!best || away < best.away) best = { away, other };
  }
  return best ? tokens[best.other] : undefined;
}

/** Where a token begins; a part of a character is where that is. */
const placeOf = (token) => (token.closest(".character") ?? token).getClientRects()[0];

// ---- the strip -------------------------------------------------------------------------------

/** How sure the model was along a whole answer: a strip of columns that leads to any place of it. */
function Strip({ logprobs, seen: [first, last], goTo, enter }) {
  const [at, setAt] = useState(0);
  const count = logprobs.length;
  const here = Math.max(0, Math.min(at, count - 1));
  useEffect(() => {
    if (first !== null && (here < first || here > last)) setAt(first);
  }, [first, last]);
  const columns = columnsOf(logprobs);
  const bars = new Map();
  columns.forEach((column, k) => {
    if (!column) return;
    const level = levelOf(column.logprob);
    const height = (LEAST + (100 - LEAST) * column.height).toFixed(1);
    bars.set(level, `${bars.get(level) ?? ""}M${k} 100v-${height}h1v${height}z`);
  });
  const move = (index) => {
    const next = Math.max(0, Math.min(index, count - 1));
    setAt(next);
    goTo(next);
  };
  const drag = (event) => {
    const strip = event.currentTarget;
    if (!strip.hasPointerCapture(event.pointerId)) return;
    const { left, width } = strip.getBoundingClientRect();
    const share = (event.clientX - left) / width;
    move(Math.floor((getComputedStyle(strip).direction === "ltr" ? share : 1 - share) * count));
  };
  const press = (event) => {
    if (event.button !== 0) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    drag(event);
  };
  const key = (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const step = Math.max(1, Math.round(count / 100));
    const steps = { ArrowRight: step, ArrowUp: step, ArrowLeft: -step, ArrowDown: -step, PageUp: 10 * step, PageDown: -10 * step, Home: -Infinity, End: Infinity };
    if (event.key === "Enter") enter(here);
    else if (event.key in steps) move(here + steps[event.key]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  // All of it, or nothing, needs no mark.
  const isPart = first !== null && count > 0 && !(first === 0 && last === count - 1);
  return html`<div class="strip" hidden=${count < 2} role="slider" tabindex="0" style=${{ "--columns": columns.length }}
    aria-label="How sure the model was; place in the answer" aria-valuemin="1" aria-valuemax=${Math.max(1, count)} aria-valuenow=${here + 1}
    aria-valuetext=${`token ${here + 1} of ${count}, ${percent(logprobs[here] ?? null)}`}
    title="How sure the model was, from the first token to the last: click or drag to go to a place"
    onKeyDown=${key} onPointerDown=${press} onPointerMove=${drag}>
    <svg preserveAspectRatio="none" aria-hidden="true" viewBox=${`0 0 ${Math.max(columns.length, 1)} 100`}>
      ${[...bars].map(([level, path]) => html`<path key=${level} class=${`bar-${level}`} d=${path} />`)}
    </svg>
    <span class="window" hidden=${!isPart} style=${isPart
      ? { "inset-inline-start": `${(first / count) * 100}%`, "inline-size": `${((last + 1 - first) / count) * 100}%` } : {}}></span>
  </div>`;
}

/** Tell which tokens can be seen, from the first to the last, whenever that may have changed. */
function useWindow(root, tell) {
  useLayoutEffect(() => {
    let frame = 0;
    const look = () => (frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (root.current) tell(seenIn(root.current));
    }));
    const seen = new IntersectionObserver(([{ isIntersecting }]) => {
      document.removeEventListener("scroll", look, { capture: true });
      if (!isIntersecting) return; // the strip follows the page only where somebody can see it
      document.addEventListener("scroll", look, { capture: true, passive: true });
      look();
    });
    const sized = new ResizeObserver(look);
    seen.observe(root.current);
    sized.observe(root.current);
    return () => {
      cancelAnimationFrame(frame);
      seen.disconnect();
      sized.disconnect();
      document.removeEventListener("scroll", look, { capture: true });
    };
  }, []);
}

/** The first and the last token that can be seen; folded thoughts come first, and are above. */
function seenIn(root) {
  const view = (root.closest("#scroll") ?? document.documentElement).getBoundingClientRect();
  const top = Math.max(view.top, root.querySelector(".strip").getBoundingClientRect().bottom);
  const tokens = root.querySelectorAll(".token[data-index]");
  const first = firstWhere(tokens, ({ bottom }) => bottom > top);
  const end = firstWhere(tokens, (place) => place.top >= view.bottom);
  return first < end ? [first, end - 1] : [null, null];
}

/** The place of the first token for which `isThere` is true; they follow each other downwards. */
function firstWhere(tokens, isThere) {
  let [start, end] = [0, tokens.length];
  while (start < end) {
    const middle = (start + end) >> 1;
    if (isThere(tokens[middle].getBoundingClientRect())) end = middle;
    else start = middle + 1;
  }
  return start;
}

// ---- the legend ------------------------------------------------------------------------------

const TICKS = [0.9999, 0.99, 0.9, 0.5, 0.1, 0.01, 0.001];
const ABOUT = "The model's own probability of a token, before temperature, truncation and the answer format";

/** What the tints mean, and those marks that the tokens of some paths have. */
export function Legend({ paths }) {
  const marks = new Set(paths.flatMap((path) => path.flatMap(markNames)));
  return html`<div id="legend" role="group" aria-label="What the colors and marks of tokens mean"><div>
    <p class="unseen">The darker a token in a light page, or the brighter in a dark one, the less likely the model found it. ${ABOUT}.</p>
    <p class="scale" aria-hidden="true" title=${ABOUT}><span>likely, %</span><span class="steps">
      ${LEVELS.map((least, level) => html`<span class=${`token level-${level}`}>${TICKS.includes(least) ? `${+(least * 100).toFixed(2)}` : ""}</span>`)}
    </span><span>unlikely</span></p>
    <ul role="list">${Object.entries(MARKS).filter(([name]) => marks.has(name)).map(([name, text]) =>
      html`<li key=${name}><span class=${`token ${name}`} aria-hidden="true">abc</span> ${text}</li>`)}</ul>
  </div></div>`;
}
