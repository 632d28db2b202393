/** Receive the audio of one response: count, store and decode it. */

import { openDecoder } from "./audio/decoder.js";

/** Maximum size that is stored, to be saved as a file. */
const MAX_KEPT_BYTES = 2 ** 25;

export class ResponseReceiver {
  num_messages = 0;
  num_packets = 0;
  num_bytes = 0;
  /** Decoded. */
  num_samples = 0;
  /** End of what was received, in sample time. */
  received_samples = 0;
  /** @type {Uint8Array[]} */
  #kept = [];

  /**
   * @param {import("./protocol/events.js").ActualFormat} format
   * @param {import("./audio/decoder.js").OpusKind} opus
   * @param {number} rate samples a second to be decoded to
   * @param {(pcm: Float32Array) => void} onPcm
   */
  constructor(format, opus, rate, onPcm) {
    this.format = format;
    this.opus = opus;
    this.rate = rate;
    this.decoder = openDecoder(format, opus, rate, (pcm) => {
      this.num_samples += pcm.length;
      onPcm(pcm);
    });
  }

  /**
   * Messages that are repeated after a lost connection are skipped.
   *
   * @param {import("./protocol/events.js").AudioMessage} message
   * @returns {number} where all audio that has come ends, in samples of speech at `rate`
   */
  receiveAudio(message) {
    const { sample_rate, pre_skip_samples } = this.format;
    const end = message.sample_time + this.#samplesIn(message);
    if (end > this.received_samples) this.#decode(message);
    this.received_samples = Math.max(this.received_samples, end);
    return ((this.received_samples - pre_skip_samples) * this.rate) / sample_rate;
  }

  /** @param {import("./protocol/events.js").AudioMessage} message */
  #decode(message) {
    for (const packet of message.packets) {
      if (this.num_bytes < MAX_KEPT_BYTES) this.#kept.push(packet);
      this.num_packets += 1;
      this.num_bytes += packet.length;
      this.decoder.decode(packet);
    }
    this.num_messages += 1;
  }

  /**
   * No packet comes any more.
   *
   * @param {number} total samples of speech there should be, at most
   * @returns {Promise<number>} samples there are
   */
  async finish(total) {
    await this.decoder.flush();
    this.decoder.close();
    this.num_samples = Math.min(this.num_samples, total);
    return this.num_samples;
  }

  /** Decode all stored packets again. @returns {Promise<Float32Array>} */
  async replay() {
    /** @type {Float32Array[]} */
    const parts = [];
    const decoder = openDecoder(this.format, this.opus, this.rate, (pcm) => parts.push(pcm));
    for (const packet of this.#kept) decoder.decode(packet);
    await decoder.flush();
    decoder.close();
    const sound = new Float32Array(parts.reduce((sum, part) => sum + part.length, 0));
    let at = 0;
    for (const part of parts) {
      sound.set(part, at);
      at += part.length;
    }
    return sound;
  }

  close() {
    this.decoder.close();
  }

  /** Return the number of samples of a message, at its own rate. @param {import("./protocol/events.js").AudioMessage} message */
  #samplesIn({ packets }) {
    if (this.format.encoding === "opus") return (packets.length * this.format.sample_rate) / 50;
    const num_bytes = packets.reduce((sum, packet) => sum + packet.length, 0);
    return this.format.encoding === "pcm_s16le" ? num_bytes / 2 : num_bytes;
  }
}
