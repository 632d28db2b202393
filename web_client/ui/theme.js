/** Light or dark: as the system says, until someone says otherwise. */

import { find } from "./dom.js";

const STORED = "voicewire.theme";

export function openTheme(onChange = () => {}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const kept = localStorage.getItem(STORED);
  if (kept !== null) root.dataset.theme = kept;
  find("theme").addEventListener("click", () => {
    const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    localStorage.setItem(STORED, root.dataset.theme);
    onChange();
  });
  dark.addEventListener("change", onChange);
}
