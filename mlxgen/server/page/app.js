// The page: puts the store, the session and the views together.

import { render } from "preact";
import { useLayoutEffect } from "preact/hooks";
import { makeActs } from "./acts.js";
import { Alternatives } from "./alternatives.js";
import { announcer } from "./announce.js";
import { get, onKeyNeeded } from "./api.js";
import { Chat } from "./chat.js";
import { newConversation } from "./conversation.js";
import { Database } from "./database.js";
import { byId, html, Icon, stopEscape } from "./html.js";
import { loadLook, loadPresets, loadStart } from "./kept.js";
import { MapPanel } from "./map.js";
import { answering, askModels, isLoaded, watchModels } from "./models.js";
import { Compare, EnginePanel, KeyDialog, KeysDialog, ModelPicker } from "./panels.js";
import { Session } from "./session.js";
import { SettingsPanel } from "./settings-form.js";
import { Sidebar } from "./sidebar.js";
import { Page, Store, useParts } from "./store.js";

const narrow = matchMedia("(max-width: 46rem)"); // as in style.css
const store = new Store({
  conversations: [], // without their nodes, the newest first
  current: newConversation(loadStart()), // the conversation that is shown
  runs: new Map(), // the answers in progress, by conversation
  models: [],
  loading: 0, // how many of them a person has asked for, which are not there yet
  modelsOpen: false, // whether somebody looks at their list
  params: null, // the defaults of the model that answers
  vision: false, // whether it takes images
  look: loadLook(),
  presets: loadPresets(),
  narrow: narrow.matches, // whether the window is as narrow as a phone
  problems: [], // {kind, text, action}
  notice: null, // what was done to a conversation: {text, action}
  done: null, // what was done in the conversation
  editing: null, // the id of the message that is edited
  token: null, // the token whose alternatives are shown
  compared: null, // {node, other}
  complaint: null, // what is wrong with a setting: {field, message}
  keyAsked: /** @type {any} */ (null), // {problem, answer}
  keysOpen: false,
  listOpen: false, // over the conversation
  listShut: false, // beside it
  mapOpen: false,
  settingsOpen: false,
  toEnd: 0, // how often the end of the conversation was asked for
});
const database = await Database.opened();
export const session = new Session(store, database, (kind, text, action) => acts.tell(kind, text, action));
const acts = makeActs({ store, session });

// ---- the frame -------------------------------------------------------------------------------

function App() {
  const { look: { theme }, current: { id }, listOpen, listShut, mapOpen, settingsOpen, token, compared, keyAsked, keysOpen } =
    useParts("look", "current", "listOpen", "listShut", "mapOpen", "settingsOpen", "token", "compared", "keyAsked", "keysOpen");
  useLayoutEffect(() => void (document.documentElement.dataset.theme = theme), [theme]);
  const classes = [listOpen && "list-open", listShut && "list-shut", mapOpen && "map-open"].filter(Boolean).join(" ");
  return html`<div id="frame" class=${classes}>
    <${Header} />
    <div class="columns">
      <${Sidebar} />
      <${Chat} />
      ${mapOpen && html`<${MapPanel} key=${id} close=${() => acts.toggle("map")} />`}
      ${settingsOpen && html`<${SettingsPanel} key=${id} />`}
    </div>
    ${token && html`<${Alternatives} key=${`${token.node.id} ${token.index}`} token=${token} close=${acts.closeToken} />`}
    <${EnginePanel} />
    ${compared && html`<${Compare} ...${compared} />`}
    ${keyAsked && html`<${KeyDialog} ...${keyAsked} />`}
    ${keysOpen && html`<${KeysDialog} />`}
  </div>`;
}

function Header() {
  const { look: { tokens }, narrow: isNarrow, mapOpen, settingsOpen, listOpen, listShut } =
    useParts("look", "narrow", "mapOpen", "settingsOpen", "listOpen", "listShut");
  const inside = (icon, label) => html`<${Icon} name=${icon} /><span class="label">${label}</span>`;
  return html`<header class="bar">
    <button type="button" id="show-list" class="icon" aria-expanded=${isNarrow ? listOpen : !listShut} aria-controls="list" title="Conversations"
      onClick=${acts.toggleList}><${Icon} name="menu" /><span class="unseen">Conversations</span></button>
    <h1><span class="brand">mlxgen</span> <${ModelPicker} /></h1>
    <div class="tools">
      <button type="button" id="show-tokens" aria-pressed=${tokens} title="Show the probability of each token; click a token to see its alternatives"
        onClick=${() => acts.setLook({ tokens: !tokens })}>${inside("tokens", "Tokens")}</button>
      <button type="button" id="show-map" aria-expanded=${mapOpen} title="Show the branches of the conversation as a map"
        onClick=${() => acts.toggle("map")}>${inside("map", "Map")}</button>
      <button type="button" id="show-engine" popovertarget="engine" onKeyDown=${stopEscape}>${inside("engine", "Engine")}</button>
      <button type="button" id="show-settings" aria-expanded=${settingsOpen} onClick=${() => acts.toggle("settings")}>${inside("settings", "Settings")}</button>
    </div>
  </header>`;
}

// ---- the server ------------------------------------------------------------------------------

/** Find out the models; this is also the first to find out that a key is needed. */
async function greet() {
  try {
    await askModels(store);
  } catch (error) {
    acts.tell("server", error.message, ["Try again", greet]);
  }
}

let learned = ""; // the model whose defaults are shown

/** Find out the defaults of the model that answers, once it is loaded: asking would load it. */
async function learn() {
  const { current, models: list } = store.state;
  const model = answering(list, current.settings.model);
  if (!model || !isLoaded(list, current.settings.model) || learned === model.id) return;
  learned = model.id;
  try {
    const { default_generation_settings: defaults, modalities } = await get(`/props?model=${encodeURIComponent(model.id)}`);
    store.set({ params: defaults.params, vision: modalities.vision });
  } catch (error) {
    learned = "";
    acts.tell("server", error.message, ["Try again", learn]);
  }
}

onKeyNeeded((problem) => new Promise((resolve) => {
  const answer = (given) => {
    store.set({ keyAsked: null });
    resolve(given);
  };
  store.set({ keyAsked: { problem, answer } });
}));

const SENTENCES = 20; // that stay on the page
const announce = announcer((sentence) => {
  const box = byId("announcer");
  box.append(Object.assign(document.createElement("p"), { textContent: sentence }));
  while (box.childElementCount > SENTENCES) box.firstElementChild.remove();
}, (node) => Boolean(store.state.current.nodes[node.id]));

// ---- the address -----------------------------------------------------------------------------

const idIn = (address) => /^#\/c\/([\w-]+)$/.exec(address)?.[1] ?? null;
let addressed = "";

/** The address names the conversation that is shown; another one is another step back. */
function writeAddress() {
  const { current } = store.state;
  const address = Object.keys(current.nodes).length ? `#/c/${current.id}` : "#/";
  if (location.hash !== address) history[addressed === current.id || !addressed ? "replaceState" : "pushState"](null, "", address);
  addressed = current.id;
}

async function followAddress() {
  const id = idIn(location.hash);
  if (!id) session.start();
  else if (id !== session.current.id && !(await session.open(id))) {
    acts.tell("act", "The conversation of this address is not kept in this browser.");
    addressed = "";
  }
  writeAddress();
}

// ---- keys ------------------------------------------------------------------------------------

function key(event) {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const command = event.ctrlKey || event.metaKey;
  const typing = event.target.closest?.("input, textarea, select");
  const act = command && event.shiftKey && event.key.toLowerCase() === "o" ? acts.startConversation
    : command && !event.shiftKey && event.key === "k" ? acts.search
    : command && !event.shiftKey && event.key === "b" ? acts.toggleList
    : !command && !typing && event.key === "/" ? acts.focusBox
    : !command && !typing && event.key === "?" ? () => store.set({ keysOpen: true })
    : event.key === "Escape" ? () => session.stop() : null;
  if (!act) return;
  event.preventDefault();
  act();
}

// ---- the start -------------------------------------------------------------------------------

store.subscribe(learn);
watchModels(store);
store.subscribe(() => announce(store.state.runs.get(store.state.current.id)?.node ?? null));
await session.begin(idIn(location.hash), { anew: location.hash === "#/" }).catch((error) =>
  acts.tell("stored", `The stored conversations cannot be opened: ${error.message} Reload the page; if that does not help, clear the data of this site in the browser.`));
store.subscribe(writeAddress);
writeAddress();
addEventListener("popstate", followAddress);
document.addEventListener("keydown", key);
narrow.addEventListener("change", () => store.set({ narrow: narrow.matches }));
// What is written later may be lost, and a phone may end a page that is hidden without more ado.
for (const name of ["beforeunload", "pagehide", "visibilitychange"]) addEventListener(name, () => void session.keepAll());
render(html`<${Page.Provider} value=${{ store, session, acts }}><${App} /><//>`, byId("page"));
session.tellOfSetAside();
greet();
// On a phone the focus would open the keyboard over half of the page.
if (matchMedia("(pointer: fine)").matches) byId("message").focus();
