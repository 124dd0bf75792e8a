// What an empty conversation shows: things to try.

import { button, el } from "./dom.js";

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

const EXAMPLES = [
  { label: "Ask for a fact", text: "What is the capital of France?", settings: {} },
  {
    label: "Get JSON that matches a schema",
    text: "Extract the person record as JSON: Maria is 34 years old and lives in Lisbon.",
    settings: { form: "schema", schema: JSON.stringify(PERSON, null, 2), thinking: "off" },
  },
  {
    label: "Let it call a tool",
    text: "What is the weather in Oslo?",
    settings: { tools: JSON.stringify(WEATHER, null, 2), thinking: "off" },
  },
  { label: "Hear a story", text: "Tell me a story about a fox.", settings: { temperature: "0.9", thinking: "off" } },
];

/** Show the examples, or nothing; `use` gets the one that was taken. */
export function showWelcome(element, wanted, use) {
  element.hidden = !wanted;
  if (!wanted) {
    element.replaceChildren();
    return;
  }
  element.replaceChildren(
    el("h2", {}, "Try a model and see how it works"),
    el("p", {}, "Turn on ", el("strong", {}, "Tokens"), " to see how likely each token was. Click one to see its alternatives; ",
      "choose another, and the answer continues from there."),
    el("ul", { class: "examples" }, EXAMPLES.map((example) => el("li", {}, exampleButton(example, use)))),
  );
}

function exampleButton(example, use) {
  return button([el("strong", {}, example.label), el("span", { class: "small" }, example.text)], () => use(example));
}
