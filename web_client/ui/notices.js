/** Notices for the user, one line each. */

import { getById, createElement } from "./dom.js";

/**
 * @typedef {{text: string, tone?: "info" | "warn" | "bad", action?: string, onAction?: () => void, dismiss?: boolean}} Notice
 */

/** @type {Map<string, {element: HTMLElement, key: string}>} */
const shown = new Map();

/**
 * Show a notice in place of the previous one of that name; `null` removes it.
 *
 * @param {string} name
 * @param {Notice | null} notice
 */
export function showNotice(name, notice) {
  const key = notice === null ? "" : `${notice.tone} ${notice.text} ${notice.action}`;
  const before = shown.get(name);
  if (before?.key === key || (before === undefined && notice === null)) return;
  before?.element.remove();
  shown.delete(name);
  if (notice === null) return;
  const element = createElement(
    "div",
    { className: "notice", role: notice.tone === "bad" ? "alert" : "status" },
    createElement("p", {}, notice.text),
  );
  element.dataset.tone = notice.tone ?? "info";
  if (notice.action) element.append(createElement("button", { type: "button", onclick: notice.onAction }, notice.action));
  if (notice.dismiss)
    element.append(
      createElement(
        "button",
        { type: "button", className: "quiet", ariaLabel: "Dismiss", onclick: () => showNotice(name, null) },
        "×",
      ),
    );
  getById("notices").append(element);
  shown.set(name, { element, key });
}
