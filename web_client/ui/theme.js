/** Light or dark: as the system says, until someone says otherwise. */

import { find } from "./dom.js";
import { keep, kept } from "./storage.js";

const STORED = "voicewire.theme";

export function openTheme(onChange = () => {}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const root = document.documentElement;
  const chosen = kept("localStorage", STORED);
  if (chosen !== null) root.dataset.theme = chosen;
  find("theme").addEventListener("click", () => {
    const now = root.dataset.theme ?? (dark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    keep("localStorage", STORED, root.dataset.theme);
    onChange();
  });
  dark.addEventListener("change", onChange);
}
