// The settings of a conversation: a form, with presets, and what new conversations begin with.

import { useContext, useLayoutEffect, useState } from "preact/hooks";
import { byId, html, Icon, useElement } from "./html.js";
import { BUILT_IN, isInForce, problemOf, savePresets, saveStart, withPreset } from "./kept.js";
import { changesOf, defaultText, DEFAULTS, GROUPS, problemsOf, reset } from "./settings.js";
import { Page, useChanges, useParts } from "./store.js";

export function SettingsPanel() {
  const { store, session, acts } = useContext(Page);
  const { current: { settings }, complaint, params } = useParts("current", "complaint", "params");
  useChanges(settings);
  const title = useElement();
  const [said, say] = useState("");
  useLayoutEffect(() => {
    if (!complaint) title.current.focus();
  }, []);
  useLayoutEffect(() => {
    if (complaint) byId(`set-${complaint.field}`)?.focus();
  }, [complaint]);

  const change = (more) => {
    Object.assign(settings, more);
    if (complaint && complaint.field in more) store.set({ complaint: null });
    say("");
    session.settingsChanged();
  };
  const key = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    acts.toggle("settings");
  };
  const problems = problemsOf(settings);
  if (complaint) problems[complaint.field] ??= complaint.message;
  const changes = changesOf(settings);
  return html`<aside id="settings" aria-labelledby="settings-title" onKeyDown=${key}>
    <div class="row"><h2 id="settings-title" tabindex="-1" ref=${title}>Settings</h2><button type="button" onClick=${() => acts.toggle("settings")}>Close</button></div>
    <p class="quiet small">For the next answers of this conversation. Empty fields use the server's defaults, shown in gray.</p>
    ${changes.length > 0 && html`<ul class="chips" aria-label="Changed settings"><li class="quiet small">Changed:</li>
      ${changes.map(({ name, label, value }) => html`<li key=${name}><button type="button" class="chip" onClick=${() => byId(`set-${name}`).focus()}>${value ? `${label}: ${value}` : label}</button></li>`)}</ul>`}
    <${Presets} settings=${settings} apply=${(preset) => change(preset.settings)} />
    ${GROUPS.map((group) => html`<fieldset><legend>${group.title}</legend>${group.fields.map((field) => html`<${Field} key=${field.name}
      field=${field} settings=${settings} problem=${problems[field.name] ?? ""} params=${params} change=${change} />`)}</fieldset>`)}
    <div class="row wrap">
      <button type="button" onClick=${() => change(reset({ ...settings }))}>Reset to the defaults</button>
      <button type="button" title="New conversations begin with these settings" onClick=${() => {
        saveStart(settings);
        say(changes.length ? "New conversations begin with these settings." : "New conversations begin with the defaults.");
      }}>Use for new conversations</button>
    </div>
    <p class="quiet small" role="status">${said}</p>
  </aside>`;
}

function Field({ field, settings, problem, params, change }) {
  const { name, label, hint, kind, options, when, min, max, step } = field;
  const [typing, setTyping] = useState(false); // what is still being typed is not wrong yet
  const id = `set-${name}`;
  const value = settings[name];
  const shown = typing ? "" : problem;
  const said = params ? defaultText(field, params) : "";
  const props = {
    id, value, "aria-describedby": `${hint ? `${id}-hint ` : ""}${id}-problem`, "aria-invalid": Boolean(shown),
    placeholder: said ? `${said} (default)` : null,
    onInput: (event) => {
      setTyping(true);
      change({ [name]: event.target.value });
    },
    onBlur: () => setTyping(false),
    onChange: () => setTyping(false),
  };
  const back = () => {
    change({ [name]: DEFAULTS[name] });
    byId(id).focus();
  };
  return html`<div class="field" data-field=${name} hidden=${Boolean(when) && settings[when[0]] !== when[1]}>
    <div class="row"><label id=${`${id}-label`} for=${id}>${label}</label>
      <button type="button" class="icon back" hidden=${value === DEFAULTS[name]} title="Back to the default" aria-label="Back to the default"
        aria-describedby=${`${id}-label`} onClick=${back}><${Icon} name="retry" /></button></div>
    ${kind === "choice" ? html`<select ...${props}>${options.map(([one, text]) => html`<option value=${one} selected=${one === value}>${text}</option>`)}</select>`
      : kind === "number" ? html`<input type="number" ...${props} min=${min} max=${max} step=${step} inputmode=${step === 1 ? "numeric" : "decimal"} />`
      : html`<textarea ...${props} rows=${kind === "code" ? 5 : 3} spellcheck=${kind === "text" ? null : "false"} class=${kind === "code" ? "mono" : null}></textarea>`}
    ${hint && html`<p id=${`${id}-hint`} class="quiet small">${hint}</p>`}
    <p id=${`${id}-problem`} class="problem small" role="alert">${shown}</p>
  </div>`;
}

/** Presets, chosen with one click, and one's own: kept, renamed and deleted. */
function Presets({ settings, apply }) {
  const { store } = useContext(Page);
  const { presets: own } = useParts("presets");
  const [problem, setProblem] = useState("");
  const name = useElement();
  const keep = (presets) => {
    savePresets(presets);
    store.set({ presets });
    name.current.focus();
  };
  /** Do what a form asks for, unless its name cannot be used. */
  const submit = (before, make) => (event) => {
    event.preventDefault();
    const input = event.target.querySelector("input");
    const wrong = problemOf(own, input.value, before);
    setProblem(wrong);
    input.setAttribute("aria-invalid", String(Boolean(wrong)));
    if (wrong) return input.focus();
    keep(make(input.value.trim()));
    if (!before) input.value = "";
  };
  const save = submit("", (to) => withPreset(own, to, settings));
  const rename = (preset) => submit(preset.name, (to) => own.map((one) => (one === preset ? { ...one, name: to } : one)));
  return html`<fieldset class="presets"><legend>Presets</legend>
    <div class="chips">${[...BUILT_IN, ...own].map((preset) => html`<button type="button" key=${preset.name} class="chip" title=${preset.hint}
      aria-pressed=${isInForce(preset, settings)} onClick=${() => apply(preset)}>${preset.name}</button>`)}</div>
    <details><summary class="small">Your own presets</summary>
      <form class="row" onSubmit=${save}><label for="preset-name" class="unseen">Name of the preset</label>
        <input id="preset-name" ref=${name} autocomplete="off" aria-describedby="preset-problem" maxlength="60" placeholder="Name" /><button type="submit">Save</button></form>
      <p class="quiet small">Saves all of these settings under a name. The same name replaces it.</p>
      <p id="preset-problem" class="problem small" role="alert">${problem}</p>
      <ul class="own">${own.map((preset) => html`<li key=${preset.name}>
        <form class="row" onSubmit=${rename(preset)}>
          <input defaultValue=${preset.name} autocomplete="off" aria-label=${`Name of the preset ${preset.name}`} maxlength="60" aria-describedby="preset-problem" />
          <button type="submit">Rename</button>
          <button type="button" class="icon" aria-label=${`Delete the preset ${preset.name}`} title="Delete" onClick=${() => keep(own.filter((one) => one !== preset))}><${Icon} name="remove" /></button>
        </form></li>`)}</ul>
    </details>
  </fieldset>`;
}
