// The question for the API key.

import { byId, setText } from "./dom.js";

/** A function that asks for the key: gets a sentence or nothing, resolves to the key or null. */
export function makeKeyDialog(dialog) {
  const input = byId("key-value");
  let answer = () => {};
  const end = (key) => {
    input.value = ""; // no copy of the key is left on the page
    dialog.close();
    answer(key);
  };
  byId("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    end(input.value.trim() || null);
  });
  byId("key-cancel").addEventListener("click", () => end(null));
  dialog.addEventListener("cancel", (event) => {
    event.preventDefault();
    end(null);
  });
  return (problem) => {
    setText(byId("key-problem"), problem ?? "");
    dialog.showModal();
    input.focus();
    return new Promise((resolve) => (answer = resolve));
  };
}
