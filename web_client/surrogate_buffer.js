/** Text that may be cut anywhere, also between the two halves of a character outside the basic plane. */

/** The same with a replacement character for each half that stands alone: JSON has none. @param {string} text */
export const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\uFFFD");

export class SurrogateBuffer {
  #half = "";

  /** What is whole so far. @param {string} text */
  push(text) {
    const all = this.#half + text;
    this.#half = /[\uD800-\uDBFF]$/.test(all) ? all.slice(-1) : "";
    return wellFormed(all.slice(0, all.length - this.#half.length));
  }

  /** The rest, when no more comes. */
  close() {
    const rest = wellFormed(this.#half);
    this.#half = "";
    return rest;
  }
}
