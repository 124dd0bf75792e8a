// One token as an element: its tint, the lines and corners that say how it came about, and its label.

import { el } from "./dom.js";
import { DRAFTERS, levelOf, percent, spoken, visible } from "./records.js";

/** What can be said of a token, by the class that shows it; the legend has them in this order. */
export const MARKS = {
  forced: "only one allowed",
  "by-text": "drafted from text",
  "by-head": "drafted by own head",
  "by-model": "drafted by a model",
  redrawn: "drawn again",
  rejected: "another was rejected",
  banned: "another was banned",
  missed: "draft not drawn",
  picked: "chosen by hand",
  typed: "typed",
  outside: "not part of the answer",
};

const WHY = { ban: "banned", hook: "rejected", length: "rejected", draft: "missed" };

/** The classes of `MARKS` that a record has. */
export function markNames(record) {
  const names = [];
  if (record.f === 1) names.push("forced");
  if (record.f === 2) names.push(record.d in DRAFTERS ? `by-${record.d}` : "drafted");
  if (record.n) names.push("redrawn");
  for (const [, , reason] of record.j ?? []) names.push(WHY[reason] ?? "rejected");
  if (record.h) names.push(record.h === 2 ? "typed" : "picked");
  if (record.p === null) names.push("outside");
  return names;
}

const plain = el("span", { class: "token", role: "button", "aria-haspopup": "dialog", tabindex: "-1" });

/** The element of a token; `text` are the characters that it completes, `names` its marks. */
export function tokenElement(record, index, text, names = markNames(record)) {
  const token = plain.cloneNode();
  const classes = classesOf(record, text, names);
  if (classes) token.className += classes;
  token.setAttribute("aria-label", labelOf(record));
  token.dataset.index = index;
  show(token, record, text);
  return token;
}

/** The same where nothing opens: plain text for a screen reader. */
export function tokenText(record, text) {
  const token = el("span", { class: `token${classesOf(record, text, markNames(record))}` });
  show(token, record, text);
  return token;
}

/** A token without a character of its own has its bytes as a mark, which is not copied as text. */
function show(token, { b }, text) {
  if (text) token.textContent = text;
  else token.dataset.hex = typeof b === "string" ? (b && visible(b)) || "∅" : b.map((byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

function classesOf(record, text, names) {
  let classes = "";
  const level = levelOf(record.l);
  if (level) classes += ` level-${level}`;
  for (const name of names) classes += ` ${name}`;
  if (record.f === 2) classes += " drafted";
  if (record.p === "mark") classes += " mark";
  if (text.startsWith("\n")) classes += " line-break";
  return classes;
}

function labelOf(record) {
  const said = [spoken(record.b), percent(record.l), ...marksOf(record)];
  if (record.j) said.push(`${record.j.length} rejected here`);
  return said.join(", ");
}

/** How a token came about, in words. */
export function marksOf(record) {
  const marks = [];
  if (record.h) marks.push(record.h === 2 ? "typed" : "chosen by hand");
  if (record.f === 1) marks.push("forced");
  if (record.f === 2) marks.push(`drafted ${DRAFTERS[record.d] ?? ""}`.trim());
  if (record.n) marks.push(record.n === 1 ? "drawn again once" : `drawn again ${record.n} times`);
  if (record.p === null) marks.push("not part of the answer");
  return marks;
}
