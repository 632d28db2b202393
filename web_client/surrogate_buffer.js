/** Buffer for text that may be split anywhere, also inside a surrogate pair. */

/** Replace lone surrogates, which JSON does not allow. @param {string} text */
export const wellFormed = (text) => text.replace(/\p{Surrogate}/gu, "\uFFFD");

export class SurrogateBuffer {
  #half = "";

  /** Return the complete characters so far. @param {string} text */
  push(text) {
    const all = this.#half + text;
    this.#half = /[\uD800-\uDBFF]$/.test(all) ? all.slice(-1) : "";
    return wellFormed(all.slice(0, all.length - this.#half.length));
  }

  /** Return the remainder at the end of the text. */
  close() {
    const rest = wellFormed(this.#half);
    this.#half = "";
    return rest;
  }
}
