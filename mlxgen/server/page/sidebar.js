// The list of conversations: opening, renaming, deleting, downloading and searching them.

import { useContext, useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ago, fullDate } from "./figures.js";
import { partsOf, patternOf } from "./finding.js";
import { byId, html, Icon, MenuButton, Notice, useElement } from "./html.js";
import { THEMES } from "./kept.js";
import { drawn, Page, useParts, useStore } from "./store.js";

const MOST = 50; // conversations that a search shows
const MINUTE = 60_000;

export function Sidebar() {
  const { store, session, acts } = useContext(Page);
  const { conversations, current, notice } = useParts("conversations", "current", "notice");
  const [query, setQuery] = useState("");
  const [found, setFound] = useState(/** @type {any} */ (null));
  const pattern = patternOf(query);
  const files = useElement();
  useEveryMinute();

  const search = async (text) => {
    setQuery(text);
    const wanted = patternOf(text);
    const result = wanted && { text, hits: await session.search(wanted) };
    if (byId("find").value === text) setFound(result); // or something else was typed meanwhile
  };
  const result = pattern ? found : null;
  const all = result ? conversations.filter(({ id }) => result.hits.has(id)) : conversations;
  const isNew = !conversations.some(({ id }) => id === current.id);
  const key = (event) => {
    if (event.key !== "Escape" || !store.state.narrow || !store.state.listOpen) return;
    event.stopPropagation();
    acts.toggleList();
    byId("show-list").focus();
  };
  const keyInSearch = (event) => {
    if (event.key === "ArrowDown") byId("conversations").querySelector("button")?.focus();
    if (event.key !== "Escape" || !query) return;
    event.stopPropagation();
    search("");
  };
  const chosen = ({ target }) => {
    acts.importFiles([...target.files]);
    target.value = ""; // the same file can be chosen again
  };
  const items = [
    { icon: "download", label: "Download all as JSON", act: () => acts.download(conversations.map(({ id }) => id), "json") },
    { icon: "upload", label: "Import …", act: () => files.current.click() },
  ];
  return html`<nav id="list" aria-label="Conversations" onKeyDown=${key}>
    <button type="button" id="new" class="wide" aria-current=${isNew ? "page" : null} onClick=${acts.startConversation}><${Icon} name="pen" />New conversation</button>
    <div class="finder">
      <input id="find" type="search" placeholder="Search" aria-label="Search conversations" autocomplete="off" spellcheck="false" value=${query}
        onInput=${(event) => search(event.target.value)} onKeyDown=${keyInSearch} />
      <${MenuButton} label="All conversations" items=${items} />
      <input id="files" ref=${files} type="file" aria-label="Conversations to import" accept=".json,application/json" multiple hidden onChange=${chosen} />
    </div>
    <p id="found" class="quiet small" role="status">${result ? countOf(all.length) : ""}</p>
    <ul id="conversations">${(result ? all.slice(0, MOST) : all).map((head) => html`<${Entry} key=${head.id} head=${head} current=${head.id === current.id}
      pattern=${pattern} result=${result?.hits.get(head.id)} />`)}</ul>
    <${Notice} id="notice" notice=${notice} close=${() => store.set({ notice: null })} />
    <div class="foot">
      <p id="kept" class="quiet small">${session.keepsNothing ? "This browser stores nothing; everything is lost when you close the page." : "Kept in this browser only."}</p>
      <${Themes} />
    </div>
  </nav>`;
}

const countOf = (count) => {
  if (!count) return "Nothing found.";
  const said = count === 1 ? "1 conversation" : `${count} conversations`;
  return count > MOST ? `${said}; the newest ${MOST} are shown.` : `${said}.`;
};

/** The times in the list grow old. */
function useEveryMinute() {
  const [, again] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => again((count) => count + 1), MINUTE);
    return () => clearInterval(timer);
  }, []);
}

function Entry({ head: { id, title: given, changed }, current, pattern, result }) {
  const { acts } = useContext(Page);
  const running = useStore(({ runs }) => runs.has(id));
  const [renaming, setRenaming] = useState(false);
  const title = given || "New conversation";
  const end = async (renamed) => {
    setRenaming(false);
    if (renamed.trim() && renamed.trim() !== given) acts.rename(id, renamed.trim());
    await drawn();
    byId("conversations").querySelector(`[data-id="${id}"]`)?.focus();
  };
  const items = [
    { icon: "edit", label: "Rename", act: () => setRenaming(true) },
    { icon: "download", label: "Download as JSON", act: () => acts.download([id], "json") },
    { icon: "download", label: "Download as Markdown", act: () => acts.download([id], "md") },
    { icon: "remove", label: "Delete", act: () => acts.removeConversation(id, title) },
  ];
  return html`<li>
    ${renaming ? html`<${TitleBox} title=${given} end=${end} />` : html`<button type="button" class="entry" data-id=${id}
      aria-label=${running ? `${title} …` : title} title=${`${title}\n${fullDate(changed)}`} aria-current=${current ? "page" : null}
      onClick=${() => acts.openConversation(id)} onDblClick=${() => setRenaming(true)} onKeyDown=${(event) => event.key === "F2" && setRenaming(true)}>
      <span class="title">${pattern ? partsOf(title, pattern).map((part, k) => (k % 2 ? html`<mark>${part}</mark>` : part)) : title}</span>
      <span class=${running ? "when running" : "when"} aria-hidden="true">${running ? "answering" : ago(changed)}</span>
    </button>`}
    <${MenuButton} label=${`More for “${title}”`} items=${items} />
    ${result?.hits.length > 0 && html`<ul class="hits">
      ${result.hits.map(({ node, before, match, after }) => html`<li><button type="button" onClick=${() => acts.openMessage(id, node)}>
        <span>${before}<mark>${match}</mark>${after}</span></button></li>`)}
      ${result.more > 0 && html`<li><p class="quiet small">and ${result.more} more</p></li>`}
    </ul>`}
  </li>`;
}

/** A title that is renamed in its place: Enter keeps what is typed, Escape what was there. */
function TitleBox({ title, end }) {
  const box = useElement();
  const over = useRef(false);
  const finish = (text) => {
    if (over.current) return;
    over.current = true;
    end(text);
  };
  useLayoutEffect(() => {
    box.current.focus();
    box.current.select();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    finish(box.current.value);
  };
  const key = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    finish("");
  };
  return html`<form onSubmit=${submit}><input ref=${box} aria-label="Title" maxlength="200" defaultValue=${title}
    onBlur=${(event) => finish(event.target.value)} onKeyDown=${key} /></form>`;
}

const NAMES = { system: "System", light: "Light", dark: "Dark" };

/** The choice of light or dark colours, or of what the system has. */
function Themes() {
  const { acts } = useContext(Page);
  const { theme } = useStore((state) => state.look);
  return html`<fieldset id="theme" class="choice"><legend class="unseen">Colors</legend>
    ${THEMES.map((one) => html`<label title=${`Colors: ${NAMES[one].toLowerCase()}`}>
      <input type="radio" name="theme" value=${one} checked=${one === theme} class="unseen" onChange=${() => acts.setLook({ theme: one })} />
      <${Icon} name=${one} /><span class="unseen">${NAMES[one]}</span></label>`)}
  </fieldset>`;
}
