/** The user's microphone for a conversation: off, while a button is held, or hands-free. */

import { Microphone } from "../audio/microphone.js";
import { Resampler } from "../audio/resampler.js";
import { AGENT_RATE } from "./realtime_socket.js";

/** @typedef {"off" | "hold" | "free"} MicrophoneMode */

export class AgentMicrophone {
  /** @type {MicrophoneMode} */
  mode = "off";
  /** Milliseconds sent since the button was pressed. */
  sent_ms = 0;
  #is_held = false;
  /** @type {Promise<Microphone> | null} */
  #opening = null;
  /** @type {Resampler | null} */
  #resampler = null;

  /** @param {(pcm: Float32Array) => void} onAudio receives samples at `AGENT_RATE` */
  constructor(onAudio) {
    this.onAudio = onAudio;
  }

  /** Throws an `Error` that says why there is no microphone; it is off then. @param {MicrophoneMode} mode */
  async setMode(mode) {
    this.mode = mode;
    this.#is_held = false;
    this.#resampler = null;
    if (mode === "off") return this.#close();
    const opening = (this.#opening ??= Microphone.open((pcm) => this.#receive(pcm), { is_call: true }));
    try {
      const { rate } = await opening;
      if (this.#opening === opening) this.#resampler = new Resampler(rate, AGENT_RATE);
    } catch (error) {
      if (this.#opening === opening) await this.#close();
      throw error;
    }
  }

  get is_open() {
    return this.#resampler !== null;
  }

  /** Send audio from now on. */
  press() {
    this.sent_ms = 0;
    this.#is_held = true;
  }

  release() {
    this.#is_held = false;
  }

  /** @param {Float32Array} pcm */
  #receive(pcm) {
    if (this.#resampler === null) return;
    const samples = this.#resampler.push(pcm);
    if (this.mode === "hold" && !this.#is_held) return;
    this.sent_ms += (1000 * samples.length) / AGENT_RATE;
    this.onAudio(samples);
  }

  async #close() {
    const opening = this.#opening;
    this.mode = "off";
    this.#opening = null;
    this.#resampler = null;
    await opening?.then((microphone) => microphone.close()).catch(() => {}); // one that did not open is closed
  }
}
