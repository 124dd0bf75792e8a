// The page: puts the parts together, and shows what the session has.

import { AlternativesPanel } from "./alternatives.js";
import { announce, announceStart, announceText } from "./announce.js";
import { get, onKeyNeeded } from "./api.js";
import { CompareDialog } from "./compare.js";
import { Composer } from "./composer.js";
import { branchAt, pathOf, shownIn } from "./conversation.js";
import { isFull } from "./database.js";
import { button, byId, el, setText } from "./dom.js";
import { EnginePanel } from "./engine-panel.js";
import { drawIcons } from "./icons.js";
import { makeKeyDialog } from "./key-dialog.js";
import { Legend } from "./legend.js";
import { libraryActs } from "./library.js";
import { MapPanel } from "./map.js";
import { viewOf } from "./messages.js";
import { added, ContextMeter, usedBy } from "./meter.js";
import { ModelPicker } from "./model-picker.js";
import { Models } from "./models.js";
import { Notice } from "./notice.js";
import { loadLook, saveLook } from "./preferences.js";
import { prune, putBack } from "./pruning.js";
import { Scrolling } from "./scrolling.js";
import { Session } from "./session.js";
import { anew, FieldError, formName, reset, summaryOf } from "./settings.js";
import { SettingsForm } from "./settings-form.js";
import { Sidebar } from "./sidebar.js";
import { showThemes } from "./theme.js";
import { showWelcome } from "./welcome.js";

const look = loadLook();
const views = new Map(); // of the nodes that are shown, by id
let shownConversation = null;
let frame = 0;

drawIcons(document);
showThemes(byId("theme"), look.theme, (theme) => {
  look.theme = theme;
  saveLook(look);
});

document.body.inert = true; // until the conversations are loaded
const session = await Session.opened({
  changed: redraw,
  full: (error) => showProblem(isFull(error)
    ? "This browser has no room left for conversations. Delete some to keep this one."
    : `This conversation could not be stored: ${error.message}`),
  thinned: (count) => showProblem(count === 1
    ? "This browser is almost full: the oldest conversation lost the alternatives of its tokens."
    : `This browser is almost full: the ${count} oldest conversations lost the alternatives of their tokens.`),
  setAside: tellOfSetAside,
}).catch((error) => {
  document.body.inert = false;
  showProblem(`The stored conversations cannot be opened: ${error.message} Reload the page; if that does not help, clear the data of this site in the browser.`);
  throw error;
});

const notice = new Notice(byId("notice"));
const done = new Notice(byId("done")); // in the conversation
const panel = new AlternativesPanel(byId("alternatives"), {
  choose: (node, index, id) => putInstead(index, () => session.choose(node, index, id), id),
  type: (node, index, text) => putInstead(index, () => session.type(node, index, text)),
  again: (node, index) => acts.again(node, index),
  sample: (node, index) => map.sampleFrom(node, index),
});
const legend = new Legend(byId("legend"));
const compare = new CompareDialog(byId("compare"), (node) => acts.show(node));
const settings = new SettingsForm(() => {
  session.settingsChanged();
  setText(byId("in-force"), summaryOf(session.current.settings));
});
const composer = new Composer({
  send,
  isRunning: () => session.runOf(session.current) !== null,
  stop: () => session.stop(),
  editLast: () => editLast(),
});
const map = new MapPanel(session, {
  go: (node, at, { focus }) => {
    session.show(node);
    goTo(node, at, focus);
  },
  compare: (one, other) => compare.open(session.current, one, other),
  isNarrow: () => matchMedia("(max-width: 46rem)").matches,
});
const models = new Models(() => render());
const picker = new ModelPicker(models, (name) => {
  session.current.settings.model = name;
  session.settingsChanged();
  render();
  attempt(() => models.load(name));
});
new EnginePanel();
const meter = new ContextMeter(byId("meter"), byId("message"), {
  count: (text) => (models.isLoaded(session.current.settings.model) ? added(session.current, text) : null),
  begin: () => byId("new").click(),
});
const scrolling = new Scrolling(byId("scroll"), byId("newest"));
const sidebar = new Sidebar({
  startConversation: () => {
    session.start();
    render();
    composer.focus();
  },
  openConversation: (id) => {
    session.open(id);
    render();
  },
  openMessage: async (id, node) => {
    await session.open(id);
    if (session.current.nodes[node]) session.show(session.current.nodes[node]);
    render();
    seek(views.get(node)?.element);
  },
  ...libraryActs({ session, notice, render: () => render(), refuse: (sentence) => showProblem(sentence) }),
});

/** What the views of messages may ask for. */
const acts = {
  isRunning: (node) => session.isRunning(node),
  redraw,
  showsTokens: () => look.tokens,
  retry: (node) => attempt(() => session.retry(node)),
  goOn: (node) => attempt(async () => {
    if (!(await session.goOn(node))) done.say(`The ${formName(node.settings) || "answer format"} lets nothing follow.`);
  }),
  again: (node, at) => attempt(async () => {
    if (await session.again(node, at)) done.say("It came out the same. With a higher temperature, it can differ.");
  }),
  edit: (node, message) => attempt(() => session.edit(node, message)),
  retype,
  remove,
  showVersion(node) {
    show(node, '[data-act="edit"]');
  },
  giveResults: (node, results) => attempt(() => session.giveResults(node, results)),
  compare: (node) => compare.open(session.current, node),
  loadOf: (node) => models.waitFor(node.settings.model),
  settingOf: (node) => (node.finish === "error" ? node.setting : null),
  showSetting: (node) => settings.pointAt(node.setting, node.problem),
  walk(node, by) {
    show(session.walk(node, by), `[data-act="${by > 0 ? "forward" : "back"}"]`);
  },
  show(node) {
    session.show(node);
    show(node, ".tree summary");
  },
  open(node, index, anchor) {
    panel.open(anchor, {
      node, index, record: pathOf(session.current, node)[index],
      has: (id) => Boolean(branchAt(session.current, node, index, id)),
    });
  },
};

/** Show another version, with the focus at the same place in it. */
function show(node, place) {
  render();
  views.get(node.id).element.querySelector(place)?.focus();
}

/** Bring a message into view, and mark it until something else is done. */
function seek(element) {
  if (!element) return;
  element.scrollIntoView({ block: "center" });
  element.classList.add("sought");
  addEventListener("pointerdown", () => element.classList.remove("sought"), { once: true });
  addEventListener("keydown", () => element.classList.remove("sought"), { once: true });
}

/** Bring a node into sight, and the focus to it: with tokens to that at `at`. */
function goTo(node, at, focus) {
  render();
  const view = views.get(node.id);
  const token = look.tokens && at !== null ? view.tokens?.token(Math.min(at, pathOf(session.current, node).length - 1)) : null;
  const place = token ?? view.element.querySelector("article");
  place.scrollIntoView({ block: "nearest" });
  if (!focus) return;
  if (token) view.tokens.focus(Number(token.dataset.index));
  else {
    place.tabIndex = -1;
    place.focus({ preventScroll: true });
  }
}

// ---- showing ---------------------------------------------------------------------------------

function redraw() {
  frame ||= requestAnimationFrame(render);
}

function render() {
  cancelAnimationFrame(frame);
  frame = 0;
  const { current } = session;
  if (current !== shownConversation) changeConversation(current);
  scrolling.around(() => {
    showMessages(current);
    showState(current);
  });
  map.update();
}

function changeConversation(current) {
  shownConversation = current;
  map.forget();
  views.clear();
  byId("messages").replaceChildren();
  panel.close({ refocus: false });
  settings.edit(current.settings);
  scrolling.toStart();
}

function showMessages(current) {
  const list = byId("messages");
  const nodes = shownIn(current);
  const wanted = new Set(nodes.map((node) => node.id));
  for (const [id, view] of views) {
    if (wanted.has(id)) continue;
    view.element.remove();
    views.delete(id);
  }
  nodes.forEach((node, k) => {
    if (!views.has(node.id)) views.set(node.id, viewOf(node, current, acts));
    const view = views.get(node.id);
    if (list.children[k] !== view.element) list.insertBefore(view.element, list.children[k] ?? null);
    view.update();
  });
  legend.update(new Set([...views.values()].flatMap((view) => [...(view.tokens?.marks ?? [])])));
  showWelcome(byId("welcome"), !nodes.length, (example) => {
    const { settings: used } = session.current;
    reset(used, example.settings);
    settings.edit(used);
    session.settingsChanged();
    if (example.tokens) showTokens(true);
    if (example.ways) map.open({ focus: false });
    send({ text: example.text }, example.ways);
  });
}

let wasRunning = null;

function showState(current) {
  const run = session.runOf(current);
  sidebar.update(session.conversations, current, (one) => session.runOf(one) !== null);
  setText(byId("in-force"), summaryOf(current.settings));
  composer.update(current, run !== null);
  const model = current.settings.model;
  picker.update(model);
  meter.update({ ...usedBy(shownIn(current)), context: models.answering(model)?.max_model_len ?? null });
  models.watch("answer", run !== null && !run.node.tokens.length && !models.isLoaded(run.node.settings.model));
  learn().catch((error) => showProblem(error.message));
  byId("messages").setAttribute("aria-busy", String(run !== null));
  speak(run?.node ?? null);
}

/** Tell screen readers about the answer that is growing or has just ended. */
function speak(node) {
  if (node && wasRunning !== node) announceStart(node.content);
  if (node) announceText(node.content);
  if (!node && wasRunning && session.current.nodes[wasRunning.id]) {
    announceText(wasRunning.content, { all: true });
    const { finish, problem } = wasRunning;
    if (!problem) announce(finish === "stopped" ? "Stopped." : "End of the answer.");
  }
  wasRunning = node;
}

function showProblem(sentence, ...more) {
  byId("problem").replaceChildren(...(sentence ? [el("p", {}, sentence, " ", ...more, " ", button("Dismiss", () => showProblem("")))] : []));
}

// ---- doing -----------------------------------------------------------------------------------

/** Do something that the settings or the server may refuse, and show what went wrong. */
async function attempt(work) {
  showProblem("");
  try {
    await work();
    return true;
  } catch (error) {
    if (error instanceof FieldError) settings.pointAt(error.field, error.message);
    else showProblem(error.message);
    return false;
  }
}

function send(message, ways = 1) {
  scrolling.toEnd();
  return attempt(() => session.send(message, ways));
}

/** Edit the last message of the user; false if there is none. */
function editLast() {
  const last = shownIn(session.current).findLast((node) => node.role === "user");
  views.get(last?.id)?.edit();
  return Boolean(last);
}

/** Give an answer another text; resolves to {node}, or to {refused, at}. */
async function retype(node, text, { goOn, isAnew }) {
  showProblem("");
  try {
    const settings = isAnew ? anew(node.settings, session.current.settings) : node.settings;
    return await session.retype(node, text, { goOn, settings });
  } catch (error) {
    return { refused: error.message };
  }
}

/** Delete a message or an answer with what follows, until that is undone. */
async function remove(node) {
  const { current } = session;
  const pruned = await session.change((conversation) => prune(conversation, [node]));
  render();
  composer.focus();
  done.say("Deleted.", ["Undo", async () => {
    if (session.current !== current) await session.open(current.id);
    await session.change((conversation) => putBack(conversation, pruned));
    show(node, '[data-act="remove"]');
  }]);
}

/** Put something else in a token's place, and continue from there if it is allowed. */
async function putInstead(index, work, id = null) {
  try {
    const { node: branch, refused } = await work();
    if (refused) {
      panel.refuse(refused, id);
      if (!panel.isOpen) showProblem(refused);
      return;
    }
    panel.close({ refocus: false });
    render();
    views.get(branch.id)?.tokens?.focus(index);
  } catch (error) {
    panel.say(error.message);
    if (!panel.isOpen) showProblem(error.message);
  }
}

/** Show answers as tokens, or as text. */
function showTokens(wanted) {
  if (look.tokens !== wanted) {
    look.tokens = wanted;
    saveLook(look);
  }
  byId("show-tokens").setAttribute("aria-pressed", String(wanted));
  byId("legend").hidden = !wanted;
  render();
}

let learned = ""; // the model whose defaults are shown

/** Find out the defaults of the model that answers, once it is loaded: asking would load it. */
async function learn() {
  const { model: name } = session.current.settings;
  const model = models.answering(name);
  if (!models.isLoaded(name) || learned === model.id) return;
  learned = model.id;
  const { default_generation_settings: defaults, modalities } = await get(`/props?model=${encodeURIComponent(model.id)}`);
  settings.showDefaults(defaults.params);
  composer.takeImages(modalities.vision);
}

/** Find out the models; this is also the first to find out that a key is needed. */
async function greet() {
  learned = "";
  try {
    await models.ask();
  } catch (error) {
    showProblem(error.message, button("Try again", () => {
      showProblem("");
      greet();
    }));
  }
}

/** Say that some stored conversations could not be read; the rest is unaffected. */
function tellOfSetAside(count) {
  const said = count === 1
    ? "A stored conversation cannot be read and was set aside. The others are unaffected."
    : `${count} stored conversations cannot be read and were set aside. The others are unaffected.`;
  showProblem(said, button(count === 1 ? "Delete it" : "Delete them", () => {
    session.removeSetAside();
    showProblem("");
  }));
}

onKeyNeeded(makeKeyDialog(byId("key")));
addEventListener("pagehide", () => session.keepAll());
addEventListener("visibilitychange", () => document.hidden && session.keepAll()); // a phone may end it without more ado
if (session.keepsNothing) setText(byId("kept"), "This browser stores nothing; everything is lost when you close the page.");
document.body.inert = false;
byId("show-tokens").addEventListener("click", () => showTokens(!look.tokens));
showTokens(look.tokens);
greet();
// On a phone the focus would open the keyboard over half of the page.
if (matchMedia("(pointer: fine)").matches) composer.focus();
