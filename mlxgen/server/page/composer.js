// The box in which messages are written.
//
// Owns the form at the bottom of the page: the text, what is attached to it, and the drafts of each
// conversation. A message is {text, files, images}. `acts.send(message)` resolves to whether it was
// taken; what was not taken comes back into the box.

import { Tray } from "./attachments.js";
import { button, byId, el } from "./dom.js";
import { icon } from "./icons.js";
import { loadDraft, NOTHING, saveDraft } from "./drafts.js";

export class Composer {
  #form = byId("composer");
  #box = byId("message");
  #row = this.#box.closest(".row");
  #tray = new Tray(() => this.#keep());
  #picker = el("input", { type: "file", multiple: true, hidden: true, "aria-label": "Files to attach" });
  #attach = button(icon("attach"), () => this.#picker.click(), { id: "attach", class: "icon" });
  #takesImages = false;
  #id = null; // of the conversation
  #draft = null; // the name of its draft
  #acts;

  /** `acts` has `send(message)`, `isRunning()`, `stop()` and `editLast()`. */
  constructor(acts) {
    this.#acts = acts;
    this.#row.before(this.#tray.element);
    this.#row.prepend(this.#attach, this.#picker);
    this.takeImages(false);
    this.#form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    this.#box.addEventListener("input", () => {
      this.#fit();
      this.#keep();
    });
    this.#box.addEventListener("keydown", (event) => this.#key(event));
    this.#picker.addEventListener("change", () => {
      this.#add(this.#picker.files);
      this.#picker.value = ""; // the same file may be chosen again
    });
    this.#listenForFiles();
    byId("stop").addEventListener("click", () => {
      acts.stop();
      this.focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !document.querySelector("dialog[open]")) acts.stop();
    });
  }

  focus() {
    this.#box.focus();
  }

  /** Show the draft of a conversation, and whether an answer is in progress there. */
  update({ id, nodes }, running) {
    byId("send").hidden = running;
    byId("stop").hidden = !running;
    // A conversation without messages is not stored, and has another id after a reload.
    const key = Object.keys(nodes).length ? id : "new";
    if (id === this.#id && key === this.#draft) return;
    const stays = id === this.#id;
    if (stays) saveDraft(this.#draft, NOTHING);
    [this.#id, this.#draft] = [id, key];
    if (stays) this.#keep();
    else this.#show(loadDraft(key));
  }

  /** Whether the model takes images. */
  takeImages(takes) {
    this.#takesImages = takes;
    this.#attach.title = takes ? "Attach text files or images" : "Attach text files (this model takes no images)";
    this.#attach.setAttribute("aria-label", this.#attach.title);
  }

  get #message() {
    return { text: this.#box.value, ...this.#tray.kept };
  }

  #show({ text, files, images }) {
    this.#box.value = text;
    this.#tray.show({ files, images });
    this.#fit();
  }

  #keep() {
    saveDraft(this.#draft, this.#message);
  }

  async #send() {
    const message = this.#message;
    if (!message.text.trim() && this.#tray.isEmpty) return;
    const id = this.#id;
    this.#show(NOTHING);
    this.#keep();
    if ((await this.#acts.send(message)) || this.#id !== id || this.#box.value || !this.#tray.isEmpty) return;
    this.#show(message);
    this.#keep();
  }

  /** As high as the text. */
  #fit() {
    this.#box.style.setProperty("height", "auto");
    this.#box.style.setProperty("height", `${this.#box.scrollHeight + 2}px`);
  }

  #key(event) {
    if (event.isComposing) return; // while an input method composes a character, keys belong to it
    if (event.key === "ArrowUp" && !this.#box.value) {
      if (this.#acts.editLast()) event.preventDefault();
      return;
    }
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    if (!this.#acts.isRunning()) this.#form.requestSubmit();
  }

  // ---- files ---------------------------------------------------------------------------------

  #add(files) {
    return this.#tray.add([...files], { images: this.#takesImages });
  }

  /** Files may be dropped anywhere on the page, and pasted into the box. */
  #listenForFiles() {
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    const mark = (on) => this.#form.classList.toggle("dropping", on);
    document.addEventListener("dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault(); // or the browser would open the file
      mark(true);
    });
    document.addEventListener("dragleave", (event) => {
      if (!event.relatedTarget) mark(false);
    });
    document.addEventListener("drop", (event) => {
      mark(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      this.#add(event.dataTransfer.files);
      this.focus();
    });
    this.#box.addEventListener("paste", (event) => {
      // What spreadsheets copy is text as well as an image.
      if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      this.#add(event.clipboardData.files);
    });
  }
}
