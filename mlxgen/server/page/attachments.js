// Files and images on the page: chips that unfold, and thumbnails, in a message or about to be sent.

import { useEffect, useState } from "preact/hooks";
import { countTokens } from "./api.js";
import { bytesIn, fenced, readAttachment, sizeOf, UnfitError } from "./attached.js";
import { html, Icon } from "./html.js";

/** The `files` and `images` of a message; with `remove(one)`, each can be taken away. */
export function Attachments({ files = [], images = [], remove = null }) {
  if (!files.length && !images.length) return null;
  const away = (one) => remove && html`<button type="button" class="icon" aria-label=${`Remove ${one.name}`} title="Remove"
    onClick=${() => remove(one)}><${Icon} name="close" /></button>`;
  return html`<ul class="attachments" aria-label="Attachments">
    ${images.map((image) => html`<li class="picture"><img src=${image.url} alt=${image.name} title=${image.name} />${away(image)}</li>`)}
    ${files.map((file) => html`<li class="file"><${Chip} file=${file} />${away(file)}</li>`)}
  </ul>`;
}

const counts = new WeakMap(); // of files, as one is shown more than once

function Chip({ file }) {
  const [open, setOpen] = useState(false);
  const [count, setCount] = useState(null);
  useEffect(() => {
    if (!counts.has(file)) counts.set(file, countTokens(fenced(file)));
    let gone = false;
    // Without an answer of the server, its size has to do.
    counts.get(file).then((found) => gone || setCount(found), () => counts.delete(file));
    return () => (gone = true);
  }, [file]);
  const tokens = count === null ? "" : ` · about ${count.toLocaleString("en")} ${count === 1 ? "token" : "tokens"}`;
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary><span class="name">${file.name}</span> <span class="quiet small">${sizeOf(bytesIn(file.text))}${tokens}</span></summary>
    <pre tabindex="0" aria-label=${`Text of ${file.name}`}>${open ? file.text : ""}</pre>
  </details>`;
}

/** Attachments that are being gathered: [kept, add(files, options), set(kept), the view]. `changed(kept)` is
 *  called whenever a person has changed them. */
export function useTray(initial, changed = /** @type {(kept: any) => void} */ (() => {})) {
  const [kept, setKept] = useState({ files: initial.files ?? [], images: initial.images ?? [] });
  const [problem, setProblem] = useState("");
  const take = (next) => {
    setKept(next);
    changed(next);
  };
  const add = async (files, options) => {
    const problems = [];
    const found = { files: [...kept.files], images: [...kept.images] };
    for (const file of files) {
      try {
        const one = await readAttachment(file, options);
        found["url" in one ? "images" : "files"].push(one);
      } catch (error) {
        if (!(error instanceof UnfitError)) throw error;
        problems.push(error.message);
      }
    }
    setProblem(problems.join(" "));
    take(found);
  };
  const set = (next) => {
    setProblem("");
    setKept({ files: next.files ?? [], images: next.images ?? [] });
  };
  const remove = (one) => take({ files: kept.files.filter((other) => other !== one), images: kept.images.filter((other) => other !== one) });
  const view = html`<div class="tray"><${Attachments} ...${kept} remove=${remove} /><p class="problem small" role="alert">${problem}</p></div>`;
  return /** @type {const} */ ([kept, add, set, view]);
}
