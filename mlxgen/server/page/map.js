// The map: the conversation's branches as a picture, and what can be done with a node of it.

import { useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { html, Icon, useElement } from "./html.js";
import { counted } from "./figures.js";
import { loadZoom, MapPicture } from "./map-picture.js";
import { inLogs, isFound, placeOf, treeOf, whatOf, widthOf } from "./map-tree.js";
import { Search } from "./search.js";
import { drawn, Page, useChanges, useParts, useStore } from "./store.js";

const WAYS = [2, 3, 4, 6, 8];

/** It begins anew with each conversation. */
export function MapPanel({ close }) {
  const { store, session, acts } = useContext(Page);
  const { current, compared, runs } = useParts("current", "compared", "runs");
  const run = runs.get(current.id) ?? null;
  const grown = useStore((_, all) => run?.nodes.map((node) => all.revision(node)).join() ?? "");
  const version = useStore((_, all) => all.revision(current));
  useChanges(current.settings);
  const [folded, setFolded] = useState(new Set());
  const [selected, setSelected] = useState(/** @type {string | null} */ (null));
  const [query, setQuery] = useState("");
  const [said, say] = useState("");
  const [pruned, setPruned] = useState(/** @type {any[]} */ ([])); // functions that put back what was pruned
  const [heat, setHeat] = useState("");
  const [ways, setWays] = useState("4");
  const [asks, setAsks] = useState(false); // for the options of a search
  const [search, setSearch] = useState(/** @type {any} */ (null));
  const [d3, setD3] = useState(/** @type {any} */ (null));
  const view = useRef(/** @type {any} */ (null));

  const tree = useMemo(() => treeOf(current, run?.nodes, folded), [current, version, grown, folded, run]);
  const nodes = useMemo(() => flat(tree), [tree]);
  const asked = nodes.filter(({ kind, role }) => kind === "message" && role === "user").length;
  useLayoutEffect(() => setSelected(null), [asked]); // what was said last is selected
  const isThere = nodes.some(({ id }) => id === selected);
  const id = isThere ? selected : (nodes.filter((node) => node.shown).at(-1) ?? nodes[0]).id;
  const node = nodes.find((one) => one.id === id);
  const found = query.trim() ? nodes.filter((one) => isFound(one, query)).map((one) => one.id) : [];
  useEffect(() => void loadZoom().then(setD3), []);

  // ---- doing -----------------------------------------------------------------------------------

  const select = async (next, { focus = false } = {}) => {
    setSelected(next);
    await drawn();
    if (focus) view.current?.focus();
  };
  /** The answer that stands for a node: the shown one, if it leads through it. */
  const answerOf = ({ answers }) => answers?.find((answer) => current.chosen[answer.parent] === answer.id) ?? answers?.[0];
  const settingsOf = (one) => answerOf(one)?.settings ?? current.settings;
  const placeFor = (one) => placeOf(one, answerOf(one));
  const attempt = async (work) => {
    say("Asking the server …");
    try {
      await work();
    } catch (error) {
      say(error.message);
    }
  };
  /** Show a node in the conversation; where the map lies over it, the map stays until that is asked for. */
  const choose = (one, { read = false } = {}) => {
    if (one.kind === "start") return;
    if (read) close();
    const place = one.kind === "message" ? one.node : answerOf(one);
    acts.goTo(place, one.kind === "message" ? null : one.at, { focus: read || !store.state.narrow });
  };
  const fold = (one) => {
    const next = new Set(folded);
    if (!next.delete(one.id) && one.children.length) next.add(one.id);
    setFolded(next);
    select(one.id, { focus: true });
  };
  const temperature = heat || (Number(settingsOf(node).temperature) > 0 ? settingsOf(node).temperature : "1");
  const sample = () => attempt(async () => {
    const [first] = await acts.sample(placeFor(node), { ...settingsOf(node), temperature }, Number(ways));
    say(`Sampling ${ways} ways at temperature ${temperature}.`);
    select(first.id, { focus: true });
  });
  const take = async (gone) => {
    const back = await session.prune(gone);
    setPruned((before) => [...before, back]);
    say(gone.length === 1 ? "One branch was pruned." : `${gone.length} branches were pruned.`);
  };
  const prune = async (one) => {
    if (one.kind === "start") return;
    const parent = view.current?.parentOf(one.id);
    await take(one.answers ?? [one.node]);
    select(parent?.id ?? null, { focus: true });
  };
  const undo = async () => {
    const back = pruned.at(-1);
    if (!back) return say("There is nothing to undo.");
    setPruned(pruned.slice(0, -1));
    await back();
    await drawn();
    view.current?.focus();
    say("Put back.");
  };
  const compare = () => {
    const [one, other] = [answerOf(node), nodes.findLast((each) => each.kind === "end" && each.shown)?.node];
    if (one && other && one !== other) acts.compare(one, other);
    else say("This branch is the one that is shown. Select another one to compare it with that.");
  };
  const start = async (options) => {
    setAsks(false);
    say("Searching …");
    await session.halt();
    const begun = new Search(current, placeFor(node), settingsOf(node), options, () => session.grew(current));
    setSearch({ job: begun, options });
    await session.follow(current, begun);
    say(outcomeOf(begun, options));
    const best = begun.kept[0]?.node;
    if (best && session.current === current) {
      session.show(best);
      select(best.id);
    }
  };
  const progress = search && run === search.job ? `Searching: round ${search.job.rounds + 1}, ${search.job.spent} of ${search.options.budget} tokens, ${search.job.dropped.length} dropped.` : said;
  const next = (event) => {
    if (event.key !== "Enter" || !found.length) return;
    select(found[(found.indexOf(id) + 1) % found.length]);
  };
  const key = (event) => {
    if (event.key !== "Escape" || event.defaultPrevented || compared) return;
    event.stopPropagation();
    if (asks) setAsks(false);
    else close();
  };
  const real = node.kind !== "start";
  return html`<section id="map" aria-label="Map" onKeyDown=${key}>
    <div class="map-top">
      <h2>Map</h2>
      <input type="search" placeholder="Find" aria-label="Find a text in the map" value=${query} onInput=${(event) => setQuery(event.target.value)} onKeyDown=${next} />
      <span class="map-zoom" role="group" aria-label="Zoom">
        <button type="button" class="icon" aria-label="Zoom out" title="Zoom out" onClick=${() => view.current?.zoom(0.8)}>−</button>
        <button type="button" class="icon" aria-label="Zoom in" title="Zoom in" onClick=${() => view.current?.zoom(1.25)}>+</button>
        <button type="button" title="Fit, and follow what grows" onClick=${() => view.current?.fit()}>Fit</button>
        <button type="button" title="Show the whole map" onClick=${() => view.current?.overview()}>All</button></span>
      <button type="button" class="icon" title="Close the map" onClick=${close}><${Icon} name="close" /><span class="unseen">Close the map</span></button>
    </div>
    <div class="map-canvas">
      ${d3 && html`<${MapPicture} d3=${d3} tree=${tree} selected=${id} growing=${run !== null} found=${new Set(found)} view=${view}
        acts=${{ select, choose, fold, prune, undo }} />`}
      <${Odds} />
      ${search && html`<${Ranks} search=${search.job} close=${() => setSearch(null)} prune=${take} show=${(one) => {
        session.show(one);
        select(one.id);
      }} />`}
    </div>
    <div class="map-bottom">
      <div class="map-said"><p class="map-what small">${whatOf(node)}</p>
        <p role="status" class="small">${query.trim() ? `${found.length || "Nothing"} found.` : progress}</p>
        <button type="button" hidden=${!pruned.length} onClick=${undo}>Undo</button></div>
      ${asks ? html`<${SearchForm} start=${start} close=${() => {
        setAsks(false);
        view.current?.focus();
      }} />` : html`<div class="map-acts" role="group" aria-label="The selected node">
        ${run && html`<button type="button" class="main" onClick=${() => session.stop()}>Stop</button>`}
        <span class="map-group"><button type="button" class="main" disabled=${!real} onClick=${sample}>Sample</button>
          <select aria-label="How many ways" onChange=${(event) => setWays(event.target.value)}>${WAYS.map((count) => html`<option value=${count} selected=${String(count) === ways}>${count}</option>`)}</select>
          <span class="small quiet">ways at temperature</span>
          <input type="number" min="0.1" max="5" step="0.1" inputmode="decimal" aria-label="Temperature of the ways" value=${temperature} onInput=${(event) => setHeat(event.target.value)} /></span>
        <button type="button" class="over-only" disabled=${!real} onClick=${() => choose(node, { read: true })}>Read it</button>
        <button type="button" disabled=${!real} title="Keep the most likely of several ways from here" onClick=${() => setAsks(true)}>Search …</button>
        <button type="button" disabled=${!node.answers} title="Compare this branch with the one that is shown" onClick=${compare}>Compare</button>
        <button type="button" disabled=${!node.children.length && !node.hidden} onClick=${() => fold(node)}>${node.hidden ? "Unfold" : "Fold"}</button>
        <button type="button" disabled=${!real} onClick=${() => prune(node)}>Prune</button>
      </div>`}
    </div>
  </section>`;
}

const flat = (node) => [node, ...node.children.flatMap(flat)];

const STEPS = [["100 %", 1], ["10 %", 0.1], ["1 %", 0.01], ["0.1 %", 0.001]];

/** What the width of a line means. */
const Odds = () => html`<div class="map-legend" title="The odds of the first token of an edge; log p is that of the whole path">
  <span>Odds</span><ul>${STEPS.map(([label, p]) => html`<li><svg viewBox="0 0 28 12" width="28" height="12" aria-hidden="true">
    <path d="M0,6 H28" stroke-width=${widthOf(Math.log(Number(p)))} /></svg>${label}</li>`)}</ul></div>`;

// ---- the search for the most likely ----------------------------------------------------------

function SearchForm({ start, close }) {
  const first = useElement();
  useLayoutEffect(() => first.current.focus(), []);
  const submit = (event) => {
    event.preventDefault();
    const [keep, sure, budget] = [...event.target.querySelectorAll("select, input")].map(({ value }) => Number(value));
    start({ keep, threshold: sure / 100, budget });
  };
  return html`<form class="map-name" aria-label="Keep the most likely of several" onSubmit=${submit}>
    <span class="small quiet">Keep the</span>
    <select ref=${first} aria-label="How many to keep">${[2, 3, 4, 5].map((count) => html`<option value=${count} selected=${count === 3}>${count}</option>`)}</select>
    <span class="small quiet">most likely; branch where a token is under</span>
    <input type="number" aria-label="Branch where a token is less likely than, in percent" min="1" max="100" step="1" defaultValue="80" />
    <span class="small quiet">%; at most</span>
    <input type="number" aria-label="Most tokens to generate" min="10" max="100000" step="10" defaultValue="1000" />
    <span class="small quiet">tokens</span>
    <button type="submit" class="main">Search</button><button type="button" onClick=${close}>Cancel</button>
  </form>`;
}

function outcomeOf(search, { budget }) {
  if (search.problem) return `The search failed: ${search.problem.message}`;
  const { length } = search.dropped;
  const why = search.isOver ? "The search is over" : search.spent >= budget ? `The ${budget} tokens are used` : "The search was stopped";
  const what = search.kept[0]?.done ? "answer" : "beginning";
  const rest = length ? `${length} ${length === 1 ? "branch was" : "branches were"} dropped.` : "";
  return `${why}: the most likely ${what} is shown. ${rest}`.trim();
}

/** What a search found, and is still in the conversation: a branch may have been pruned, or put back. */
function Ranks({ search, show, prune, close }) {
  const { session } = useContext(Page);
  const { nodes } = session.current;
  const kept = search.kept.filter(({ node }) => nodes[node.id]);
  const dropped = search.dropped.filter(({ id }) => nodes[id]);
  if (!kept.length) return null;
  return html`<div class="map-result">
    <div class="map-title small">The most likely<button type="button" class="icon" title="Close the list" onClick=${close}><${Icon} name="close" /><span class="unseen">Close the list</span></button></div>
    <ol class="map-ranks small">${kept.map(({ node, score, tokens, done }, k) => html`<li key=${node.id}>
      <button type="button" class="map-chip" title=${node.content.trim()} onClick=${() => show(node)}><strong>${k + 1}</strong>
        <span>log p ${inLogs(score, 2)} · ${inLogs(score / Math.max(1, tokens), 3)} a token</span>
        <span>${counted(tokens, "token")}${done ? "" : " so far"}</span></button></li>`)}
      ${dropped.length > 0 && !session.runOf(session.current) && html`<li><button type="button" onClick=${() => prune(dropped)}>${dropped.length === 1
        ? "Remove the dropped one" : `Remove the ${dropped.length} dropped`}</button></li>`}</ol>
  </div>`;
}
