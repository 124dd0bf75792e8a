// What an empty conversation shows: things to try.

import { button, el } from "./dom.js";
import { icon } from "./icons.js";

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

/** Things to say, with settings; with `tokens`, the answer is shown as tokens, and with `ways` there are so
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

/** Show the examples, or nothing; `use` gets the one that was taken. */
export function showWelcome(element, wanted, use) {
  if (element.hidden === !wanted && Boolean(element.childElementCount) === wanted) return;
  element.hidden = !wanted;
  if (!wanted) {
    element.replaceChildren();
    return;
  }
  element.replaceChildren(
    el("h2", {}, "See what the model could have said"),
    el("p", {}, "Each token of an answer shows its odds. Click one to see its alternatives; choose another, and the ",
      "answer continues from there."),
    el("ul", { class: "examples" }, EXAMPLES.map((example) => el("li", {}, exampleButton(example, use)))),
  );
}

function exampleButton(example, use) {
  const words = el("span", {}, el("strong", {}, example.label), el("span", { class: "small" }, example.text));
  return button([icon(example.icon), words], () => use(example));
}
