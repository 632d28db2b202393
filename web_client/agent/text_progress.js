/** How far the text of an answer has been played. Pure. */

export class TextProgress {
  text = "";
  /** Parts of the text, with the samples that speak them. @type {{first: number, last: number, start: number, end: number}[]} */
  #parts = [];

  /**
   * Add words. The server sends them behind their audio: they are spoken between the words before and here.
   *
   * @param {string} words
   * @param {number} position samples that have come
   */
  add(words, position) {
    const first = this.text.length;
    this.text += words;
    this.#parts.push({ first, last: this.text.length, start: this.#parts.at(-1)?.end ?? 0, end: position });
  }

  /** Number of characters heard, estimated within the words sent at once. @param {number} played samples */
  numHeard(played) {
    const part = this.#parts.find(({ end }) => end > played);
    if (part === undefined) return this.text.length;
    const { first, last, start, end } = part;
    if (played <= start) return first;
    const at = first + Math.floor((last - first) * ((played - start) / (end - start)));
    const space = this.text.indexOf(" ", Math.max(at, first + 1));
    return space === -1 || space > last ? at : space;
  }
}
