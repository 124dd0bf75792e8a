// The conversation: what went wrong, its messages, and the place in it.

import { useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { Composer } from "./composer.js";
import { pathOf, shownIn } from "./conversation.js";
import { html, Icon, Notice, useElement } from "./html.js";
import { Message } from "./message.js";
import { Page, useChanges, useParts, useStore } from "./store.js";
import { Legend } from "./tokens.js";

const NEAR = 80; // pixels from the end within which the page follows an answer that grows

export function Chat() {
  const { store } = useContext(Page);
  const { done, current } = useParts("done", "current");
  return html`<main id="main" aria-label="Conversation" onClick=${() => store.state.listOpen && store.set({ listOpen: false })}>
    <${Problems} />
    <${LegendOfShown} />
    <${Messages} />
    <div class="dock"><${Notice} id="done" notice=${done} close=${() => store.set({ done: null })} /><${Composer} key=${current.id} /></div>
  </main>`;
}

/** What went wrong; each stays until it is dismissed, or until what it is about is tried again. */
function Problems() {
  const { acts } = useContext(Page);
  const problems = useStore((state) => state.problems);
  return html`<div id="problem" role="alert">${problems.map(({ kind, text, action }) => html`<p key=${kind}>${text}${" "}
    ${action && html`<button type="button" onClick=${() => {
      acts.dismiss(kind);
      action[1]();
    }}>${action[0]}</button>`}${" "}
    <button type="button" onClick=${() => acts.dismiss(kind)}>Dismiss</button></p>`)}</div>`;
}

function LegendOfShown() {
  const { current, look: { tokens: wanted }, runs } = useParts("current", "look", "runs");
  useChanges(current);
  const paths = wanted && !runs.has(current.id) ? shownIn(current).filter(({ tokens }) => tokens).map((node) => pathOf(current, node)) : [];
  return wanted && html`<${Legend} paths=${paths} />`;
}

function Messages() {
  const { acts } = useContext(Page);
  const { current, runs } = useParts("current", "runs");
  useChanges(current);
  const nodes = shownIn(current);
  const box = useElement();
  const [away, toEnd] = useEnd(box, current);
  const leftOut = nodes.findIndex(({ id }) => id === current.after);
  const items = useMemo(() => new Map(), [current]); // a message that stays is not drawn again for its neighbours
  const itemOf = (node) => {
    if (!items.has(node)) items.set(node, html`<${Message} key=${node.id} node=${node} />`);
    return items.get(node);
  };
  return html`
    <div id="scroll" tabindex="-1" ref=${box}>
      ${!nodes.length && html`<${Welcome} />`}
      <ol id="messages" aria-label="Messages" aria-busy=${runs.has(current.id)}>${nodes.flatMap((node, k) => [k > 0 && k === leftOut && html`
        <li key="left-out" class="left-out small quiet">The model does not see what is above.
          <button type="button" class="link" onClick=${acts.seeAll}>Show it to the model again</button></li>`, itemOf(node)])}</ol>
    </div>
    <div class="above"><button type="button" id="newest" class="icon" title="Scroll to the newest" hidden=${!away} onClick=${() => {
      toEnd();
      box.current.focus({ preventScroll: true });
    }}><${Icon} name="newest" /><span class="unseen">Scroll to the newest</span></button></div>`;
}

/** The place in a conversation: it follows an answer that grows, unless somebody has scrolled up. */
function useEnd(box, current) {
  const [away, setAway] = useState(false);
  const follows = useRef(true);
  const top = useRef(0);
  const look = () => {
    const { scrollHeight, scrollTop, clientHeight } = box.current;
    const isNear = scrollHeight - scrollTop - clientHeight < NEAR;
    // What has grown since is not near either; only somebody who scrolls up leaves the end.
    if (isNear || scrollTop < top.current) follows.current = isNear;
    top.current = scrollTop;
    setAway(!isNear && !follows.current);
  };
  const toEnd = () => {
    box.current.scrollTop = box.current.scrollHeight;
    look();
  };
  const asked = useStore((state) => state.toEnd);
  useLayoutEffect(() => {
    if (asked) toEnd();
  }, [asked]);
  useLayoutEffect(() => {
    box.current.scrollTop = top.current = 0;
    const { scrollHeight, clientHeight } = box.current;
    follows.current = scrollHeight - clientHeight < NEAR;
    look();
  }, [current]);
  useEffect(() => {
    const sized = new ResizeObserver(() => (follows.current ? toEnd() : look()));
    sized.observe(box.current);
    sized.observe(box.current.querySelector("#messages"));
    box.current.addEventListener("scroll", look, { passive: true });
    return () => sized.disconnect();
  }, []);
  return /** @type {const} */ ([away, toEnd]);
}

// ---- an empty conversation -------------------------------------------------------------------

/** What an empty conversation shows: things to try. */
function Welcome() {
  const { acts } = useContext(Page);
  return html`<div id="welcome">
    <h2>See what the model could have said</h2>
    <p>Each token of an answer shows its odds. Click one to see its alternatives; choose another, and the answer continues from there.</p>
    <ul class="examples">${EXAMPLES.map((example) => html`<li><button type="button" onClick=${() => acts.useExample(example)}>
      <${Icon} name=${example.icon} /><span><strong>${example.label}</strong>${" "}<span class="small">${example.text}</span></span></button></li>`)}</ul>
  </div>`;
}

const PERSON = {
  type: "object",
  properties: { name: { type: "string" }, age: { type: "integer" }, city: { type: "string" } },
  required: ["name", "age", "city"],
  additionalProperties: false,
};

const WEATHER = {
  name: "get_weather",
  description: "The weather of a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};

/** Things to say, with settings for that conversation alone; with `tokens`, the answer is shown as tokens, and with `ways` there are so
 *  many answers at once, on the map. */
const EXAMPLES = [
  {
    icon: "tokens", label: "See the odds of every token", text: "Tell me a story about a fox.", tokens: true,
    settings: { temperature: "0.9", thinking: "off" },
  },
  {
    icon: "map", label: "Watch four stories branch", text: "Tell me a story about a rabbit.", ways: 4,
    settings: { temperature: "0.9", thinking: "off" },
  },
  {
    icon: "code", label: "Get JSON that matches a schema",
    text: "Extract the person record as JSON: Maria is 34 years old and lives in Lisbon.",
    settings: { form: "schema", schema: JSON.stringify(PERSON, null, 2), thinking: "off" },
  },
  {
    icon: "tool", label: "Let it call a tool", text: "What is the weather in Oslo?",
    settings: { tools: JSON.stringify(WEATHER, null, 2), thinking: "off" },
  },
];
