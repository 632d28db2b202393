/** The views of the page, one of which is shown: the one that the fragment of the address names. */

import { getById } from "./dom.js";

const NAMES = /** @type {const} */ (["say", "talk", "voices"]);

/** @typedef {typeof NAMES[number]} ViewName */

/**
 * Show the view of the address, now and when it changes.
 *
 * @param {(name: ViewName) => unknown} onShow called each time that a view is shown
 * @returns {(name: ViewName) => boolean} whether a view is shown
 */
export function openViews(onShow) {
  const show = () => {
    const name = NAMES.find((known) => `#${known}` === location.hash) ?? NAMES[0];
    for (const other of NAMES) {
      getById(`view-${other}`).hidden = other !== name;
      const link = getById(`to-${other}`);
      if (other === name) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    onShow(name);
  };
  addEventListener("hashchange", show);
  show();
  return (name) => !getById(`view-${name}`).hidden;
}
