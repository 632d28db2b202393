/** Browser storage of the page; without permission nothing is stored. */

/** @param {"localStorage" | "sessionStorage"} place @param {string} name */
export function loadItem(place, name) {
  try {
    return globalThis[place].getItem(name);
  } catch {
    return null;
  }
}

/**
 * @param {"localStorage" | "sessionStorage"} place
 * @param {string} name
 * @param {string | null} value `null` removes it
 */
export function saveItem(place, name, value) {
  try {
    if (value === null) globalThis[place].removeItem(name);
    else globalThis[place].setItem(name, value);
  } catch {
    // a browser may forbid it
  }
}
