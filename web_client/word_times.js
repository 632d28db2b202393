/** The times of a response's words, as the server reports them. */

const HAS_PAIRS = /[\uD800-\uDFFF]/;

export class WordTimes {
  constructor() {
    /** @type {import("./protocol/events.js").Word[]} */
    this.words = [];
    /** Segment borders, in milliseconds of the audio. @type {number[]} */
    this.seams_ms = [];
  }

  /** @param {import("./protocol/events.js").Word[]} words the next ones */
  add(words) {
    for (const word of words) {
      const last = this.words.at(-1);
      if (last !== undefined && word.raw_start <= last.raw_start) continue; // repeated after a lost connection
      if (last !== undefined && last.segment !== word.segment) this.seams_ms.push(word.start_ms);
      this.words.push(word);
    }
  }

  /**
   * Number of UTF-16 units of `text` whose playback has started.
   *
   * @param {string} text
   * @param {number} played_ms
   */
  heardCharCount(text, played_ms) {
    const word = this.words.findLast(({ start_ms }) => start_ms <= played_ms);
    if (word === undefined || played_ms <= 0) return 0;
    return HAS_PAIRS.test(text) ? [...text].slice(0, word.raw_end).join("").length : word.raw_end;
  }
}
