// What all views share: preact with htm, and small parts such as icons and menus.
//
// Nothing here makes HTML from a text, so what a model wrote can only become a text node.

import htm from "htm";
import { h } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

export const html = htm.bind(h);

/** @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

/** A reference to an element that is drawn. @returns {{current: any}} */
export const useElement = () => useRef(null);

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
  const opener = useElement();
  const menu = useElement();
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
  const place = useElement();
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

/** The lines of each icon, as an SVG path on a grid of 24. */
const LINES = {
  attach: "M8 12.5l6-6a3 3 0 0 1 4.2 4.2l-8 8a5 5 0 0 1-7-7l7.5-7.5",
  branch: "M6 4v16M6 15c0-5 12-2 12-8M4 4h4M4 20h4M16 7l2-3 2 3",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  code: "M9 7l-5 5 5 5M15 7l5 5-5 5",
  compare: "M4 5h6.5v14H4zM13.5 5H20v14h-6.5z",
  copy: "M9 9h10v11H9zM6 15H5V4h10v2",
  down: "M6 9.5l6 6 6-6",
  download: "M12 4v11M7.5 11l4.5 4.5 4.5-4.5M5 20h14",
  edit: "M5 19l1-4L16.5 4.5a2.1 2.1 0 0 1 3 3L9 18zM14.5 6.5l3 3",
  engine: "M4.8 17.5a8.5 8.5 0 1 1 14.4 0M12 14l4-5",
  go: "M5 12h13M12.5 6.5L18 12l-5.5 5.5",
  image: "M4 5h16v14H4zM4 16l5-5 4 4 3-3 4 4M15.5 9h.01",
  left: "M14.5 6l-6 6 6 6",
  map: "M7 12h4M11 12c3 0 1-6 5-6M11 12c3 0 1 6 5 6M5 10a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM18 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4zM18 16a2 2 0 1 0 0 4 2 2 0 0 0 0-4z",
  menu: "M4 6.5h16M4 12h16M4 17.5h16",
  more: "M5.5 12h.01M12 12h.01M18.5 12h.01",
  newest: "M12 5v13M6.5 12.5L12 18l5.5-5.5",
  pen: "M12 20H6a2 2 0 0 1-2-2V6a2 2 0 0 1 2-2h6M10 14l.6-3L18 3.6a1.7 1.7 0 0 1 2.4 2.4L13 13.4z",
  plus: "M12 5v14M5 12h14",
  remove: "M5 7h14M10 7V4.5h4V7M7 7l.8 13h8.4L17 7M10.3 11v5.5M13.7 11v5.5",
  retry: "M19.5 12a7.5 7.5 0 1 1-2.2-5.3L20 9.4M20 4.5v4.9h-4.9",
  right: "M9.5 6l6 6-6 6",
  search: "M10.5 4.5a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM15 15l5 5",
  send: "M12 19V6M6.5 11.5L12 6l5.5 5.5",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 4.8a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4zM9 14.8a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4z",
  star: "M12 4l2.4 5.2 5.6.7-4.2 3.9 1.1 5.7-4.9-2.8-4.9 2.8 1.1-5.7L4 9.9l5.6-.7z",
  stop: "M7 7h10v10H7z",
  system: "M4 5h16v11H4zM9 20h6M12 16v4",
  tokens: "M4 6h5v5H4zM12 6h8v5h-8zM4 15h9v4H4zM16 15h4v4h-4z",
  tool: "M14.5 6.5a4 4 0 0 1 5-1.3l-2.7 2.7 1.3 1.3 2.7-2.7a4 4 0 0 1-5.3 5.2l-7 7a1.9 1.9 0 0 1-2.7-2.7l7-7a4 4 0 0 1 1.7-2.5z",
  upload: "M12 15.5V4.5M7.5 9L12 4.5 16.5 9M5 20h14",
  dark: "M19.5 14.5A8 8 0 0 1 9.5 4.5a8 8 0 1 0 10 10z",
  light: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8zM12 2.5v2M12 19.5v2M2.5 12h2M19.5 12h2M5.3 5.3l1.4 1.4M17.3 17.3l1.4 1.4M5.3 18.7l1.4-1.4M17.3 6.7l1.4-1.4",
};
