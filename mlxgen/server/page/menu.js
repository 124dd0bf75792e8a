// Menus: a button that opens a short list of things to do.

import { button, el } from "./dom.js";
import { icon } from "./icons.js";

/** A button whose menu has `items()`: [{icon, label, act}]. */
export function menuButton(label, items, props = {}) {
  const opener = button([icon("more")], () => openMenu(opener, label, items()), {
    class: "icon more", title: label, "aria-label": label, "aria-haspopup": "menu", "aria-expanded": "false", ...props,
  });
  return opener;
}

function openMenu(opener, label, items) {
  const rows = items.map(({ icon: name, label: text, act }) => button([icon(name), text], () => {
    menu.hidePopover();
    act();
  }, { role: "menuitem", tabindex: "-1" }));
  const menu = el("div", { class: "dropdown", role: "menu", "aria-label": label, popover: "auto", keydown: (event) => move(event, rows, menu) }, rows);
  menu.addEventListener("toggle", ({ newState }) => {
    opener.setAttribute("aria-expanded", String(newState === "open"));
    if (newState === "closed") menu.remove();
  });
  document.body.append(menu);
  menu.showPopover();
  place(menu, opener.getBoundingClientRect());
  rows[0].focus();
}

/** Below the button, or above it where there is more room. */
function place(menu, { top, bottom, left }) {
  const { offsetWidth: width, offsetHeight: height } = menu;
  const below = bottom + height <= innerHeight;
  menu.style.setProperty("top", `${below ? bottom : Math.max(0, top - height)}px`);
  menu.style.setProperty("left", `${Math.max(4, Math.min(left, innerWidth - width - 4))}px`);
}

function move(event, rows, menu) {
  const at = rows.indexOf(document.activeElement);
  const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: rows.length - 1 }[event.key];
  if (event.key === "Escape" || event.key === "Tab") {
    event.stopPropagation(); // Escape would stop an answer
    if (event.key === "Tab") menu.hidePopover();
  }
  if (to === undefined) return;
  event.preventDefault();
  rows[(to + rows.length) % rows.length].focus();
}
