// Files and images that go with a message: read and checked, as chips that unfold, and as thumbnails.
//
// `files` of a message are {name, text}, and its `images` {name, url} with a `data:` address.

import { useEffect, useState } from "preact/hooks";
import { countTokens } from "./api.js";
import { fenced } from "./conversation.js";
import { counted, inBytes } from "./figures.js";
import { html, Icon } from "./html.js";

const MOST_TEXT = 2_000_000; // bytes
const MOST_IMAGE = 10_000_000;
const IMAGES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** Why a file cannot be attached: `message` is a sentence. */
class UnfitError extends Error {}

/** Read a file: {name, text} or {name, url}; throws `UnfitError`. */
async function readAttachment(file, { images }) {
  const name = file.name || "pasted";
  const isImage = IMAGES.includes(file.type);
  const [what, most] = isImage ? ["images", MOST_IMAGE] : ["files", MOST_TEXT];
  const refuse = (why) => {
    throw new UnfitError(`“${name}” ${why}`);
  };
  if (isImage && !images) refuse("is an image, and this model takes no images.");
  if (file.size > most) refuse(`is too large: ${what} may have up to ${inBytes(most)}, and it has ${inBytes(file.size)}.`);
  if (file.type === "application/pdf" || /\.pdf$/i.test(name)) refuse("is a PDF. Copy its text into the message, or save it as text and attach that.");
  const bytes = await file.arrayBuffer().catch(() => refuse("cannot be read. Attach files, not folders."));
  if (isImage) return { name, url: await addressOf(file) };
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return { name, text };
  } catch {
    // It is not UTF-8.
  }
  return refuse("is not text in UTF-8. Attach text files, or convert it first.");
}

/** @returns {Promise<string>} */
const addressOf = (file) => new Promise((done, fail) => {
  const reader = new FileReader();
  reader.onload = () => done(String(reader.result));
  reader.onerror = () => fail(new UnfitError(`“${file.name}” cannot be read.`));
  reader.readAsDataURL(file);
});

/** The `files` and `images` of a message; with `remove(one)`, each can be taken away. */
export function Attachments({ files = [], images = [], remove = /** @type {((one: any) => void) | null} */ (null) }) {
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
  const tokens = count === null ? "" : ` · about ${counted(count, "token")}`;
  return html`<details onToggle=${(event) => setOpen(event.target.open)}>
    <summary><span class="name">${file.name}</span> <span class="quiet small">${inBytes(new TextEncoder().encode(file.text).length)}${tokens}</span></summary>
    <pre tabindex="0" aria-label=${`Text of ${file.name}`}>${open ? file.text : ""}</pre>
  </details>`;
}

/** Attachments that are being gathered: [kept, add(files, options), set(kept), the view]. */
export function useTray(initial) {
  const [kept, setKept] = useState({ files: initial.files ?? [], images: initial.images ?? [] });
  const [problem, setProblem] = useState("");
  const add = async (files, options) => {
    const problems = [];
    const found = [];
    for (const file of files) {
      try {
        found.push(await readAttachment(file, options));
      } catch (error) {
        if (!(error instanceof UnfitError)) throw error;
        problems.push(error.message);
      }
    }
    setProblem(problems.join(" "));
    const [texts, pictures] = [false, true].map((isImage) => found.filter((one) => "url" in one === isImage));
    // More may have come while these were read.
    setKept(({ files: before, images }) => ({ files: [...before, ...texts], images: [...images, ...pictures] }));
  };
  const set = (next) => {
    setProblem("");
    setKept({ files: next.files ?? [], images: next.images ?? [] });
  };
  const remove = (one) => setKept({ files: kept.files.filter((other) => other !== one), images: kept.images.filter((other) => other !== one) });
  const view = html`<div class="tray"><${Attachments} ...${kept} remove=${remove} /><p class="problem small" role="alert">${problem}</p></div>`;
  return /** @type {const} */ ([kept, add, set, view]);
}
