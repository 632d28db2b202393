/** The API key: in memory, in this tab's storage only if the user selects it, never in a URL. */

import { getById, input } from "./dom.js";
import { saveItem, loadItem } from "./storage.js";

const STORED = "voicewire.key";

/** @param {(key: string) => void} onKey */
export function openAccess(onKey) {
  const use = () => {
    const key = input("key").value.trim();
    saveItem("sessionStorage", STORED, input("keep-key").checked && key ? key : null);
    onKey(key);
  };
  getById("use-key").addEventListener("click", use);
  input("keep-key").addEventListener("change", () => {
    if (!input("keep-key").checked) saveItem("sessionStorage", STORED, null);
  });
  input("key").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    use();
  });
  const key = loadItem("sessionStorage", STORED);
  if (key !== null) {
    input("key").value = key;
    input("keep-key").checked = true;
  }
  return key ?? "";
}

export function askForKey() {
  /** @type {HTMLDetailsElement} */ (getById("access")).open = true;
  input("key").focus();
}
