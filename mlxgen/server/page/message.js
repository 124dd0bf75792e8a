// One message on the page: what was asked, what tools returned, or an answer, and what can be done with it.

import { useContext, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Attachments, useTray } from "./attachments.js";
import { Blocks, Code } from "./blocks.js";
import { branchesOf, branchName, childrenOf, pathOf, siblingsOf } from "./conversation.js";
import { isReading, progressOf, statsOf } from "./figures.js";
import { CopyButton, html, IconButton, useElement } from "./html.js";
import { Page, useChanges, useStore } from "./store.js";
import { TokenView } from "./tokens.js";

export function Message({ node }) {
  if (node.role === "assistant") return html`<${Answer} node=${node} />`;
  return node.role === "user" ? html`<${Question} node=${node} />` : html`<${Results} node=${node} />`;
}

const RemoveButton = ({ node, title }) => {
  const { acts } = useContext(Page);
  return html`<${IconButton} icon="remove" label="Delete" title=${title} onClick=${() => acts.remove(node)} data-act="remove" />`;
};

/** The place of a node among its siblings, with steps to the next ones. */
function Versions({ node, what }) {
  const { session, acts } = useContext(Page);
  const siblings = siblingsOf(session.current, node);
  if (siblings.length < 2) return null;
  return html`<span class="walker" role="group" aria-label=${`Other versions of this ${what}`}>
    <${IconButton} icon="left" label="" title=${null} aria-label="Previous version" data-act="back" onClick=${() => acts.walk(node, -1)} />
    <span class="small">${siblings.indexOf(node) + 1} of ${siblings.length}</span>
    <${IconButton} icon="right" label="" title=${null} aria-label="Next version" data-act="forward" onClick=${() => acts.walk(node, 1)} />
  </span>`;
}

// ---- what was asked --------------------------------------------------------------------------

function Question({ node }) {
  const { session, acts } = useContext(Page);
  useChanges(session.current, node);
  const editing = useStore((state) => state.editing === node.id);
  const { text, files, images } = node;
  return html`<li class="message user" data-node=${node.id}><article aria-label="You">
    ${editing ? html`<${QuestionEditor} node=${node} />` : html`
    <div class="said"><${Attachments} files=${files} images=${images} />${text && html`<div class="text" dir="auto">${text}</div>`}</div>
    <div class="actions">
      <${Versions} node=${node} what="message" />
      <${IconButton} icon="edit" label="Edit" data-act="edit" onClick=${() => acts.editMessage(node)} />
      <${RemoveButton} node=${node} title="Delete this and what follows it" />
    </div>`}
  </article></li>`;
}

/** Edit a message in its place; sending it makes another version. */
function QuestionEditor({ node }) {
  const { acts } = useContext(Page);
  const box = useElement();
  const [kept, , , tray] = useTray(node);
  useLayoutEffect(() => box.current.focus(), []);
  const close = () => acts.editMessage(null, node);
  const submit = (event) => {
    event.preventDefault();
    const text = box.current.value;
    if (!text.trim() && !kept.files.length && !kept.images.length) return;
    acts.edit(node, { text, ...kept });
  };
  const key = (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing && event.target === box.current) {
      submit(event);
    }
  };
  return html`<form onSubmit=${submit} onKeyDown=${key}>
    ${tray}
    <textarea ref=${box} aria-label="Edited message" rows=${Math.min(12, node.text.split("\n").length + 1)} defaultValue=${node.text}></textarea>
    <div class="row end"><button type="button" onClick=${close}>Cancel</button><button type="submit" class="main">Ask this instead</button></div>
  </form>`;
}

function Results({ node }) {
  return html`<li class="message tool" data-node=${node.id}><article aria-label="Results of tools">
    ${node.results.map(({ name, content }) => html`<div class="call"><span class="small">Result of <code>${name}</code></span><pre tabindex="0">${content}</pre></div>`)}
    <div class="actions"><${RemoveButton} node=${node} title="Delete this and what follows it" /></div>
  </article></li>`;
}

// ---- answers ---------------------------------------------------------------------------------

function Answer({ node }) {
  const { session, acts } = useContext(Page);
  const { current } = session;
  useChanges(current, node);
  const running = useStore(({ runs }) => runs.get(current.id)?.nodes.includes(node) ?? false);
  const asTokens = useStore(({ look }) => look.tokens);
  const load = useStore((state) => (running ? acts.loadOf(node, state) : ""));
  const [unfolded, setUnfolded] = useState(false);
  const [editing, setEditing] = useState(null); // where the cursor is at first
  const places = useRef(/** @type {any} */ ([]));
  const article = useElement();
  const answered = childrenOf(current, node).length > 0;
  const edit = () => setEditing(startOf(article.current, places.current) ?? node.content.length);
  const close = () => {
    setEditing(null);
    setTimeout(() => article.current?.querySelector("[data-act=edit]")?.focus());
  };

  return html`<li class="message answer" data-node=${node.id}>
    <article aria-label="Answer" aria-busy=${running} class=${editing === null ? "" : "editing"} ref=${article}>
      ${editing !== null && html`<${AnswerEditor} node=${node} start=${editing} close=${close} />`}
      ${asTokens
        ? html`<${TokenView} path=${pathOf(current, node)} open=${(index, anchor) => acts.openToken(node, index, anchor)}
            unfolded=${unfolded} fold=${setUnfolded} />`
        : html`<${Text} node=${node} running=${running} unfolded=${unfolded} fold=${setUnfolded} places=${places} />`}
      <${Calls} node=${node} open=${!running && !answered && node.finish === "tool_calls"} />
      <p class="problem" role="alert">${node.problem ?? ""}</p>
      ${node.full && !running && html`<p><button type="button" onClick=${() => acts.leaveOut(node)}>Go on without the oldest exchanges</button></p>`}
      <${Figures} node=${node} running=${running} answered=${answered} load=${load} />
      <${AnswerActions} node=${node} running=${running} answered=${answered} edit=${edit} />
      <${Branches} node=${node} />
    </article></li>`;
}

/** Where the paragraph that was clicked last begins in the text. */
function startOf(article, places) {
  const anchorNode = getSelection()?.anchorNode ?? null;
  const block = [...(article.querySelector(".content")?.children ?? [])].findIndex((child) => child.contains(anchorNode));
  return places[block]?.start ?? null;
}

function Text({ node, running, unfolded, fold, places }) {
  const { reasoning, content, settings: { form } } = node;
  return html`<div>
    ${reasoning && html`<details class="reasoning" open=${unfolded} onToggle=${(event) => fold(event.target.open)}>
      <summary>${running && !content ? "Thinking …" : "Thoughts"}</summary>
      ${unfolded ? html`<${Blocks} text=${reasoning} growing=${running && !content} />` : html`<div></div>`}
    </details>`}
    ${form
      ? html`<div class="blocks content formed"><${Code} text=${content} language=${form === "regex" ? "" : "json"} /></div>`
      : html`<${Blocks} class="blocks content" text=${content} growing=${running} places=${places} />`}
  </div>`;
}

function Figures({ node, running, answered, load }) {
  const { stats } = node;
  return html`<div class="figures">
    <progress class="reading" aria-label="How much of the prompt was read" hidden=${!running || !isReading(stats)}
      max=${stats?.prompt || 1} value=${stats?.read ?? 0} />
    <p class="stats quiet small">${running ? (!stats && load) || progressOf(node) : statsOf(node, { answered })}</p>
  </div>`;
}

function AnswerActions({ node, running, answered, edit }) {
  const { session, acts } = useContext(Page);
  const { content, finish, tokens, from } = node;
  const canGoOn = !answered && ["length", "stopped", "error", "stop"].includes(finish) && (tokens.length || from || content);
  return html`<div class="actions">
    <${Versions} node=${node} what="answer" />
    ${content && html`<${CopyButton} text=${() => node.content} aria-label="Copy the answer" data-act="copy" />`}
    ${!running && html`
      ${content && html`<${IconButton} icon="edit" label="Edit" data-act="edit" onClick=${edit} />`}
      <${IconButton} icon="retry" label="Try again" title="A wholly new answer" data-act="retry" onClick=${() => acts.retry(node)} />
      ${acts.hasChoice(node) && html`<${IconButton} icon="branch" label="From here" title="Keep what was chosen by hand, and draw the rest anew"
        data-act="from-here" onClick=${() => acts.fromHere(node)} />`}
      ${canGoOn && html`<${IconButton} icon="go" label="Continue" data-act="go-on" onClick=${() => acts.goOn(node)} />`}
      ${finish === "error" && node.setting && html`<${IconButton} icon="settings" label="Show the setting" data-act="fix" onClick=${() => acts.pointAt(node.setting, node.problem)} />`}`}
    ${siblingsOf(session.current, node).length > 1 && html`<${IconButton} icon="compare" label="Compare" data-act="compare" onClick=${() => acts.compare(node)} />`}
    ${!running && html`<${RemoveButton} node=${node} title="Delete this version and what follows it" />`}
  </div>`;
}

/** All versions of an answer, as the tree in which they branch off from one another. */
function Branches({ node }) {
  const { session, acts } = useContext(Page);
  const siblings = siblingsOf(session.current, node);
  if (siblings.length < 2) return null;
  const list = (branches) => html`<ul>${branches.map(({ node: one, branches: below }) => html`<li key=${one.id}>
    <button type="button" class="branch" aria-current=${one === node ? "true" : null} onClick=${() => acts.showVersion(one)}>${branchName(session.current, one)}</button>
    ${below.length > 0 && list(below)}</li>`)}</ul>`;
  return html`<div class="tree"><details><summary>All ${siblings.length} versions of this answer</summary>${list(branchesOf(session.current, node))}</details></div>`;
}

// ---- calls of tools --------------------------------------------------------------------------

/** The calls of an answer; where it is `open`, with a form in which a person answers for the tools. */
function Calls({ node, open }) {
  const { acts } = useContext(Page);
  const form = useElement();
  const results = useRef(/** @type {any[]} */ ([]));
  const { calls } = node;
  const card = ({ name, arguments: given }) => html`<div class="call"><span class="small">Calls <code>${name}</code></span>
    <pre tabindex="0" aria-label=${`Arguments of ${name}`}>${given}</pre></div>`;
  if (!open || !calls.length) return html`<div class="calls">${calls.map(card)}</div>`;
  const submit = (event) => {
    event.preventDefault();
    acts.giveResults(node, calls.map(({ id, name }, k) => ({ id, name, content: results.current[k] ?? "" })));
  };
  const key = (event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && form.current.requestSubmit();
  return html`<div class="calls"><form class="results" ref=${form} onSubmit=${submit} onKeyDown=${key}>
    ${calls.map((call, k) => html`${card(call)}<${Result} name=${`Result of ${call.name}${calls.length > 1 ? `, call ${k + 1}` : ""}`}
      tell=${(content) => (results.current[k] = content)} />`)}
    <div class="row end"><button type="submit" class="main" title="Ctrl+Enter sends, too">${calls.length > 1 ? "Send the results" : "Send the result"}</button></div>
  </form></div>`;
}

function Result({ name, tell }) {
  const [text, setText] = useState("");
  const [failed, setFailed] = useState(false);
  useEffect(() => tell(failed ? JSON.stringify({ error: text.trim() || "The tool failed." }) : text), [text, failed]);
  return html`<div class="result">
    <textarea rows="2" class="mono" spellcheck="false" aria-label=${name} value=${text} onInput=${(event) => setText(event.target.value)}
      placeholder=${failed ? "What went wrong" : "What the tool returned: text or JSON"}></textarea>
    <div class="row"><span class="quiet small" role="status">${failed ? "" : kindOf(text.trim())}</span>
      <label class="small" title="The model gets an object with the field error"><input type="checkbox" checked=${failed}
        onChange=${(event) => setFailed(event.target.checked)} /> Answer with an error</label></div>
  </div>`;
}

/** What a result is; text that only looks like JSON may be meant, and is sent as it is. */
function kindOf(text) {
  if (!/^[[{]/.test(text)) return "";
  try {
    JSON.parse(text);
    return "Valid JSON";
  } catch (error) {
    return `Not valid JSON: ${error.message}`;
  }
}

// ---- editing an answer -----------------------------------------------------------------------

/** The editor of an answer's text. What it does is decided by the server, so it stays open until that is
 *  done: a refusal is shown, with the cursor where the text is not allowed. */
function AnswerEditor({ node, start, close }) {
  const { acts } = useContext(Page);
  const { content, calls, settings: { form } } = node;
  const box = useElement();
  const [problem, setProblem] = useState("");
  const [waits, setWaits] = useState(false);
  /** Select a part, and bring that into view, which browsers do only for what has no focus yet. */
  const goTo = (from, to = from) => {
    box.current.blur();
    box.current.setSelectionRange(from, to);
    box.current.focus();
  };
  useLayoutEffect(() => goTo(start), []);
  const upTo = () => box.current.value.slice(0, box.current.selectionStart);
  const submit = async (text, options) => {
    if (text === content && !options.goOn) return close();
    setProblem("");
    setWaits(true);
    const refusal = await acts.retype(node, text, options);
    setWaits(false);
    if (!refusal) return close();
    setProblem(refusal.refused);
    if (refusal.at === undefined) box.current.focus();
    else goTo(refusal.at, box.current.value.length);
  };
  const goOn = (event) => {
    event.preventDefault();
    submit(box.current.value, { goOn: true });
  };
  const key = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) goOn(event);
    else if (event.key === "Escape") {
      event.stopPropagation();
      close();
    }
  };
  return html`<form class="editor" onSubmit=${goOn} onKeyDown=${key}>
    <textarea ref=${box} aria-label="Edited answer" class=${form ? "mono" : null} spellcheck=${form ? "false" : null} defaultValue=${content}
      rows=${Math.min(20, content.split("\n").length + Math.floor(content.length / 80) + 1)}></textarea>
    ${calls.length > 0 && html`<p class="quiet small">The edited version has no calls.</p>`}
    <p class="problem small" role="alert">${problem}</p>
    <div class="row end">
      <button type="button" disabled=${waits} onClick=${close}>Cancel</button>
      <button type="button" disabled=${waits} class="again" title="Keep what is before the cursor, and draw the rest anew"
        onClick=${() => submit(upTo(), { goOn: true, isAnew: true })}>Generate again from the cursor</button>
      <button type="button" disabled=${waits} title="Later turns see this text" onClick=${() => submit(box.current.value, { goOn: false })}>Save</button>
      <button type="submit" disabled=${waits} class="main" title="Let the model continue after this text">Go on from here</button>
    </div>
  </form>`;
}
