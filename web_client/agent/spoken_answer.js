/** One answer of the agent: its text, its audio, and what was heard of it. */

import { PcmDecoder } from "../audio/pcm.js";
import { AGENT_RATE, fromBase64 } from "./realtime_socket.js";
import { TextProgress } from "./text_progress.js";

/**
 * @typedef {"thinking" | "speaking" | "heard" | "interrupted" | "failed"} AnswerState
 * @typedef {{endpointing_ms: number | null, stt_ms: number | null, llm_first_token_ms: number | null,
 *   first_audio_ms: number | null}} AgentLatency
 */

export class SpokenAnswer {
  kind = /** @type {const} */ ("agent");
  /** Of its message. @type {string | null} */
  item_id = null;
  /** What the conversation holds, if the answer was interrupted. @type {string | null} */
  heard = null;
  /** What was played, if it was interrupted. @type {number | null} */
  played_ms = null;
  /** Function calls. @type {{name: string, arguments: string}[]} */
  calls = [];
  /** @type {AgentLatency | null} */
  latency = null;
  /** @type {string | null} */
  error = null;
  /** True once the server has ended it. */
  is_done = false;
  /** True once the server has cut its item. */
  is_truncated = false;
  is_stopped = false;
  /** @type {import("../audio/player.js").PlayerVoice | null} */
  #voice = null;
  /** @type {PcmDecoder | null} */
  #decoder = null;
  #num_pushed = 0;
  #progress = new TextProgress();
  #num_heard = 0;

  /**
   * @param {string} id of the response
   * @param {import("../audio/player.js").Player} player
   * @param {() => void} onChange
   */
  constructor(id, player, onChange) {
    this.id = id;
    this.player = player;
    this.onChange = onChange;
  }

  /** @param {string} delta words, which come with their audio */
  addText(delta) {
    this.#progress.add(delta, this.#num_pushed);
  }

  /** What was sent as its words. */
  get text() {
    return this.#progress.text;
  }

  /** Number of characters that were heard, estimated. */
  get num_heard() {
    return this.over && !this.is_stopped ? this.text.length : this.#num_heard;
  }

  /** @param {string} delta s16le at `AGENT_RATE`, in base64 */
  pushAudio(delta) {
    if (this.is_stopped) return;
    this.#decoder ??= this.#open();
    this.#decoder.decode(fromBase64(delta));
  }

  /** All audio has come. */
  async endAudio() {
    if (this.is_stopped) return;
    await this.#decoder?.flush();
    this.#voice?.end(this.#num_pushed);
  }

  /** Stop playback. Returns the milliseconds that were played. */
  async stop() {
    this.is_stopped = true;
    const num_samples = this.#voice === null ? 0 : await this.#voice.stop();
    this.played_ms = Math.floor((1000 * num_samples) / this.player.context.sampleRate);
    this.onChange();
    return this.played_ms;
  }

  /** True if nothing more comes and nothing plays. */
  get over() {
    const is_silent = this.#voice === null || this.#voice.over;
    return is_silent && (this.is_done || this.is_stopped);
  }

  /** @returns {AnswerState} */
  get state() {
    if (this.error !== null && this.over) return "failed";
    if (this.is_stopped) return "interrupted";
    if (this.over) return "heard";
    return this.#voice === null ? "thinking" : "speaking";
  }

  /** @param {number} played */
  #follow(played) {
    const num_heard = this.#progress.numHeard(played);
    if (num_heard === this.#num_heard) return;
    this.#num_heard = num_heard;
    this.onChange();
  }

  #open() {
    const voice = this.player.voice();
    voice.on("over", this.onChange);
    voice.on("level", () => this.#follow(voice.played_samples));
    this.#voice = voice;
    return new PcmDecoder("pcm_s16le", AGENT_RATE, this.player.context.sampleRate, (pcm) => {
      this.#num_pushed += pcm.length;
      voice.push(pcm);
    });
  }
}
