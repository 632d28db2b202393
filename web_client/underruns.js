/** Whose fault it was that the sound ran dry. Pure: times are passed in, in milliseconds of one clock. */

/** Speech lags the text it is made from by about so much. */
const TEXT_SLACK_MS = 500;

/**
 * `text`: it had not been written yet. `server`: it had, and no audio came, from the engine or over the network.
 * `page`: the audio had come and was not decoded in time.
 *
 * @typedef {"text" | "server" | "page"} Cause
 */

export class Underruns {
  constructor() {
    /** @type {Record<Cause, number>} */
    this.counts = { text: 0, server: 0, page: 0 };
    /** @type {{position: number, at_ms: number}[]} audio messages: where each ends, and when it came */
    this.arrivals = [];
    this.text_ms = -Infinity;
    this.ended_ms = Infinity;
    /** @type {{position: number, at_ms: number} | null} */
    this.dry = null;
  }

  /** Text, a flush or the end was sent. @param {number} at_ms @param {boolean} ended */
  sent(at_ms, ended) {
    this.text_ms = at_ms;
    if (ended) this.ended_ms = Math.min(this.ended_ms, at_ms);
  }

  /** @param {number} end_position of all audio that has come @param {number} at_ms */
  received(end_position, at_ms) {
    this.arrivals.push({ position: end_position, at_ms });
  }

  /** @param {number} position @param {number} at_ms */
  ranDry(position, at_ms) {
    this.dry = { position, at_ms };
  }

  /** Sound is back; if it never comes back, it was the end and no underrun. @returns {Cause | null} */
  resumed() {
    const dry = this.dry;
    this.dry = null;
    if (dry === null) return null;
    const found = this.arrivals.findIndex((arrival) => arrival.position > dry.position);
    const came_ms = this.arrivals[found]?.at_ms ?? Infinity;
    this.arrivals.splice(0, Math.max(0, found));
    const cause = this.#causeOf(dry.at_ms, came_ms);
    this.counts[cause] += 1;
    return cause;
  }

  get total() {
    return this.counts.text + this.counts.server + this.counts.page;
  }

  /** @param {number} dry_ms @param {number} came_ms @returns {Cause} */
  #causeOf(dry_ms, came_ms) {
    if (came_ms <= dry_ms) return "page";
    const was_open = this.ended_ms > dry_ms - TEXT_SLACK_MS;
    const text_was_late = this.text_ms > dry_ms - TEXT_SLACK_MS;
    return was_open && text_was_late ? "text" : "server";
  }
}
