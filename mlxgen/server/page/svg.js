// Elements of SVG, made like those of HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element; `props` are its attributes; children are nodes or text. */
export function svg(tag, props = {}, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(props)) {
    if (value !== undefined && value !== null && value !== false) made.setAttribute(name, String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}
