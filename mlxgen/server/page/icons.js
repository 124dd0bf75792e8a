// Icons: lines on a grid of 24, made as elements, in the colour of the text around them.
//
// They say nothing to a screen reader; whatever shows one has a name of its own.

import { button, el } from "./dom.js";

const SVG = "http://www.w3.org/2000/svg";

/** The lines of each icon, as an SVG path. */
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

/** An icon by its name. */
export function icon(name) {
  const made = document.createElementNS(SVG, "svg");
  made.setAttribute("viewBox", "0 0 24 24");
  made.setAttribute("aria-hidden", "true");
  made.classList.add("drawn");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", LINES[name]);
  made.append(path);
  return made;
}

/** A button with an icon before its label, which is only for screen readers where there is no room. */
export const iconButton = (name, label, onclick, props = {}) =>
  button([icon(name), el("span", { class: "label" }, label)], onclick, { title: label, ...props });

/** Draw the icons that the page itself asks for by `data-icon`. */
export function drawIcons(root) {
  for (const place of root.querySelectorAll("[data-icon]")) place.replaceChildren(icon(place.dataset.icon));
}
