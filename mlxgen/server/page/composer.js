// The box in which messages are written, what is in force for them, and how full the context is.
//
// What is not sent is kept as a draft of its conversation. A message that was not taken comes back into the box.

import { useContext, useEffect, useLayoutEffect, useState } from "preact/hooks";
import { countTokens } from "./api.js";
import { useTray } from "./attachments.js";
import { shownIn } from "./conversation.js";
import { html, Icon, useElement } from "./html.js";
import { loadDraft, NOTHING, saveDraft } from "./kept.js";
import { contextText, usedBy, warningOf } from "./figures.js";
import { answering, isGone, isLoaded } from "./models.js";
import { summaryOf } from "./settings.js";
import { Page, useChanges, useParts } from "./store.js";

const PAUSE = 400; // milliseconds without a key after which a text is counted

/** It begins anew with each conversation. */
export function Composer() {
  const { session, acts } = useContext(Page);
  const { current, vision, runs } = useParts("current", "vision", "runs");
  const running = runs.has(current.id);
  useChanges(current);
  // A conversation without messages is not stored, and has another id after a reload.
  const draft = Object.keys(current.nodes).length ? current.id : "new";
  const [first] = useState(() => loadDraft(draft));
  const [text, setText] = useState(first.text);
  const [kept, add, setTray, tray] = useTray(first);
  const [dropping, setDropping] = useState(false);
  const box = useElement();
  const form = useElement();
  const picker = useElement();

  const show = (message) => {
    setText(message.text);
    setTray(message);
  };
  useLayoutEffect(() => saveDraft(draft, { text, ...kept }), [draft, text, kept]);
  useLayoutEffect(() => {
    box.current.style.height = "auto";
    box.current.style.height = `${box.current.scrollHeight + 2}px`;
  }, [text]);
  const attachAll = (files) => add([...files], { images: vision });
  useFiles(attachAll, setDropping, box);

  const send = async (event) => {
    event.preventDefault();
    if (running || (!text.trim() && !kept.files.length && !kept.images.length)) return;
    const message = { text, ...kept };
    show(NOTHING);
    saveDraft(draft, NOTHING); // the conversation may have its own id from now on
    if ((await acts.send(message)) || session.current !== current || box.current?.value) return;
    show(message);
  };
  const key = (event) => {
    if (event.isComposing) return; // while an input method composes a character, keys belong to it
    if (event.key === "ArrowUp" && !text && acts.editLast()) event.preventDefault();
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    if (!running) form.current.requestSubmit();
  };
  const attach = vision ? "Attach text files or images" : "Attach text files (this model takes no images)";
  return html`<form id="composer" autocomplete="off" ref=${form} onSubmit=${send} class=${dropping ? "dropping" : ""}>
    <${Gone} />
    <${InForce} />
    ${tray}
    <div class="row box">
      <button type="button" id="attach" class="icon" title=${attach} aria-label=${attach} onClick=${() => picker.current.click()}><${Icon} name="attach" /></button>
      <input type="file" ref=${picker} multiple hidden aria-label="Files to attach" onChange=${({ target }) => {
        attachAll(target.files);
        target.value = ""; // the same file may be chosen again
      }} />
      <label for="message" class="unseen">Message</label>
      <textarea id="message" ref=${box} rows="1" placeholder="Message" aria-describedby="keys" value=${text} onInput=${(event) => setText(event.target.value)} onKeyDown=${key}></textarea>
      <button type="submit" id="send" class="main icon" title="Send" hidden=${running}><${Icon} name="send" /><span class="unseen">Send</span></button>
      <button type="button" id="stop" class="main icon" title="Stop" hidden=${!running} onClick=${() => {
        session.stop();
        box.current.focus();
      }}><${Icon} name="stop" /><span class="unseen">Stop</span></button>
    </div>
    <${Meter} text=${text} />
    <p id="keys" class="quiet small">Enter sends, Shift+Enter starts a new line, ? shows all keys.</p>
  </form>`;
}

/** Files may be dropped anywhere on the page, and pasted into the box. */
function useFiles(attach, setDropping, box) {
  useLayoutEffect(() => {
    const end = new AbortController();
    const on = (target, kind, listener) => target.addEventListener(kind, listener, { signal: end.signal });
    const hasFiles = (event) => event.dataTransfer?.types.includes("Files");
    on(document, "dragover", (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault(); // or the browser would open the file
      setDropping(true);
    });
    on(document, "dragleave", (event) => event.relatedTarget || setDropping(false));
    on(document, "drop", (event) => {
      setDropping(false);
      if (!hasFiles(event)) return;
      event.preventDefault();
      attach(event.dataTransfer.files);
      box.current.focus();
    });
    on(box.current, "paste", (event) => {
      // What spreadsheets copy is text as well as an image.
      if (!event.clipboardData.files.length || event.clipboardData.types.includes("text/plain")) return;
      event.preventDefault();
      attach(event.clipboardData.files);
    });
    return () => end.abort();
  });
}

/** That the model of the conversation is gone, and who answers. */
function Gone() {
  const { acts } = useContext(Page);
  const { current, models } = useParts("current", "models");
  useChanges(current.settings);
  const name = current.settings.model;
  if (!isGone(models, name)) return null;
  const other = models[0].id;
  return html`<p id="gone" class="warning small" role="status">The model ${name} is not on this server any more, so ${other} answers. <button
    type="button" class="link" onClick=${() => acts.chooseModel(other)}>Use ${other} from now on</button></p>`;
}

/** What differs from the defaults for the next answer, and what the server said that it ignored. */
function InForce() {
  const { current } = useParts("current");
  const last = shownIn(current).at(-1);
  useChanges(current, current.settings, last ?? current);
  return html`<p id="in-force" class="quiet small">${summaryOf(current.settings, last?.ignored ?? "")}</p>`;
}

function Meter({ text }) {
  const { session, acts } = useContext(Page);
  const { current, models, runs } = useParts("current", "models", "runs");
  const running = runs.has(current.id);
  const shown = shownIn(current);
  const last = shown.at(-1);
  useChanges(current, last ?? current);
  const { model } = current.settings;
  const context = answering(models, model)?.max_model_len ?? null;
  const ready = isLoaded(models, model);

  const known = usedBy(shown);
  const [counted, setCounted] = useState({ of: "", used: 0 });
  const of = `${current.id} ${last?.id} ${current.after}`;
  useEffect(() => {
    if (known || running || !last || !ready || counted.of === of) return;
    session.count(last).then((used) => setCounted({ of, used }), () => {}); // sending says what is wrong
  }, [of, Boolean(known), running, ready]);

  const [adding, setAdding] = useState({ text: "", adds: 0 });
  useEffect(() => {
    if (!text.trim()) setAdding({ text, adds: 0 });
    if (!text.trim() || !ready) return undefined;
    let gone = false;
    const timer = setTimeout(async () => {
      try {
        const adds = await (last ? countTokens(text, model || undefined) : session.count(null, text));
        if (!gone) setAdding({ text, adds });
      } catch {
        // It is only an estimate; sending says what is wrong.
      }
    }, PAUSE);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [text, ready, Boolean(last)]);

  const used = known ?? { used: counted.of === of ? counted.used : 0, cached: 0 };
  const { adds } = adding;
  if (!used.used && !adds) return html`<div id="meter" hidden></div>`;
  const facts = { ...used, adds, context };
  const warning = warningOf(facts);
  const share = context ? Math.min(1, used.used / context) : 0;
  return html`<div id="meter">
    ${warning && html`<p class="warning small" role="status">${warning} ${shown.length > 2 && html`<button type="button" class="link"
      onClick=${() => acts.leaveOut()}>Go on without the oldest exchanges</button>, edit`}${shown.length > 2 ? "" : "Edit"} an earlier message
      to go on from there, or <button type="button" class="link" onClick=${acts.startConversation}>start a new conversation</button>.</p>`}
    <div class="line">
      ${context && html`<div class=${`gauge${warning ? " near" : ""}`} role="meter" aria-label="Context" aria-valuemin="0" aria-valuemax=${context}
        aria-valuenow=${Math.min(context, used.used + adds)} aria-valuetext=${contextText(facts)}
        style=${{ "--used": share, "--adds": Math.min(1 - share, adds / context) }}><span data-part="used"></span><span data-part="adds"></span></div>`}
      <span>${contextText(facts)}</span>
    </div>
  </div>`;
}
