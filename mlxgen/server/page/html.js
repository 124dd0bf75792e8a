// What all views share: preact with htm, the store as a hook, and small parts such as icons and menus.
//
// Nothing here makes HTML from a text, so what a model wrote can only become a text node.

import htm from "htm";
import { createContext, h } from "preact";
import { useContext, useEffect, useLayoutEffect, useReducer, useRef, useState } from "preact/hooks";
import { LINES } from "./icons.js";

export const html = htm.bind(h);

/** {store, session, acts} of the page. */
export const Page = createContext(/** @type {any} */ (null));

/** What `select` takes of the store; the view is drawn again whenever that changes.
 *  @template T @param {(state: any, store: import("./store.js").Store<any>) => T} select @returns {T} */
export function useStore(select) {
  const { store } = useContext(Page);
  const [, again] = useReducer((count) => count + 1, 0);
  const last = useRef(/** @type {any} */ (null));
  const value = select(store.state, store);
  last.current = { select, value };
  useLayoutEffect(() => store.subscribe(() => {
    if (!Object.is(last.current.select(store.state, store), last.current.value)) again(null);
  }), [store]);
  return value;
}

/** Draw the view again whenever one of these things is changed in place. @param {object[]} things */
export const useChanges = (...things) => useStore((_, store) => things.map((thing) => store.revision(thing)).join());

/** Resolves after what was changed is drawn: preact does that in a microtask, and so do its effects. */
export async function drawn() {
  for (let k = 0; k < 3; k += 1) await null;
}

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

const isNarrow = matchMedia("(max-width: 46rem)"); // as in style.css

/** Whether the window is as narrow as a phone. */
export function useNarrow() {
  const [narrow, set] = useState(isNarrow.matches);
  useEffect(() => {
    const changed = () => set(isNarrow.matches);
    isNarrow.addEventListener("change", changed);
    return () => isNarrow.removeEventListener("change", changed);
  }, []);
  return narrow;
}

/** Icons say nothing to a screen reader; whatever shows one has a name of its own. */
export const Icon = ({ name }) => html`<svg viewBox="0 0 24 24" aria-hidden="true" class="drawn"><path d=${LINES[name]} /></svg>`;

/** A button with an icon before its label, which is only for screen readers where there is no room. */
export const IconButton = ({ icon, label, ...props }) =>
  html`<button type="button" title=${label} ...${props}><${Icon} name=${icon} /><span class="label">${label}</span></button>`;

/** A button that copies `text()`, and says whether it did. */
export function CopyButton({ text, ...props }) {
  const [said, say] = useState("Copy");
  const timer = useRef(0);
  const copy = async () => {
    say((await copyText(text())) ? "Copied" : "Not copied");
    clearTimeout(timer.current);
    timer.current = setTimeout(() => say("Copy"), 1500);
  };
  return html`<button type="button" aria-live="polite" onClick=${copy} ...${props}><${Icon} name="copy" /><span class="label">${said}</span></button>`;
}

/** Put `text` on the clipboard; resolves to whether that worked. */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from another machine over plain HTTP have no clipboard object.
    const box = Object.assign(document.createElement("textarea"), { value: text, className: "unseen" });
    const before = document.activeElement;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    /** @type {HTMLElement | null} */ (before)?.focus();
    return done;
  }
}

/** A button that opens a short list of things to do: `items` are {icon, label, act}. */
export function MenuButton({ label, items, ...props }) {
  const [open, setOpen] = useState(false);
  const opener = useRef(/** @type {any} */ (null));
  const menu = useRef(/** @type {any} */ (null));
  useLayoutEffect(() => {
    if (!open) return;
    menu.current.showPopover();
    const { top, bottom, left } = opener.current.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = menu.current;
    menu.current.style.top = `${bottom + height <= innerHeight ? bottom : Math.max(0, top - height)}px`;
    menu.current.style.left = `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`;
    menu.current.querySelector("button").focus();
  }, [open]);
  const move = (event) => {
    const rows = [...menu.current.querySelectorAll("button")];
    const at = rows.indexOf(document.activeElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
    if (event.key === "Escape" || event.key === "Tab") {
      event.stopPropagation(); // Escape would stop an answer
      if (event.key === "Tab") menu.current.hidePopover();
    }
    if (to === undefined) return;
    event.preventDefault();
    rows.at(to % rows.length).focus();
  };
  return html`
    <button type="button" ref=${opener} class="icon more" title=${label} aria-label=${label} aria-haspopup="menu"
      aria-expanded=${open} onClick=${() => setOpen(true)} ...${props}><${Icon} name="more" /></button>
    ${open && html`<div ref=${menu} class="dropdown" role="menu" aria-label=${label} popover="auto" onKeyDown=${move}
      onToggle=${({ newState }) => newState === "closed" && setOpen(false)}>
      ${items.map(({ icon, label: text, act }) => html`<button type="button" role="menuitem" tabindex="-1" onClick=${() => {
        menu.current.hidePopover();
        act();
      }}><${Icon} name=${icon} />${text}</button>`)}
    </div>`}`;
}

const STAYS = 12_000; // milliseconds

/** A sentence about something that was done, with a button to undo it: {text, action: [label, function]}.
 *  It goes away by itself, but not under the mouse or with the focus in it. */
export function Notice({ id, notice, close }) {
  const place = useRef(/** @type {any} */ (null));
  useEffect(() => {
    if (!notice) return undefined;
    place.current.querySelector("button").focus();
    const timer = setInterval(() => place.current.matches(":hover, :focus-within") || close(), STAYS);
    return () => clearInterval(timer);
  }, [notice]);
  return html`<div id=${id} role="status" ref=${place}>${notice && html`
    <p>${notice.text}</p>
    ${notice.action && html`<button type="button" onClick=${() => {
      close();
      notice.action[1]();
    }}>${notice.action[0]}</button>`}
    <button type="button" class="icon" aria-label="Dismiss" onClick=${close}><${Icon} name="close" /></button>`}</div>`;
}

/** Keep Escape from what would happen outside, where something is open that it closes. */
export function stopEscape(event) {
  if (event.key === "Escape" && document.querySelector(":popover-open")) event.stopPropagation();
}
