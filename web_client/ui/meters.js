/** The values at the top: of all replies that play, or of the last one. */

import { getById, createElement } from "./dom.js";

const FULL_BUFFER_MS = 2_000;

export class Meters {
  constructor() {
    this.first = tile("First audio", "from the click to the first sample out of the page");
    this.buffer = tile("Buffer", "buffered audio of the reply with the least");
    this.underruns = tile("Underruns", "gaps because the text, the server or network, or this page was late");
    this.line = tile("Network", "received audio");
    this.bar = createElement("span", { className: "bar" });
    this.buffer.box.append(this.bar);
    getById("meters").append(...[this.first, this.buffer, this.underruns, this.line].map(({ box }) => box));
  }

  /** @param {import("./reply_card.js").ReplyCard[]} cards newest first */
  show(cards) {
    const sounding = cards.filter(({ response }) => !response.over);
    const shown = sounding.length > 0 ? sounding : cards.slice(0, 1);
    const all = shown.map(({ response }) => response.statistics);
    this.#showFirst(all);
    this.#showBuffer(sounding);
    this.#showUnderruns(cards.map(({ response }) => response.statistics.underruns));
    const num_packets = all.reduce((sum, { num_packets }) => sum + num_packets, 0);
    const rate = all.reduce((sum, { num_bytes, audio_ms }) => sum + (audio_ms > 0 ? (8 * num_bytes) / audio_ms : 0), 0);
    setMeter(this.line, rate > 0 ? rate.toFixed(0) : "–", rate > 0 ? "kbit/s" : "", `${num_packets} packets`);
  }

  /** @param {import("../response.js").Statistics[]} all */
  #showFirst(all) {
    const known = all.filter(({ ttfa_ms }) => ttfa_ms !== null);
    const slowest = Math.max(...known.map(({ ttfa_ms }) => ttfa_ms ?? 0));
    const server = known.find(({ ttfa_ms }) => ttfa_ms === slowest)?.server_first_audio_ms ?? null;
    const note = server === null ? "" : `server ${Math.round(server)} ms`;
    setMeter(this.first, known.length > 0 ? String(Math.round(slowest)) : "–", known.length > 0 ? "ms" : "", note);
  }

  /** @param {import("./reply_card.js").ReplyCard[]} sounding */
  #showBuffer(sounding) {
    const least_ms = Math.min(...sounding.map(({ buffered_ms }) => buffered_ms));
    const known = Number.isFinite(least_ms);
    setMeter(
      this.buffer,
      known ? (least_ms / 1000).toFixed(2) : "–",
      known ? "s" : "",
      known && sounding.length > 1 ? `${sounding.length} replies` : "",
    );
    this.bar.style.setProperty("--share", String(known ? Math.min(1, least_ms / FULL_BUFFER_MS) : 0));
  }

  /** @param {Record<import("../underruns.js").Cause, number>[]} all */
  #showUnderruns(all) {
    const sum = (/** @type {import("../underruns.js").Cause} */ cause) =>
      all.reduce((total, counts) => total + counts[cause], 0);
    const [text, server, page] = [sum("text"), sum("server"), sum("page")];
    setMeter(this.underruns, String(text + server + page), "", `text ${text} · server ${server} · page ${page}`);
    this.underruns.box.dataset.bad = String(server + page > 0);
  }
}

/** @param {string} label @param {string} title */
function tile(label, title) {
  const [value, unit, note] = ["strong", "small", "span"].map((tag) => createElement(/** @type {"span"} */ (tag)));
  note.className = "note";
  const box = createElement("div", { className: "meter", title }, createElement("dt", {}, label), createElement("dd", {}, value, " ", unit, note));
  return { box, value, unit, note };
}

/** @param {ReturnType<typeof tile>} meter @param {string} value @param {string} unit @param {string} note */
function setMeter(meter, value, unit, note) {
  for (const [element, text] of /** @type {[HTMLElement, string][]} */ ([
    [meter.value, value],
    [meter.unit, unit],
    [meter.note, note],
  ])) {
    if (element.textContent !== text) element.textContent = text;
  }
}
