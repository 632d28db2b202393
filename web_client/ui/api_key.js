/** The API key: in memory, and in this tab's storage only when asked for; never in an address. */

import { find, input } from "./dom.js";
import { keep, kept } from "./storage.js";

const STORED = "voicewire.key";

/** @param {(key: string) => void} onKey */
export function openAccess(onKey) {
  const use = () => {
    const key = input("key").value.trim();
    keep("sessionStorage", STORED, input("keep-key").checked && key ? key : null);
    onKey(key);
  };
  find("use-key").addEventListener("click", use);
  input("keep-key").addEventListener("change", () => {
    if (!input("keep-key").checked) keep("sessionStorage", STORED, null);
  });
  input("key").addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    use();
  });
  const key = kept("sessionStorage", STORED);
  if (key !== null) {
    input("key").value = key;
    input("keep-key").checked = true;
  }
  return key ?? "";
}

export function askForKey() {
  /** @type {HTMLDetailsElement} */ (find("access")).open = true;
  input("key").focus();
}
