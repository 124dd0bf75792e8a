// Files and images on the page: chips that unfold, and thumbnails, in a message or about to be sent.

import { countTokens } from "./api.js";
import { bytesIn, fenced, readAttachment, sizeOf, UnfitError } from "./attached.js";
import { button, el } from "./dom.js";
import { icon } from "./icons.js";

/** The elements of `files` and `images`; with `remove(one)`, each can be taken away. */
export function attachmentsElement({ files = [], images = [] }, remove = null) {
  return el("ul", { class: "attachments", "aria-label": "Attachments" },
    images.map((image) => item(image, thumbnail(image), remove)),
    files.map((file) => item(file, chip(file), remove)));
}

function item(one, shown, remove) {
  const away = remove && button(icon("close"), () => remove(one), { class: "icon", "aria-label": `Remove ${one.name}`, title: "Remove" });
  return el("li", { class: one.url ? "picture" : "file" }, shown, away);
}

const thumbnail = ({ name, url }) => el("img", { src: url, alt: name, title: name });

function chip(file) {
  const about = el("span", { class: "quiet small" }, sizeOf(bytesIn(file.text)));
  const text = el("pre", { tabindex: "0", "aria-label": `Text of ${file.name}` });
  const made = el("details", {
    toggle: () => {
      if (made.open) text.textContent = file.text; // a long one takes a while
    },
  }, el("summary", {}, el("span", { class: "name" }, file.name), " ", about), text);
  estimate(file, about);
  return made;
}

const counts = new WeakMap(); // of files, as one is shown more than once

/** Add how many tokens a file is; without an answer of the server, its size has to do. */
async function estimate(file, about) {
  if (!counts.has(file)) counts.set(file, countTokens(fenced(file)));
  try {
    const count = await counts.get(file);
    about.textContent += ` · about ${count.toLocaleString("en")} ${count === 1 ? "token" : "tokens"}`;
  } catch {
    counts.delete(file);
  }
}

/** Attachments that are being gathered: those of a message that is written or edited. */
export class Tray {
  #kept = { files: [], images: [] };
  #list = el("div", {});
  #problem = el("p", { class: "problem small", role: "alert" });
  #changed;

  /** `changed()` is called whenever there are other attachments than before. */
  constructor(changed = () => {}) {
    this.#changed = changed;
    this.element = el("div", { class: "tray" }, this.#list, this.#problem);
  }

  /** {files, images}. */
  get kept() {
    return this.#kept;
  }

  get isEmpty() {
    return !this.#kept.files.length && !this.#kept.images.length;
  }

  /** Have these instead. */
  show({ files = [], images = [] }) {
    this.#kept = { files: [...files], images: [...images] };
    this.#problem.textContent = "";
    this.#draw();
  }

  /** Read files and add them; what cannot be added is said. */
  async add(files, options) {
    const problems = [];
    for (const file of files) {
      try {
        const one = await readAttachment(file, options);
        this.#kept[one.url ? "images" : "files"].push(one);
      } catch (error) {
        if (!(error instanceof UnfitError)) throw error;
        problems.push(error.message);
      }
    }
    this.#problem.textContent = problems.join(" ");
    this.#draw();
    this.#changed();
  }

  #draw() {
    this.#list.replaceChildren(...(this.isEmpty ? [] : [attachmentsElement(this.#kept, (one) => this.#remove(one))]));
  }

  #remove(one) {
    this.#kept = {
      files: this.#kept.files.filter((other) => other !== one),
      images: this.#kept.images.filter((other) => other !== one),
    };
    this.#draw();
    this.#changed();
  }
}
