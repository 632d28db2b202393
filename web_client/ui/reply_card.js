/** One reply on the page: text, waveform, statistics. */

import { createElement } from "./dom.js";
import { ReplyText } from "./reply_text.js";
import { drawWaveform } from "./waveform.js";

const STATES = {
  waiting: "waiting for audio",
  playing: "speaking",
  completed: "heard",
  silent: "no speech",
  cancelled: "interrupted",
  failed: "failed",
};

const NUMBERS = {
  ttfa: "first audio",
  buffer: "buffer",
  underruns: "underruns",
  packets: "packets",
  rate: "bitrate",
  length: "length",
};

export class ReplyCard {
  #text = new ReplyText();
  #buffered_ms = 0;
  #dirty = true;
  /** @type {Map<string, HTMLElement>} */
  #numbers = new Map();

  /**
   * @param {import("../response.js").SpokenResponse} response
   * @param {number} number
   * @param {string} how in words: voice, format
   * @param {{onStop: () => void, onSave: () => void}} actions
   */
  constructor(response, number, how, { onStop, onSave }) {
    this.response = response;
    this.state = createElement("span", { className: "state" });
    this.stop = createElement(
      "button",
      { type: "button", className: "quiet", onclick: onStop, ariaLabel: `Interrupt reply ${number}` },
      "Interrupt",
    );
    this.save = createElement(
      "button",
      { type: "button", className: "quiet", onclick: onSave, ariaLabel: `Save the played audio of reply ${number}` },
      "Save",
    );
    this.canvas = createElement("canvas", { className: "wave", role: "img", ariaLabel: `Waveform of reply ${number}` });
    this.numbers = createElement("dl", { className: "numbers" });
    this.problem = createElement("p", { className: "problem", hidden: true });
    this.element = this.#build(number, how);
    this.#listen(response);
  }

  /** @param {number} number @param {string} how */
  #build(number, how) {
    const [title, manner] = [createElement("h2", {}, `Reply ${number}`), createElement("span", { className: "muted how" }, how)];
    const head = createElement("header", {}, title, manner, this.state, this.stop, this.save);
    for (const [name, label] of Object.entries(NUMBERS)) {
      const value = createElement("dd", {}, "–");
      this.#numbers.set(name, value);
      this.numbers.append(createElement("div", {}, createElement("dt", {}, label), value));
    }
    const parts = [head, this.#text.element, this.canvas, this.problem, this.numbers];
    return createElement("li", { className: "card reply" }, ...parts);
  }

  /** @param {import("../response.js").SpokenResponse} response */
  #listen(response) {
    response.on("level", ({ buffered }) => {
      this.#buffered_ms = (1000 * buffered) / response.voice.player.context.sampleRate;
    });
    for (const event of /** @type {const} */ (["audio", "playing", "underrun", "done", "heard", "over"])) {
      response.on(event, () => (this.#dirty = true));
    }
  }

  get buffered_ms() {
    return this.response.over ? 0 : this.#buffered_ms;
  }

  /** Update the card; called for every frame during playback. */
  refresh() {
    if (this.response.over && !this.#dirty) return;
    this.#dirty = false;
    const state = this.#state();
    this.element.dataset.state = state;
    this.state.textContent = STATES[state];
    this.stop.hidden = this.response.over;
    this.save.hidden = !this.response.over || this.response.statistics.audio_ms === 0;
    this.#text.show(this.response);
    this.#showProblem();
    this.#showNumbers();
    this.redraw();
  }

  redraw() {
    const { peaks, played_ms, over, status, word_times } = this.response;
    drawWaveform(this.canvas, {
      peaks: peaks.values,
      played_ms,
      cut_ms: over && status === "cancelled" ? played_ms : null,
      seams_ms: word_times.seams_ms,
    });
  }

  /** @returns {keyof typeof STATES} */
  #state() {
    const { over, status, statistics } = this.response;
    if (status === "failed" || status === "cancelled") return status;
    if (over) return statistics.audio_ms === 0 ? "silent" : "completed";
    return statistics.ttfa_ms === null ? "waiting" : "playing";
  }

  #showProblem() {
    const { error } = this.response;
    this.problem.hidden = error === null;
    if (error !== null) this.problem.textContent = `${error.message} (${error.code})`;
  }

  #showNumbers() {
    const { ttfa_ms, server_first_audio_ms, num_packets, num_bytes, audio_ms, underruns } = this.response.statistics;
    const { text, server, page } = underruns;
    this.#put(
      "ttfa",
      ttfa_ms === null ? "–" : `${Math.round(ttfa_ms)} ms`,
      server_first_audio_ms === null ? "" : `of which the server ${Math.round(server_first_audio_ms)} ms`,
    );
    this.#put("buffer", this.response.over ? "–" : `${Math.round(this.#buffered_ms)} ms`);
    this.#put("underruns", String(text + server + page), `text ${text}, server ${server}, page ${page}`);
    this.#put("packets", String(num_packets));
    this.#put("rate", audio_ms > 0 ? `${((8 * num_bytes) / audio_ms).toFixed(1)} kbit/s` : "–");
    this.#put("length", `${(audio_ms / 1000).toFixed(2)} s`);
  }

  /** @param {string} name @param {string} value @param {string} [title] */
  #put(name, value, title = "") {
    const element = /** @type {HTMLElement} */ (this.#numbers.get(name));
    if (element.textContent !== value) element.textContent = value;
    if (element.title !== title) element.title = title;
  }
}
