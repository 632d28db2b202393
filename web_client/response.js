/** One spoken reply, from its text to the audio device. */

import { Peaks } from "./audio/peaks.js";
import { Emitter } from "./emitter.js";
import { serialize } from "./protocol/native.js";
import { ResponseReceiver } from "./response_receiver.js";
import { UnderrunTracker } from "./underruns.js";
import { SurrogateBuffer } from "./surrogate_buffer.js";
import { WordTimes } from "./word_times.js";

/**
 * @typedef {import("./protocol/events.js").HeardBody} Heard
 * @typedef {import("./protocol/events.js").AudioMessage} AudioMessage
 * @typedef {import("./protocol/events.js").ErrorBody} ErrorBody
 * @typedef {"speaking" | "completed" | "cancelled" | "failed"} Status
 *
 * @typedef {object} Statistics
 * @property {number | null} ttfa_ms from the text that makes the first word final to the first sample out of the page
 * @property {number | null} server_first_audio_ms the server's share of it, by its own clock
 * @property {number} num_messages
 * @property {number} num_packets
 * @property {number} num_bytes
 * @property {number} audio_ms received
 * @property {Record<import("./underruns.js").Cause, number>} underruns
 *
 * @typedef {object} ResponseEvents
 * @property {AudioMessage} audio came
 * @property {Statistics} playing the first sample has left the page
 * @property {import("./underruns.js").Cause} underrun audio continues after an underrun
 * @property {import("./audio/mixer.js").VoiceLevel} level
 * @property {Status} done the server has said all it will
 * @property {Heard} heard heard and remaining text
 * @property {Status} over end of playback
 */

/** @extends {Emitter<ResponseEvents>} */
export class SpokenResponse extends Emitter {
  text = "";
  text_ended = false;
  /** Flushes asked for: places in the text, in characters. @type {number[]} */
  #flushes = [];
  /** For a server that lacks its session. @type {import("./protocol/events.js").Settings | null} */
  #settings = null;
  /** @type {string[]} */
  #checkpoints = [];
  #num_flushed = 0;
  /** @type {Status} */
  status = "speaking";
  /** True after the end of playback. */
  over = false;
  /** @type {Heard | null} */
  heard = null;
  /** @type {ErrorBody | null} */
  error = null;
  /** With the setting `word_times`. */
  word_times = new WordTimes();
  /** From `response.created` on. @type {ResponseReceiver | null} */
  reception = null;
  underruns = new UnderrunTracker();
  #whole = new SurrogateBuffer();
  #final_ms = /** @type {number | null} */ (null);
  #ttfa_ms = /** @type {number | null} */ (null);
  #server_first_audio_ms = /** @type {number | null} */ (null);
  /** True after an interruption. */
  interrupted = false;
  #resolve = (/** @type {Status} */ _) => {};

  /**
   * @param {string} id
   * @param {(event: import("./protocol/events.js").ClientEvent) => void} send
   * @param {import("./audio/player.js").PlayerVoice} voice
   * @param {import("./audio/decoder.js").OpusKind} opus
   */
  constructor(id, send, voice, opus) {
    super();
    this.id = id;
    this.voice = voice;
    this.peaks = new Peaks(voice.player.context.sampleRate);
    this.#send = send;
    this.opus = opus;
    /** Settles after the end of playback. @type {Promise<Status>} */
    this.finished = new Promise((resolve) => (this.#resolve = resolve));
    voice.on("started", ({ position }) => this.#started(position));
    voice.on("underrun", ({ position }) => this.underruns.onUnderrun(position, performance.now()));
    voice.on("level", (level) => this.emit("level", level));
    voice.on("over", () => this.#stopPlayback());
  }

  #send;

  /**
   * More of its text, in pieces of any length. Throws after `end`.
   *
   * @param {string} text
   * @param {number} [at_ms] when it was decided upon
   */
  push(text, at_ms = performance.now()) {
    this.#requireOpen();
    this.#append(this.#whole.push(text));
    if (this.#final_ms === null && /\S\s/u.test(this.text)) this.#final_ms = at_ms;
  }

  /** Synthesize all text so far without waiting for more. */
  flush() {
    this.#requireOpen();
    this.#append(this.#whole.close());
    this.#final_ms ??= performance.now();
    this.underruns.sent();
    this.#flushes.push([...this.text].length);
    this.#sendIfActive({ type: "text.flush", response_id: this.id });
  }

  /** Mark the text as complete. */
  end() {
    if (this.text_ended) return;
    this.#append(this.#whole.close());
    this.begin("", true, performance.now());
    this.#sendIfActive({ type: "text.end", response_id: this.id });
  }

  /** Record text that is sent with the creation. @param {string} text @param {boolean} end @param {number} at_ms */
  begin(text, end, at_ms) {
    this.text += text;
    this.text_ended = end;
    if (end) this.#final_ms ??= at_ms;
    this.underruns.sent();
  }

  /**
   * Stop playback, then the response. The event `heard` follows with the answer of the server.
   *
   * @returns {Promise<number>} milliseconds of it that were played
   */
  async interrupt() {
    if (this.over || this.interrupted) return this.played_ms;
    this.interrupted = true;
    if (this.status === "completed") this.status = "cancelled"; // all had come, and not all was heard
    this.reception?.close();
    const position = await this.voice.stop();
    const played_ms = this.#ms(position);
    if (this.status !== "failed") this.#send({ type: "response.cancel", response_id: this.id, played_ms });
    return played_ms;
  }

  /** Milliseconds played by now. */
  get played_ms() {
    return this.#ms(this.voice.played_samples);
  }

  /** Number of characters heard by now, by the word times received. */
  heardCharCount() {
    return this.word_times.heardCharCount(this.text, this.played_ms);
  }

  /** @returns {Statistics} */
  get statistics() {
    return {
      ttfa_ms: this.#ttfa_ms,
      server_first_audio_ms: this.#server_first_audio_ms,
      num_messages: this.reception?.num_messages ?? 0,
      num_packets: this.reception?.num_packets ?? 0,
      num_bytes: this.reception?.num_bytes ?? 0,
      audio_ms: this.#ms(this.reception?.num_samples ?? 0),
      underruns: { ...this.underruns.counts },
    };
  }

  /** @param {import("./protocol/events.js").ServerEvent | AudioMessage} event of this response */
  receive(event) {
    if (!("type" in event)) this.#receiveAudio(event);
    else if (event.type === "response.created") this.#open(event);
    else if (event.type === "response.checkpoint") this.#checkpoints.splice(event.index, Infinity, event.data);
    else if (event.type === "text.flushed") this.#num_flushed = event.flush + 1;
    else if (event.type === "response.words") this.word_times.add(event.words);
    else if (event.type === "response.done") this.#end(event);
    else if (event.type === "response.heard") this.#emitHeardText(event.heard);
    else if (event.type === "error" && this.reception === null) this.fail(event); // it was refused
  }

  /** Fail the response; received audio is still played. @param {ErrorBody} error */
  fail(error) {
    this.error = error;
    this.#finishSound(Infinity);
    this.#setStatus("failed");
  }

  /** What was received, for `session.resume`. @returns {import("./protocol/events.js").ResumePosition} */
  get position() {
    return {
      response_id: this.id,
      received_samples: this.reception?.received_samples ?? 0,
      ...(this.played_ms > 0 && { played_ms: Math.round(this.played_ms) }),
    };
  }

  /**
   * Go on after a lost connection: send what the server lacks.
   *
   * @param {import("./protocol/events.js").ResumedResponse} resumed
   */
  resume(resumed) {
    if (resumed.format !== null) this.#open(resumed);
    if (resumed.state === "open") this.#sendAgain(resumed.received_chars, resumed.received_flushes);
    if (this.interrupted) this.#send({ type: "response.cancel", response_id: this.id, played_ms: this.played_ms });
  }

  /**
   * Go on at a server that lacks its session. Returns false, and sends nothing, if that is impossible. A longer message
   * would end the session, with all other responses.
   *
   * @param {import("./protocol/events.js").Settings} settings unless the former server told
   * @param {number} max_message_bytes
   */
  resync(settings, max_message_bytes) {
    const { response_id, ...position } = this.position;
    const has_received = (position.received_samples ?? 0) > 0;
    if (this.interrupted || (this.#checkpoints.length === 0 && has_received)) return false;
    const received = { received_flushes: this.#num_flushed, received_words: this.word_times.words.length };
    /** @type {import("./protocol/events.js").ClientEvent} */
    const event = {
      type: "response.create",
      response_id,
      settings: this.#settings ?? settings,
      resync: { checkpoints: this.#checkpoints, ...position, ...received },
    };
    if (new TextEncoder().encode(serialize(event)).length > max_message_bytes) return false;
    this.#send(event);
    this.#sendAgain(0, 0);
    return true;
  }

  /** @param {number} num_chars @param {number} num_flushes that the server has */
  #sendAgain(num_chars, num_flushes) {
    const chars = [...this.text];
    for (const place of [...this.#flushes.slice(num_flushes), null]) {
      const text = chars.slice(num_chars, place ?? chars.length).join("");
      if (text) this.#send({ type: "text.append", response_id: this.id, text, at: num_chars });
      num_chars = Math.max(num_chars, place ?? 0);
      if (place !== null) this.#send({ type: "text.flush", response_id: this.id });
    }
    if (this.text_ended) this.#send({ type: "text.end", response_id: this.id });
  }

  /** @param {string} text */
  #append(text) {
    if (!text) return;
    this.text += text;
    this.underruns.sent();
    this.#sendIfActive({ type: "text.append", response_id: this.id, text });
  }

  /** Send an event, unless the response has ended. @param {import("./protocol/events.js").ClientEvent} event */
  #sendIfActive(event) {
    if (this.status === "speaking") this.#send(event);
  }

  #requireOpen() {
    if (this.text_ended) throw new Error("the text of this response has ended");
  }

  /** @param {import("./protocol/events.js").ResponseCreated | import("./protocol/events.js").ResumedResponse} told */
  #open({ format, settings }) {
    this.#settings = settings ?? this.#settings;
    if (this.reception !== null || format === null) return; // the decoder goes on
    this.reception = new ResponseReceiver(format, this.opus, this.#rate, (pcm) => this.#play(pcm));
  }

  /** @param {AudioMessage} message */
  #receiveAudio(message) {
    if (this.interrupted || this.reception === null) return;
    this.underruns.received(this.reception.receiveAudio(message), performance.now());
    this.emit("audio", message);
  }

  /** @param {Float32Array} pcm */
  #play(pcm) {
    if (this.interrupted) return;
    this.peaks.push(pcm);
    this.voice.push(pcm);
  }

  /** @param {number} position */
  #started(position) {
    const cause = this.underruns.resumed();
    if (cause !== null) this.emit("underrun", cause);
    if (position > 0) return;
    this.#ttfa_ms = performance.now() - (this.#final_ms ?? performance.now());
    this.emit("playing", this.statistics);
  }

  /** @param {import("./protocol/events.js").ResponseDone} done */
  #end(done) {
    this.#server_first_audio_ms = done.first_audio_ms;
    this.error = done.error;
    if (done.heard !== null) this.#emitHeardText(done.heard);
    const rate = this.reception?.format.sample_rate ?? this.#rate;
    this.#finishSound(Math.round((done.audio_samples * this.#rate) / rate));
    this.#setStatus(done.status);
  }

  /** End the audio; of the received samples play at most `total`. @param {number} total */
  async #finishSound(total) {
    this.voice.end((await this.reception?.finish(total)) ?? 0);
  }

  /** @param {Heard} heard */
  #emitHeardText(heard) {
    this.heard = heard;
    this.emit("heard", heard);
  }

  /** @param {Status} status */
  #setStatus(status) {
    if (this.status !== "speaking") return;
    this.status = status;
    this.emit("done", status);
    this.#settle();
  }

  #stopPlayback() {
    const { server, page } = this.underruns.counts;
    this.voice.player.adaptPrebuffer(server + page > 0);
    this.over = true;
    this.#settle();
  }

  #settle() {
    if (!this.over || this.status === "speaking") return;
    this.emit("over", this.status);
    this.#resolve(this.status);
  }

  get #rate() {
    return this.voice.player.context.sampleRate;
  }

  /** @param {number} samples */
  #ms(samples) {
    return (1000 * samples) / this.#rate;
  }
}
