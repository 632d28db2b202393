/** Create and find elements. Text is inserted as text, never as markup. */

/**
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Partial<HTMLElementTagNameMap[Tag]>} [properties]
 * @param {...(Node | string)} children
 * @returns {HTMLElementTagNameMap[Tag]}
 */
export function createElement(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

/**
 * Return the element of the page with this id.
 *
 * @template {HTMLElement} [Kind=HTMLElement]
 * @param {string} id
 * @returns {Kind}
 */
export function getById(id) {
  const element = document.getElementById(id);
  if (element === null) throw new Error(`the page has no element ${id}`);
  return /** @type {Kind} */ (element);
}

/** @param {string} id @returns {HTMLInputElement} */
export const input = (id) => getById(id);

/** @param {string} id @returns {HTMLSelectElement} */
export const select = (id) => getById(id);

/** @param {string} id @returns {HTMLTextAreaElement} */
export const textarea = (id) => getById(id);

/**
 * Offer these names; the present choice stays.
 *
 * @param {HTMLSelectElement} element
 * @param {string[]} names
 * @param {string} [chosen]
 */
export function fillSelect(element, names, chosen) {
  const before = element.value || chosen;
  element.replaceChildren(...names.map((name) => createElement("option", { value: name }, name)));
  if (before !== undefined && names.includes(before)) element.value = before;
}
