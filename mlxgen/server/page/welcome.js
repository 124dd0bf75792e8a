// Things to try in an empty conversation. Their settings are for that conversation alone.

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
export const EXAMPLES = [
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
