// The panel with the alternatives of a token: the likely ones, what was rejected, and any other.
//
// It never covers the line of its token. Where it has little room, only the list of the likely ones scrolls.

import { useContext, useLayoutEffect, useState } from "preact/hooks";
import { branchAt, pathOf } from "./conversation.js";
import { html, Icon, useElement } from "./html.js";
import { alternativesOf, DRAFTERS, percent, spoken, visible } from "./records.js";
import { formName } from "./settings.js";
import { Page, useChanges } from "./store.js";
import { wordsOf } from "./token-lines.js";

const GAP = 8; // pixels between the panel, its token and the edges of the window
const LEAST = 240; // pixels of height that it wants

/** `token` is what was opened: {node, index, anchor}; `close({refocus})` closes it. */
export function Alternatives({ token, close }) {
  const { store, session, acts } = useContext(Page);
  const { node, index, anchor } = token;
  useChanges(session.current, node);
  const record = pathOf(session.current, node)[index];
  const panel = useElement();
  const box = useElement();
  const [note, setNote] = useState(record?.a ? "" : "The server was not asked for alternatives, or there was no room to keep them.");
  const [waits, setWaits] = useState(false); // for the server's word on an alternative
  const [wrong, setWrong] = useState(false); // what was typed

  useLayoutEffect(() => {
    anchor.setAttribute("aria-expanded", "true");
    const isSheet = store.state.narrow; // then the style puts it at the bottom
    makeRoom(panel.current, anchor, isSheet);
    const moved = ({ target }) => isSheet || panel.current?.contains(target) || place(panel.current, anchor);
    addEventListener("resize", moved);
    document.addEventListener("scroll", moved, { capture: true, passive: true });
    const first = panel.current.querySelector('li button:enabled:not([aria-disabled="true"])');
    (first ?? box.current).focus({ preventScroll: true });
    return () => {
      anchor.removeAttribute("aria-expanded");
      anchor.closest("#scroll")?.style.removeProperty("padding-bottom");
      removeEventListener("resize", moved);
      document.removeEventListener("scroll", moved, { capture: true });
    };
  }, [anchor]);
  useLayoutEffect(() => {
    if (panel.current && !store.state.narrow) place(panel.current, anchor);
    if (note) panel.current.querySelector("[role=status]").scrollIntoView({ block: "nearest" });
  });
  if (!record) return null;

  /** Put an alternative there, by its id, or what was typed. */
  const ask = async (what) => {
    const typed = typeof what === "string";
    if (waits) return;
    setNote("Asking the server …");
    setWaits(true);
    const said = await acts.putInstead(token, what);
    setWaits(false);
    setNote(said ?? "");
    setWrong(typed && Boolean(said));
    if (typed && said) box.current?.focus();
  };
  const act = (work) => () => {
    close({ refocus: false });
    work();
  };
  const key = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close({ refocus: true });
    }
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const stops = [...panel.current.querySelectorAll("button:enabled, input")];
    stops.at((stops.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)) % stops.length)?.focus();
    event.preventDefault();
  };
  const submit = (event) => {
    event.preventDefault();
    ask(box.current.value);
  };

  return html`<div id="alternatives" class="popover" role="dialog" aria-labelledby="alternatives-title" tabindex="-1" ref=${panel}
    onKeyDown=${key} onFocusOut=${({ relatedTarget }) => !panel.current || panel.current.contains(relatedTarget) || waits || close({ refocus: false })}>
    <h2 id="alternatives-title">Instead of <code>${visible(record.b)}</code></h2>
    <p class="small">${about(record, index, node)}</p>
    <${Rejections} record=${record} />
    <ul class="choices">${rowsOf(record).map((row) => html`<${Row} key=${row.id} row=${row} record=${record}
      hasBranch=${Boolean(branchAt(session.current, node, index, row.id))} choose=${() => ask(row.id)} />`)}</ul>
    <form class="typing" onSubmit=${submit}>
      <label for="other-token" class="small">Any other token or text</label>
      <input id="other-token" ref=${box} autocomplete="off" autocapitalize="off" spellcheck="false" aria-describedby="other-token-hint"
        aria-invalid=${wrong} onInput=${() => setWrong(false)} />
      <button type="submit">Use it</button>
      <p role="status" class="small">${note}</p>
      <p id="other-token-hint" class="quiet small">A space begins a word, #123 is a token's id, \\n a line break.</p>
    </form>
    <div class="again">
      <button type="button" title="Keep what is before this token, and draw the rest anew"
        onClick=${act(() => acts.again(node, index))}><${Icon} name="retry" />Generate again from here</button>
      <button type="button" title="Draw this token and the rest several times at once, on the map"
        onClick=${act(() => acts.sampleFrom(node, index))}><${Icon} name="map" />Sample ways from here</button>
    </div>
    <button type="button" class="icon close" title="Close" aria-label="Close" onClick=${() => close({ refocus: true })}><${Icon} name="close" /></button>
  </div>`;
}

function Row({ row: { id, piece, logprob }, record, hasBranch, choose }) {
  const here = id === record.i;
  const refused = !here && record.x?.includes(id);
  const remark = here ? "in this answer" : refused ? "not allowed" : hasBranch ? "has a branch" : "";
  const label = [spoken(piece), percent(logprob), refused ? "not allowed here" : remark].filter(Boolean).join(", ");
  return html`<li><button type="button" data-id=${id} class=${`alternative${refused ? " refused" : ""}`} disabled=${here}
    aria-disabled=${refused ? "true" : null} aria-label=${label} onClick=${() => refused || choose()}>
    <code>${visible(piece)}</code>
    <span class="odds" aria-hidden="true" style=${{ "--share": `${Math.exp(logprob ?? -Infinity) * 100}%` }}></span>
    <span class="share">${percent(logprob)}</span><span class="quiet small">${remark}</span>
  </button></li>`;
}

/** The alternatives, and the token itself if it is not one of them. */
function rowsOf(record) {
  const rows = alternativesOf(record);
  if (!rows.some((row) => row.id === record.i)) rows.push({ id: record.i, piece: record.b, logprob: record.l });
  return rows;
}

/** What was rejected here, and why. */
function Rejections({ record }) {
  if (!record.j?.length) return null;
  const why = (reason, by) => {
    if (reason === "ban") return `banned: ${visible(by ?? "")}`;
    if (reason === "draft") return `drafted ${DRAFTERS[by] ?? ""}, but the model drew another`;
    if (reason === "length") return "left no room for a valid end";
    if (reason === "check") return `taken back: ${visible(by ?? "")}`;
    if (reason === "loop") return "taken back, because the text repeated itself";
    return "rejected by a hook";
  };
  return html`<ul class="rejections small" aria-label="Rejected here">
    ${record.j.map(([, piece, reason, by, text]) => html`<li><s><code>${visible(text ?? piece)}</code></s> ${why(reason, by)}</li>`)}
  </ul>`;
}

function about(record, index, node) {
  const words = wordsOf(record).map((word) => {
    if (word === "forced") return `forced: the ${formName(node.settings) || "format"} left no other token`;
    if (word.startsWith("drafted")) return `${word} and accepted by the model`;
    if (word.startsWith("drawn")) return `${word} because earlier draws were rejected`;
    return word;
  });
  const odds = record.l === null ? "of unknown probability" : `${percent(record.l)} likely`;
  return `${[`Token ${index + 1} of the answer, ${odds}`, ...words].join("; ")}.`;
}

// ---- its place -------------------------------------------------------------------------------

/** Where the lines of the token begin and end, and its left edge. */
function linesOf(anchor) {
  const boxes = anchor.getClientRects();
  const whole = anchor.closest(".character")?.getBoundingClientRect();
  const [first, last] = [whole ?? boxes[0], whole ?? boxes[boxes.length - 1]];
  return { top: first?.top ?? 0, bottom: last?.bottom ?? 0, left: first?.left ?? 0 };
}

/** Scroll the token to where the panel has room next to it. */
function makeRoom(panel, anchor, isSheet) {
  const scroller = anchor.closest("#scroll");
  if (!scroller) return;
  const { top, bottom } = linesOf(anchor);
  if (isSheet) {
    const { top: edge } = panel.getBoundingClientRect();
    scroller.style.setProperty("padding-bottom", `${innerHeight - edge}px`);
    const over = linesOf(anchor).bottom + GAP - edge;
    if (over > 0) scroller.scrollBy({ top: over, behavior: "instant" });
  } else if (Math.max(top, innerHeight - bottom) - 2 * GAP < LEAST) {
    anchor.scrollIntoView({ block: "center" });
  }
}

/** Below the token, or above if there is more room. */
function place(panel, anchor) {
  const { top, bottom, left } = linesOf(anchor);
  const [above, below] = [top - 2 * GAP, innerHeight - bottom - 2 * GAP];
  panel.style.removeProperty("max-height");
  const { offsetWidth: width, offsetHeight: height } = panel;
  const goesBelow = height <= below || below >= above;
  const room = Math.max(GAP * 8, goesBelow ? below : above);
  panel.style.setProperty("max-height", `${Math.min(room, 0.7 * innerHeight)}px`);
  panel.style.setProperty("--left", `${Math.max(GAP, Math.min(left, innerWidth - width - GAP))}px`);
  panel.style.setProperty("--top", `${goesBelow ? bottom + GAP : top - GAP - Math.min(height, room)}px`);
}
