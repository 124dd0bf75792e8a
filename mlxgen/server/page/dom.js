// Elements, made without HTML, so what a model wrote can only become a text node.

/** An element; `props` are its attributes, and functions its listeners; children are nodes or text. */
export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === "function") made.addEventListener(name, value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/** A button; `label` is a text, or a list of nodes and texts. */
export const button = (label, onclick, props = {}) =>
  el("button", { type: "button", click: onclick, ...props }, label);

export const byId = (id) => document.getElementById(id);

/** Show a text in an element, and touch the page only if it differs. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Put `text` on the clipboard; resolves to whether that worked. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    // Pages from another machine over plain HTTP have no clipboard object.
    const box = el("textarea", { class: "unseen", "aria-hidden": "true", tabindex: "-1" });
    const before = document.activeElement;
    box.value = text;
    document.body.append(box);
    box.select();
    const done = document.execCommand("copy");
    box.remove();
    before?.focus();
    return done;
  }
}

/** A button that copies, and says whether it did; `mark` is shown before the label. */
export function copyButton(label, text, props = {}, mark = null) {
  const said = el("span", { class: "label" }, label);
  return el("button", {
    type: "button", "aria-live": "polite", ...props,
    click: async () => {
      said.textContent = (await copyText(text())) ? "Copied" : "Not copied";
      setTimeout(() => (said.textContent = label), 1500);
    },
  }, mark, said);
}
