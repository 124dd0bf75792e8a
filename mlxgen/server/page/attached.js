// What goes with a message besides its text: files of text, and images.
//
// Files are read and checked here, and put into the message for the model. `files` of a message are
// {name, text}, and its `images` {name, url} with a `data:` address. Nothing here touches the page.

const MOST_TEXT = 2_000_000; // bytes
const MOST_IMAGE = 10_000_000;

const IMAGES = ["image/png", "image/jpeg", "image/webp", "image/gif"];

/** Why a file cannot be attached: `message` is a sentence. */
export class UnfitError extends Error {}

/** Read a file: {name, text} or {name, url}; throws `UnfitError`. */
export async function readAttachment(file, { images }) {
  const name = file.name || "pasted";
  if (IMAGES.includes(file.type)) {
    if (!images) throw new UnfitError(`“${name}” is an image, and this model takes no images.`);
    if (file.size > MOST_IMAGE) throw new UnfitError(`“${name}” is too large: images may have up to ${sizeOf(MOST_IMAGE)}, and it has ${sizeOf(file.size)}.`);
    return { name, url: await addressOf(file) };
  }
  if (file.size > MOST_TEXT) throw new UnfitError(`“${name}” is too large: files may have up to ${sizeOf(MOST_TEXT)}, and it has ${sizeOf(file.size)}.`);
  if (file.type === "application/pdf" || /\.pdf$/i.test(name)) {
    throw new UnfitError(`“${name}” is a PDF. Copy its text into the message, or save it as text and attach that.`);
  }
  return { name, text: decoded(name, await bytesOf(name, file)) };
}

async function bytesOf(name, file) {
  try {
    return await file.arrayBuffer();
  } catch {
    throw new UnfitError(`“${name}” cannot be read. Attach files, not folders.`);
  }
}

function decoded(name, bytes) {
  const refusal = () => new UnfitError(`“${name}” is not text in UTF-8. Attach text files, or convert it first.`);
  if (new Uint8Array(bytes).includes(0)) throw refusal();
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    throw refusal();
  }
}

function addressOf(file) {
  return new Promise((done, fail) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result));
    reader.addEventListener("error", () => fail(new UnfitError(`“${file.name}” cannot be read.`)));
    reader.readAsDataURL(file);
  });
}

/** A size in bytes as people read it. */
export function sizeOf(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const [value, unit] = bytes < 1e6 ? [bytes / 1e3, "kB"] : [bytes / 1e6, "MB"];
  return `${value < 10 ? Number(value.toFixed(1)) : Math.round(value)} ${unit}`;
}

export const bytesIn = (text) => new TextEncoder().encode(text).length;

/** A file as the model sees it: its name, and its text in a fence that nothing in it can end. */
export function fenced({ name, text }) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  const language = /\.(\w{1,12})$/.exec(name)?.[1] ?? "";
  return `${name}:\n${fence}${language}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}

/** What a message says, for the server: a text, or parts if there are images. */
export function contentOf({ text, files = [], images = [] }) {
  const whole = [...files.map(fenced), text].filter(Boolean).join("\n\n");
  if (!images.length) return whole;
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return whole ? [...parts, { type: "text", text: whole }] : parts;
}
