// The settings of a conversation, and the request made from them.
//
// Nothing here touches the page. An empty field is left out of the request, so that the server's
// default applies. What cannot be right is said before anything is sent; the rest is for the server to
// judge, whose error names the field.

/** @returns {Field} */
const number = (name, label, hint, more = {}) => ({ name, label, hint, kind: "number", ...more });
/** @returns {Field} */
const lines = (name, label, hint) => ({ name, label, hint, kind: "lines" });

/** @typedef {{name: string, label: string, kind: "text" | "choice" | "code" | "number" | "lines", hint?: string, options?: string[][],
 *    when?: string[], min?: number, max?: number, step?: number}} Field */

/** @type {{title: string, fields: Field[]}[]} */
export const GROUPS = [
  {
    title: "Instructions",
    fields: [
      { name: "system", label: "System prompt", kind: "text" },
      {
        name: "thinking", label: "Thinking", kind: "choice",
        options: [["", "Model's default"], ["on", "On"], ["off", "Off"]],
        hint: "For models that can think before they answer.",
      },
    ],
  },
  {
    title: "Answer format",
    fields: [
      {
        name: "form", label: "The answer must be", kind: "choice",
        options: [
          ["", "Any text"], ["object", "A JSON object"], ["schema", "JSON that matches a schema"],
          ["regex", "Text that matches a regular expression"],
        ],
      },
      { name: "schema", label: "JSON schema", kind: "code", when: ["form", "schema"] },
      { name: "regex", label: "Regular expression", kind: "code", when: ["form", "regex"] },
    ],
  },
  {
    title: "Sampling",
    fields: [
      number("temperature", "Temperature", "0 takes the most likely token.", { min: 0, step: 0.1 }),
      number("top_p", "Top p", "Keeps the most likely tokens that together reach this probability; 1 keeps all.",
        { min: 0, max: 1, step: 0.05 }),
      number("top_k", "Top k", "Keeps this many of the most likely tokens; 0 keeps all.", { min: 0, step: 1 }),
      number("min_p", "Min p", "Minimum probability relative to the most likely token; 0 keeps all.",
        { min: 0, max: 1, step: 0.01 }),
      number("repetition_penalty", "Repetition penalty", "1 turns it off.", { min: 0, step: 0.05 }),
      number("presence_penalty", "Presence penalty", "", { step: 0.1 }),
      number("frequency_penalty", "Frequency penalty", "", { step: 0.1 }),
      number("seed", "Seed", "The same seed and settings give the same text.", { step: 1 }),
    ],
  },
  {
    title: "Length and stops",
    fields: [
      number("max_tokens", "Maximum tokens", "", { min: 1, step: 1 }),
      lines("stop", "Stop strings", "One per line; \\n stands for a line break."),
      lines("banned_strings", "Banned strings", "One per line; they never appear in the answer."),
    ],
  },
  {
    title: "Tools",
    fields: [
      {
        name: "tools", label: "Functions that the model may call", kind: "code",
        hint: "JSON: a list of tools as in OpenAI's API, or of functions alone.",
      },
    ],
  },
  {
    title: "Token view",
    fields: [
      number("alternatives", "Alternatives to request", "0 to 20 for each token.",
        { min: 0, max: 20, step: 1 }),
    ],
  },
];

export const FIELDS = GROUPS.flatMap((group) => group.fields);

/** The setting that is chosen in the header, and that neither a preset nor a reset changes. */
export const MODEL = "model";

export const DEFAULTS = Object.freeze({
  ...Object.fromEntries(FIELDS.map((field) => [field.name, field.name === "alternatives" ? "8" : ""])),
  [MODEL]: "",
});

/** Set all settings to their defaults, apart from the model and from `more`. */
export const reset = (settings, more = {}) => Object.assign(settings, { ...DEFAULTS, [MODEL]: settings[MODEL] }, more);

/** An invalid setting; `field` is its name. */
export class FieldError extends Error {
  constructor(field, message) {
    super(message);
    this.field = field;
  }
}

/** The settings that are sent as they are. */
const PLAIN = GROUPS[2].fields.map((field) => field.name);

/** The body of a request, without its messages. @param {Record<string, string>} settings @returns {Record<string, any>} */
export function bodyOf(settings) {
  const body = {
    stream: true, stream_options: { include_usage: true }, return_token_ids: true,
    return_progress: true, timings_per_token: true,
  };
  if (settings[MODEL]) body.model = settings[MODEL];
  for (const name of [...PLAIN, "max_tokens"]) put(body, name, numberOf(settings, name));
  put(body, "stop", linesOf(settings.stop));
  put(body, "banned_strings", linesOf(settings.banned_strings));
  put(body, "tools", toolsOf(settings.tools));
  if (settings.thinking) body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  Object.assign(body, formOf(settings));
  body.logprobs = true;
  body.top_logprobs = numberOf(settings, "alternatives") ?? 0;
  return body;
}

/** What is wrong with settings before anything is sent, as sentences by field; an empty field that has only
 *  just appeared is not. */
export function problemsOf(settings) {
  const problems = {};
  for (const { name, kind, when } of FIELDS) {
    const shown = !when || settings[when[0]] === when[1];
    try {
      if (kind === "number") numberOf(settings, name);
      else if (name === "tools") toolsOf(settings.tools);
      else if (name === "schema" && shown && settings.schema.trim()) schemaOf(settings);
    } catch (error) {
      if (!(error instanceof FieldError)) throw error;
      problems[name] = error.message;
    }
  }
  return problems;
}

function put(body, name, value) {
  if (value !== undefined) body[name] = value;
}

function numberOf(settings, name) {
  const text = String(settings[name] ?? "").trim();
  if (!text) return undefined;
  const value = Number(text);
  const { min = -Infinity, max = Infinity, step = 0 } = FIELDS.find((field) => field.name === name) ?? {};
  const refuse = (why) => {
    throw new FieldError(name, `${labelOf(name)}: ${why}.`);
  };
  if (!Number.isFinite(value)) refuse(`“${text}” is not a number`);
  if (step === 1 && !Number.isInteger(value)) refuse(`enter a whole number, not ${text}`);
  if (value < min && max === Infinity) refuse(`enter ${min} or more, not ${text}`);
  if (value < min || value > max) refuse(`enter a number from ${min} to ${max}, not ${text}`);
  return value;
}

function linesOf(text) {
  const found = (text ?? "").split("\n").filter((line) => line !== "");
  if (!found.length) return undefined;
  const signs = { n: "\n", t: "\t", "\\": "\\" };
  return found.map((line) => line.replace(/\\([nt\\])/g, (_, sign) => signs[sign]));
}

function formOf(settings) {
  switch (settings.form) {
    case "object": return { response_format: { type: "json_object" } };
    case "schema": return { json_schema: schemaOf(settings) };
    case "regex":
      if (!settings.regex) throw new FieldError("regex", "Regular expression: enter one, or choose another format.");
      return { regex: settings.regex };
    default: return {};
  }
}

function schemaOf(settings) {
  const schema = jsonOf(settings, "schema");
  if (typeof schema === "boolean" || (typeof schema === "object" && schema !== null && !Array.isArray(schema))) return schema;
  throw new FieldError("schema", "JSON schema: enter an object, such as {\"type\": \"object\"}.");
}

function toolsOf(text) {
  if (!(text ?? "").trim()) return undefined;
  const given = jsonOf({ tools: text }, "tools");
  const list = Array.isArray(given) ? given : [given];
  if (!list.every((tool) => typeof (tool?.function ?? tool)?.name === "string")) {
    throw new FieldError("tools", `${labelOf("tools")}: each needs a name, such as {"name": "get_weather", "parameters": {…}}.`);
  }
  return list.map((tool) => (tool?.function ? tool : { type: "function", function: tool }));
}

function jsonOf(settings, name) {
  try {
    return JSON.parse(settings[name]);
  } catch (error) {
    throw new FieldError(name, `${labelOf(name)}: invalid JSON (${error.message}).`);
  }
}

export const labelOf = (name) => FIELDS.find((field) => field.name === name)?.label ?? name;

/** The setting that a field of the request came from, or null. */
export function fieldOfParam(param, settings) {
  const name = (param ?? "").replace(/[[.].*$/, "");
  const known = {
    json_schema: "schema", response_format: "form", top_logprobs: "alternatives", logprobs: "alternatives",
    chat_template_kwargs: "thinking", max_completion_tokens: "max_tokens", banned: "banned_strings",
  };
  const field = known[name] ?? name;
  return Object.hasOwn(settings, field) ? field : null;
}

/** The format of an answer, for a sentence; empty if it is free. */
export function formName(settings) {
  return { object: "JSON", schema: "JSON schema", regex: "regular expression" }[settings.form] ?? "";
}

/** The default of a field in words, from the server's `params`; empty if it is shown as a choice. */
export function defaultText({ name, kind }, params) {
  if (kind === "choice") return "";
  if (kind !== "number") return "none";
  if (params[name] >= 0) return String(params[name]);
  return { seed: "another one each time", max_tokens: "as many as fit" }[name] ?? "0";
}

/** The settings that differ from others: {name, label, value}, the value in a few words. */
export function changesOf(settings, base = DEFAULTS) {
  const changed = FIELDS.filter(({ name, when }) => !when && (settings[name] ?? "").trim() !== (base[name] ?? "").trim());
  return changed.map(({ name, label, kind, options }) => ({ name, label, value: shortOf(settings, name, kind, options) }));
}

function shortOf(settings, name, kind, options) {
  const text = settings[name].trim();
  if (name === "form") return formName(settings) || "any text";
  if (kind === "choice") return options.find(([value]) => value === text)?.[1].toLowerCase() ?? text;
  if (kind === "lines") return String(linesOf(text)?.length ?? 0);
  if (kind === "number") return text || "as usual";
  return text ? "" : "none";
}

/** Changes as phrases. */
export const wordsOf = (changes) => changes.map(({ name, label, value }) => {
  if (name === "form") return value;
  if (name === "tools") return value ? "no tools" : "tools";
  if (name === "stop" || name === "banned_strings") return `${value} ${label.slice(0, -1).toLowerCase()}${value === "1" ? "" : "s"}`;
  return value ? `${label.toLowerCase()} ${value}` : label.toLowerCase();
});

/** The settings to draw a place of an answer anew: what it must be is what it was, how it is sampled is
 *  what is set now, and a seed is another one. */
export function anew(then, now) {
  const sampling = Object.fromEntries(PLAIN.map((name) => [name, now[name]]));
  if (sampling.seed) sampling.seed = anySeed();
  return { ...then, ...sampling };
}

export const anySeed = () => String(Math.floor(Math.random() * 2 ** 31));

/** What differs from the defaults, in a few words; `ignored` are the fields of the last request, in a
 *  list, that the server says had no effect. */
export function summaryOf(settings, ignored = "") {
  const parts = wordsOf(changesOf(settings));
  const names = ignored.split(", ").filter(Boolean).map((param) => labelOf(fieldOfParam(param, settings) ?? param).toLowerCase());
  const without = names.length ? ` The server ignored: ${names.join(", ")}.` : "";
  return `${parts.length ? `In force: ${parts.join(", ")}.` : ""}${without}`.trim();
}
