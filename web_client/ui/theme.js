/** Light or dark theme: that of the system, until the user changes it. */

import { getById } from "./dom.js";
import { saveItem, loadItem } from "./storage.js";

const STORED = "voicewire.theme";

export function openTheme(onChange = () => {}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const chosen = loadItem("localStorage", STORED);
  if (chosen !== null) root.dataset.theme = chosen;
  getById("theme").addEventListener("click", () => {
    const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    saveItem("localStorage", STORED, root.dataset.theme);
    onChange();
  });
  dark.addEventListener("change", onChange);
}
