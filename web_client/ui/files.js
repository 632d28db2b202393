/** Files that the page saves. */

import { createElement } from "./dom.js";

/** @param {Blob} file @param {string} name */
export function saveFile(file, name) {
  const link = createElement("a", { href: URL.createObjectURL(file), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
