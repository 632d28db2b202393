/** During playback, the space bar interrupts outside of input fields, and Escape everywhere. */

/** @param {KeyboardEvent} event */
const isTyping = ({ target }) =>
  target instanceof Element &&
  target.closest("textarea, select, input:not([type=radio], [type=checkbox], [type=range])") !== null;

/** @param {KeyboardEvent} event */
function interrupts(event) {
  if (event.isComposing || event.ctrlKey || event.altKey || event.metaKey) return false;
  return event.key === "Escape" || (event.key === " " && !isTyping(event));
}

/** @param {() => boolean} isSounding @param {() => void} interrupt */
export function listenForKeys(isSounding, interrupt) {
  let swallow = false;
  const down = (/** @type {KeyboardEvent} */ event) => {
    if (!interrupts(event) || !isSounding()) return;
    event.preventDefault();
    swallow = event.key === " "; // a button would be clicked when the key goes up
    interrupt();
  };
  const up = (/** @type {KeyboardEvent} */ event) => {
    if (swallow && event.key === " ") event.preventDefault();
    swallow = false;
  };
  addEventListener("keydown", down, { capture: true });
  addEventListener("keyup", up, { capture: true });
}
