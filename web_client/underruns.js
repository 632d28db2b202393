/** Find the cause of an underrun. Pure: times are arguments, in milliseconds of one clock. */

/**
 * `text`: audio came again only after more text was sent. `server`: no text had been lacking, and no audio came, from
 * the
 * engine or over the network. `page`: the audio had come and was not decoded in time.
 *
 * @typedef {"text" | "server" | "page"} Cause
 */

export class UnderrunTracker {
  constructor() {
    /** @type {Record<Cause, number>} */
    this.counts = { text: 0, server: 0, page: 0 };
    /**
     * Audio messages: where each ends, when it came, and whether text was sent since the one before it.
     *
     * @type {{position: number, at_ms: number, after_text: boolean}[]}
     */
    this.arrivals = [];
    this.text_was_sent = false;
    /** @type {{position: number, at_ms: number} | null} */
    this.dry = null;
  }

  /** Text, a flush or the end was sent. */
  sent() {
    this.text_was_sent = true;
  }

  /** @param {number} position where all audio that has come ends @param {number} at_ms */
  received(position, at_ms) {
    this.arrivals.push({ position, at_ms, after_text: this.text_was_sent });
    this.text_was_sent = false;
  }

  /** @param {number} position @param {number} at_ms */
  onUnderrun(position, at_ms) {
    this.dry = { position, at_ms };
  }

  /** Audio continues; if it never does, it was the end and no underrun. @returns {Cause | null} */
  resumed() {
    const dry = this.dry;
    this.dry = null;
    if (dry === null) return null;
    const found = this.arrivals.findIndex(({ position }) => position > dry.position);
    this.arrivals.splice(0, Math.max(0, found));
    const cause = this.#causeOf(dry.at_ms);
    this.counts[cause] += 1;
    return cause;
  }

  /** @param {number} dry_ms @returns {Cause} */
  #causeOf(dry_ms) {
    const [{ at_ms, after_text }] = this.arrivals;
    if (at_ms <= dry_ms) return "page";
    return after_text ? "text" : "server";
  }
}
