/**
 * Play voices through short buffers, scheduled one after the other, for pages without audio worklets: those over plain
 * http from another machine.
 */

import { Emitter } from "../emitter.js";
import { JitterBuffer } from "./jitter_buffer.js";
import { PlayoutTimeline } from "./timeline.js";

const TICK_MS = 20;
const BLOCK_S = 0.02;
/** Seconds for which available audio is scheduled ahead. */
const AHEAD_S = 0.25;
/** ... more in a hidden tab, whose timers are slow ... */
const AHEAD_HIDDEN_S = 1.5;
/** ... and given up on only when there is so little left. */
const MARGIN_S = 0.04;

/** @typedef {import("./jitter_buffer.js").PlayoutEvent} Happened */

class ScheduledVoice {
  /** @param {AudioContext} context @param {import("./jitter_buffer.js").JitterSettings} settings */
  constructor(context, settings) {
    this.context = context;
    this.buffer = new JitterBuffer(settings);
    this.timeline = new PlayoutTimeline();
    this.gain = context.createGain();
    this.gain.connect(context.destination);
    this.next_frame = 0;
    this.peak = 0;
    /** @type {Set<AudioBufferSourceNode>} */
    this.sources = new Set();
    /** Audio is scheduled ahead; its end is reported when it is reached. @type {Happened | undefined} */
    this.drained = undefined;
  }

  /** Schedule the available audio. @param {number} ahead_s @returns {Happened[]} */
  advance(ahead_s) {
    const { sampleRate: rate, currentTime } = this.context;
    const now = Math.ceil(currentTime * rate);
    const block = Math.round(BLOCK_S * rate);
    /** @type {Happened[]} */
    const happened = [];
    this.next_frame = Math.max(this.next_frame, now + block / 2);
    while (this.buffer.state !== "over" && this.next_frame < now + this.#horizon_s(block, ahead_s) * rate) {
      happened.push(...this.#schedule(block));
    }
    return happened;
  }

  /** @param {number} block @param {number} ahead_s */
  #horizon_s(block, ahead_s) {
    const { buffer } = this;
    const ready = buffer.isComplete || buffer.buffered >= block + buffer.settings.fade_samples;
    return buffer.state === "playing" && ready ? ahead_s : MARGIN_S;
  }

  /** @param {number} block */
  #schedule(block) {
    const audio = this.context.createBuffer(1, block, this.context.sampleRate);
    const pcm = audio.getChannelData(0);
    const before = this.buffer.position;
    const happened = this.buffer.render(pcm, this.next_frame);
    for (const event of happened) this.timeline.record(event);
    if (this.buffer.position > before) this.#play(audio);
    this.next_frame += block;
    return happened;
  }

  /** @param {AudioBuffer} audio */
  #play(audio) {
    const source = this.context.createBufferSource();
    source.buffer = audio;
    source.connect(this.gain);
    source.onended = () => this.sources.delete(source);
    this.sources.add(source);
    source.start(this.next_frame / audio.sampleRate);
    this.peak = audio.getChannelData(0).reduce((peak, sample) => Math.max(peak, Math.abs(sample)), this.peak);
  }

  /** @returns {Happened} */
  stop() {
    const { currentTime: now_s, sampleRate: rate } = this.context;
    const silent_s = now_s + this.buffer.settings.fade_samples / rate;
    this.gain.gain.setValueAtTime(1, now_s);
    this.gain.gain.linearRampToValueAtTime(0, silent_s);
    for (const source of this.sources) source.stop(silent_s);
    const frame = Math.round(silent_s * rate);
    return { kind: "stopped", frame, position: Math.round(this.timeline.positionAt(frame)) };
  }
}

/** @extends {Emitter<import("./worklet_output.js").OutputEvents>} */
export class ScheduledOutput extends Emitter {
  kind = "scheduled";
  /** @type {Map<number, ScheduledVoice>} */
  #voices = new Map();

  /** @param {AudioContext} context */
  constructor(context) {
    super();
    this.context = context;
    this.timer = setInterval(() => this.#tick(), TICK_MS);
  }

  /** @param {import("./mixer.js").MixerCommand} command */
  handleCommand(command) {
    if (command.type === "open") {
      this.#voices.set(command.voice, new ScheduledVoice(this.context, command.settings));
      return;
    }
    const voice = this.#voices.get(command.voice);
    if (voice === undefined) return;
    if (command.type === "stop") this.#end(command.voice, voice.stop());
    else if (command.type === "end") voice.buffer.end(command.total);
    else voice.buffer.push(command.pcm);
    this.#advance(command.voice, voice);
  }

  close() {
    clearInterval(this.timer);
  }

  #tick() {
    for (const [number, voice] of this.#voices) {
      this.#advance(number, voice);
      const frame = Math.round(this.context.currentTime * this.context.sampleRate);
      const position = Math.round(voice.timeline.positionAt(frame));
      const buffered = voice.buffer.buffered + voice.buffer.position - position;
      this.emit("level", { voice: number, frame, position, buffered, peak: voice.peak });
      voice.peak = 0;
      if (voice.drained !== undefined && frame >= voice.drained.frame) this.#end(number, voice.drained);
    }
  }

  /** @param {number} number @param {ScheduledVoice} voice */
  #advance(number, voice) {
    if (this.context.state !== "running" || !this.#voices.has(number)) return;
    this.#tell(number, voice, voice.advance(globalThis.document?.hidden ? AHEAD_HIDDEN_S : AHEAD_S));
  }

  /** @param {number} number @param {ScheduledVoice} voice @param {Happened[]} happened */
  #tell(number, voice, happened) {
    for (const event of happened) {
      if (event.kind === "drained") voice.drained = event;
      else this.emit("happened", { ...event, voice: number });
    }
  }

  /** @param {number} number @param {Happened} event */
  #end(number, event) {
    this.#voices.delete(number);
    this.emit("happened", { ...event, voice: number });
  }
}
