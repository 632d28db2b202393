/** Sum all voices that play. Pure: messages in, samples and reports out. */

import { JitterBuffer } from "./jitter_buffer.js";

/** Below this level samples are unchanged; above, sums are compressed instead of clipped. */
const KNEE = 0.85;

/**
 * @typedef {{type: "open", voice: number, settings: import("./jitter_buffer.js").JitterSettings}
 *   | {type: "push", voice: number, pcm: Float32Array}
 *   | {type: "end", voice: number, total: number}
 *   | {type: "stop", voice: number}} MixerCommand
 * @typedef {import("./jitter_buffer.js").PlayoutEvent & {voice: number}} VoiceEvent
 * @typedef {{voice: number, frame: number, position: number, buffered: number, peak: number}} VoiceLevel
 */

export class Mixer {
  constructor() {
    /** @type {Map<number, {buffer: JitterBuffer, peak: number}>} */
    this.voices = new Map();
    this.scratch = new Float32Array(0);
    /** The next expected frame. */
    this.next_frame = -1;
  }

  /** Apply a command; commands for an ended voice are ignored. @param {MixerCommand} command */
  handleCommand(command) {
    if (command.type === "open") {
      this.voices.set(command.voice, { buffer: new JitterBuffer(command.settings), peak: 0 });
      return;
    }
    const buffer = this.voices.get(command.voice)?.buffer;
    if (buffer === undefined) return;
    if (command.type === "push") buffer.push(command.pcm);
    else if (command.type === "end") buffer.end(command.total);
    else buffer.stop();
  }

  /** @param {Float32Array} output is overwritten @param {number} frame @returns {VoiceEvent[]} */
  render(output, frame) {
    /** @type {VoiceEvent[]} */
    const happened = [];
    output.fill(0);
    if (frame !== this.next_frame) happened.push(...this.#skips(frame));
    this.next_frame = frame + output.length;
    if (this.scratch.length !== output.length) this.scratch = new Float32Array(output.length);
    for (const [voice, entry] of this.voices) {
      const own = this.scratch.fill(0);
      for (const event of entry.buffer.render(own, frame)) happened.push({ ...event, voice });
      for (let index = 0; index < own.length; index += 1) {
        output[index] += own[index];
        entry.peak = Math.max(entry.peak, Math.abs(own[index]));
      }
      if (entry.buffer.state === "over") this.voices.delete(voice);
    }
    for (let index = 0; index < output.length; index += 1) output[index] = softClip(output[index]);
    return happened;
  }

  /** Account for frames that the device skipped, mostly while it starts. @param {number} frame */
  #skips(frame) {
    const sounding = [...this.voices].filter(([, { buffer }]) => buffer.isPlaying);
    return sounding.map(([voice, { buffer }]) => ({
      kind: /** @type {const} */ ("skipped"),
      frame,
      position: buffer.position,
      voice,
    }));
  }

  /** Return the state of each voice, with peaks since the last call. @param {number} frame @returns {VoiceLevel[]} */
  levels(frame) {
    return [...this.voices].map(([voice, entry]) => {
      const { position, buffered } = entry.buffer;
      const { peak } = entry;
      entry.peak = 0;
      return { voice, frame, position, buffered, peak };
    });
  }
}

/** Compress smoothly up to 1; identity for one voice. @param {number} sample */
export function softClip(sample) {
  const size = Math.abs(sample);
  if (size <= KNEE) return sample;
  return Math.sign(sample) * (KNEE + (1 - KNEE) * Math.tanh((size - KNEE) / (1 - KNEE)));
}
