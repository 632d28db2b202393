/** The API key: in memory, and in this tab's storage only when asked for; never in an address. */

import { find, input } from "./dom.js";

const STORED = "voicewire.key";

/** @param {(key: string) => void} onKey */
export function openAccess(onKey) {
  const use = () => {
    const key = input("key").value.trim();
    if (input("keep-key").checked && key) sessionStorage.setItem(STORED, key);
    else sessionStorage.removeItem(STORED);
    onKey(key);
  };
  find("use-key").addEventListener("click", use);
  input("keep-key").addEventListener("change", () => {
    if (!input("keep-key").checked) sessionStorage.removeItem(STORED);
  });
  input("key").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    use();
  });
  const kept = sessionStorage.getItem(STORED);
  if (kept !== null) {
    input("key").value = kept;
    input("keep-key").checked = true;
  }
  return kept ?? "";
}

export function askForKey() {
  /** @type {HTMLDetailsElement} */ (find("access")).open = true;
  input("key").focus();
}
