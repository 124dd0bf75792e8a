// What opens above the page: the models, the engine, two versions side by side, the API key, the keys.

import { useContext, useEffect, useLayoutEffect, useState } from "preact/hooks";
import { getText } from "./api.js";
import { branchName, childrenOf, commonLength, pathOf, siblingsOf } from "./conversation.js";
import { engineOf, grouped, inBytes, statsOf } from "./figures.js";
import { html, Icon, stopEscape, useElement } from "./html.js";
import { askModels, find, isGone, stateOf } from "./models.js";
import { DRAFTERS } from "./records.js";
import { Page, useChanges, useParts } from "./store.js";
import { plainTokens } from "./tokens.js";

// ---- the models ------------------------------------------------------------------------------

const shortOf = (name) => name.split("/").at(-1);

/** The model of the conversation: its name, or a choice if the server has several. */
export function ModelPicker() {
  const { store, acts } = useContext(Page);
  const { models: list, current: { settings } } = useParts("models", "current");
  useChanges(settings);
  const menu = useElement();
  const gone = isGone(list, settings.model);
  const model = gone ? { id: settings.model, status: { value: "gone", failed: true } } : find(list, settings.model);
  useEffect(() => {
    if (model) document.title = `${model.id} · mlxgen`;
  }, [model?.id]);
  if (!model) return html`<span id="model" class="quiet"></span>`;
  if (list.length === 1 && !gone) return html`<span id="model" class="quiet" title=${model.id}>${shortOf(model.id)}</span>`;
  const state = gone ? "not on this server" : stateOf(model.status).toLowerCase();
  const choose = (id) => {
    menu.current.hidePopover();
    acts.chooseModel(id);
  };
  return html`<span id="model" class="quiet" title=${model.id}>
    <button type="button" class="picker" popovertarget="models" onKeyDown=${stopEscape} aria-label=${`Model: ${model.id}, ${state}. Choose another one`}>
      <span class="mark" aria-hidden="true" data-state=${model.status.failed ? "failed" : model.status.value}></span>
      <span class="name">${shortOf(model.id)}</span><${Icon} name="down" /></button></span>
    <div id="models" class="popover menu" popover="auto" role="dialog" aria-label="Models" ref=${menu} onKeyDown=${stopEscape}
      onToggle=${({ newState }) => {
        store.set({ modelsOpen: newState === "open" });
        askModels(store).catch(() => {}); // the list is as it was
      }}>
      <h2>Models</h2>
      <ul>${list.map(({ id, status, parent }) => html`<li key=${id}>
        <button type="button" class="entry" aria-current=${id === model.id ? "true" : null} onClick=${() => choose(id)}>
          <span class="mark" data-state=${status.failed ? "failed" : status.value} aria-hidden="true"></span>
          <span class="name">${id}${parent && html`<span class="quiet small"> on ${shortOf(parent)}</span>`}</span>
          <span class="quiet small">${stateOf(status)}</span></button>
        ${status.value === "loading" && status.progress !== undefined && html`<progress max="1" value=${status.progress} aria-label=${`How far ${id} is loaded`} />`}
        ${status.failed && html`<p class="problem small">${status.reason}</p>`}</li>`)}</ul>
      <p class="quiet small">For this conversation. Another model may be unloaded if there is no room beside it.</p>
    </div>`;
}

// ---- the engine ------------------------------------------------------------------------------

const EVERY = 1000; // milliseconds

/** The parts of memory that are shown in the bar, in this order. */
const PARTS = [["weights", "Weights"], ["kv", "KV caches of answers"], ["prefixes", "Prefix cache"]];

const share = (part, whole) => `${whole ? Math.round((100 * part) / whole) : 0}\u00a0%`;

/** What the engine is doing; the server is asked only while this is open. */
export function EnginePanel() {
  const [open, setOpen] = useState(false);
  const [found, setFound] = useState(/** @type {any} */ (null)); // {engine, speed} or {problem}
  useEffect(() => {
    if (!open) return undefined;
    let before = /** @type {any} */ (null);
    const ask = async () => {
      try {
        const [engine, at] = [engineOf(await getText("/metrics")), performance.now()];
        const speed = before ? Math.max(0, engine.tokens - before.engine.tokens) / ((at - before.at) / 1000) : 0;
        before = { engine, at };
        setFound({ engine, speed });
      } catch (error) {
        setFound({ problem: error.message });
      }
    };
    ask();
    const timer = setInterval(ask, EVERY);
    return () => clearInterval(timer);
  }, [open]);
  return html`<div id="engine" class="popover menu" popover="auto" role="dialog" aria-labelledby="engine-title" onKeyDown=${stopEscape}
    onToggle=${({ newState }) => setOpen(newState === "open")}>
    <h2 id="engine-title">Engine</h2>
    ${found?.problem ? html`<p class="problem">${found.problem}</p>` : found && html`<${Engine} ...${found} />`}
  </div>`;
}

function Engine({ engine, speed }) {
  const { bytes, device, generating, reading, waiting, prompt, cached, drafts } = engine;
  const sequences = [[generating, "generating"], [reading, "reading"], [waiting, "waiting"]].filter(([count]) => count).map(([count, what]) => `${count} ${what}`);
  const work = [
    ["Device", device],
    ["Answers", sequences.length ? sequences.join(", ") : "None"],
    ["Speed now", generating ? `${grouped(speed)} tokens/s in all` : "Idle"],
    ["Prompts", prompt ? `${grouped(prompt)} tokens, ${share(cached, prompt)} cached` : "None yet"],
    ...drafts.map(({ drafter, drafted, accepted }) =>
      [`Drafts ${DRAFTERS[drafter] ?? drafter}`, `${grouped(accepted)} of ${grouped(drafted)} stood (${share(accepted, drafted)})`]),
  ];
  const memory = [
    ["Limit of both caches", inBytes(bytes.caches)], ["Held by MLX now", inBytes(bytes.held)], ["Limit of the device", inBytes(bytes.device)],
    ...(bytes.diskLimit ? [["Prefixes on disk", `${inBytes(bytes.disk)} of ${inBytes(bytes.diskLimit)}`]] : []),
  ];
  const rows = (list) => list.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`);
  const said = PARTS.map(([part, name]) => `${name} ${inBytes(bytes[part])}`).join(", ");
  return html`<dl>${rows(work)}</dl><h3>Memory</h3>
    <div class="memory" role="img" aria-label=${`Memory: ${said}, of ${inBytes(bytes.device)}`}>
      ${PARTS.map(([part]) => html`<span data-part=${part} style=${{ "--part": bytes.device ? bytes[part] / bytes.device : 0 }}></span>`)}</div>
    <dl>${PARTS.map(([part, name]) => html`<dt><span class="swatch" data-part=${part}></span>${name}</dt><dd>${inBytes(bytes[part])}</dd>`)}${rows(memory)}</dl>`;
}

// ---- dialogs ---------------------------------------------------------------------------------

/** A dialog that is open as long as it is drawn; `close()` is called when a person closes it. */
function Dialog({ id, close, children, ...props }) {
  const dialog = useElement();
  useLayoutEffect(() => {
    const element = dialog.current;
    element.showModal();
    return () => element.close(); // which gives the focus back
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    close();
  };
  return html`<dialog id=${id} ref=${dialog} aria-labelledby=${`${id}-title`} onCancel=${cancel} ...${props}>${children}</dialog>`;
}

/** Two versions of an answer side by side, token by token: by default the one that it branches off from. */
export function Compare({ node, other }) {
  const { store, session, acts } = useContext(Page);
  const { current } = session;
  const versions = siblingsOf(current, node);
  if (other && !versions.includes(other)) versions.push(...siblingsOf(current, other));
  const first = other ?? versions.find((one) => one.id === node.from?.node) ?? versions.find((one) => one !== node);
  const [chosen, setChosen] = useState([first, node]);
  const close = () => store.set({ compared: null });
  const paths = chosen.map((one) => pathOf(current, one));
  const common = commonLength(paths[0], paths[1]);
  return html`<${Dialog} id="compare" close=${close}>
    <div class="row"><h2 id="compare-title">Two versions side by side</h2><button type="button" onClick=${close}>Close</button></div>
    <p role="status" class="small">${common ? `The first ${common} ${common === 1 ? "token is" : "tokens are"} the same.` : "They differ from the first token."}</p>
    <div class="sides">${chosen.map((one, k) => {
      const tokens = plainTokens(paths[k], common);
      const side = k ? "Right" : "Left";
      return html`<section aria-label=${side}>
        <select aria-label=${`${side} version`} onChange=${({ target }) => setChosen(chosen.map((each, j) => (j === k ? current.nodes[target.value] : each)))}>
          ${versions.map((each) => html`<option value=${each.id} selected=${each === one}>${branchName(current, each)}</option>`)}</select>
        <div class="token-text" tabindex="0" role="group" aria-label=${`${side} text`}>
          ${paths[k].length ? html`<span class="common">${tokens.slice(0, common)}</span>${tokens.slice(common)}` : one.content}</div>
        <p class="quiet small">${statsOf(one, { answered: childrenOf(current, one).length > 0 })}</p>
        <button type="button" onClick=${() => {
          close();
          acts.showVersion(one);
        }}>Continue with this one</button>
      </section>`;
    })}</div>
  </${Dialog}>`;
}

/** The question for the API key; `answer(key)` gets it, or null. */
export function KeyDialog({ problem, answer }) {
  const input = useElement();
  useLayoutEffect(() => input.current.focus(), [problem]);
  const submit = (event) => {
    event.preventDefault();
    answer(input.current.value.trim() || null);
  };
  return html`<${Dialog} id="key" close=${() => answer(null)}><form id="key-form" onSubmit=${submit}>
    <h2 id="key-title">This server needs an API key</h2>
    <p id="key-problem" role="alert">${problem}</p>
    <label for="key-value">API key</label>
    <input id="key-value" ref=${input} type="password" autocomplete="off" spellcheck="false" required />
    <p class="quiet small">The page keeps it until you close this tab.</p>
    <div class="row end"><button type="button" onClick=${() => answer(null)}>Cancel</button><button type="submit" class="main">Use the key</button></div>
  </form></${Dialog}>`;
}

/** All keys that the page listens to. */
export function KeysDialog() {
  const { store } = useContext(Page);
  const close = () => store.set({ keysOpen: false });
  return html`<${Dialog} id="all-keys" close=${close}>
    <div class="row"><h2 id="all-keys-title">Keys</h2><button type="button" onClick=${close}>Close</button></div>
    <dl class="keys">${KEYS.map(([keys, what]) => html`<dt>${keys.map((key) => html`<kbd>${key}</kbd>`)}</dt><dd>${what}</dd>`)}</dl>
  </${Dialog}>`;
}

/** @type {[string[], string][]} */
const KEYS = [
  [["Ctrl", "Shift", "O"], "New conversation"],
  [["Ctrl", "K"], "Search conversations"],
  [["Ctrl", "B"], "Show or hide the conversations"],
  [["/"], "Go to the box for messages"],
  [["Enter"], "Send"],
  [["Shift", "Enter"], "New line"],
  [["↑"], "Edit the last message, from the empty box"],
  [["Escape"], "Stop the answer, or close what is open"],
  [["F2"], "Rename the conversation that has the focus"],
  [["?"], "Show these keys"],
];
