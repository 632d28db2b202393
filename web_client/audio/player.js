/** The page's audio output: one audio context and any number of voices, each with a position in time. */

import { Emitter } from "../emitter.js";
import { jitterSettings, decreasePrebuffer, increasePrebuffer } from "./jitter_buffer.js";
import { ScheduledOutput } from "./scheduled_output.js";
import { PlayoutTimeline } from "./timeline.js";
import { WorkletOutput } from "./worklet_output.js";

/** The rate to which WebCodecs always decodes Opus. */
export const RATE = 48_000;
const STOP_TIMEOUT_MS = 100;
const MAX_LATENCY_S = 2;

/**
 * @typedef {object} PlayerOptions
 * @property {"auto" | "worklet" | "scheduled"} [output]
 * @property {number} [prebuffer_ms] audio in hand before a voice starts
 */

/** @extends {Emitter<{state: AudioContextState}>} */
export class Player extends Emitter {
  /** @type {Map<number, PlayerVoice>} */
  #voices = new Map();
  #last = 0;

  /**
   * Best called from a click or a key: browsers keep a context that was made otherwise silent until `resume`.
   *
   * @param {PlayerOptions} [options]
   */
  static async open({ output = "auto", prebuffer_ms = 100 } = {}) {
    const context = new AudioContext({ sampleRate: RATE, latencyHint: "interactive" });
    return new Player(context, await openOutput(context, output), prebuffer_ms);
  }

  /** @param {AudioContext} context @param {WorkletOutput | ScheduledOutput} output @param {number} prebuffer_ms */
  constructor(context, output, prebuffer_ms) {
    super();
    this.context = context;
    this.output = output;
    this.least = jitterSettings(context.sampleRate, { prebuffer_ms });
    this.settings = this.least;
    output.on("happened", (event) => this.#voices.get(event.voice)?.onPlayoutEvent(event));
    output.on("level", (level) => this.#voices.get(level.voice)?.emit("level", level));
    context.onstatechange = () => this.emit("state", context.state);
  }

  /** Create a voice, which is silent until samples are pushed. */
  voice() {
    this.#last += 1;
    const number = this.#last;
    const voice = new PlayerVoice(this, number);
    this.#voices.set(number, voice);
    voice.on("over", () => this.#voices.delete(number));
    this.output.handleCommand({ type: "open", voice: number, settings: this.settings });
    return voice;
  }

  /**
   * The next voices take more in hand when this one ran dry through no fault of the text, else a little less again.
   *
   * @param {boolean} ran_dry
   */
  adaptPrebuffer(ran_dry) {
    this.settings = ran_dry ? increasePrebuffer(this.settings) : decreasePrebuffer(this.settings, this.least);
  }

  /** True if audio plays: browsers block it until a user gesture. */
  get running() {
    return this.context.state === "running";
  }

  async resume() {
    if (!this.running) await this.context.resume();
  }

  /** Seconds from the page to the audio device. */
  get output_latency_s() {
    const latency_s = (this.context.outputLatency || 0) + (this.context.baseLatency || 0);
    return Math.min(latency_s, MAX_LATENCY_S);
  }

  /** The output frame that is played now. */
  playedFrame() {
    return (this.context.currentTime - this.output_latency_s) * this.context.sampleRate;
  }

  /** End all playback. */
  async close() {
    this.output.close();
    for (const voice of [...this.#voices.values()]) voice.discard();
    await this.context.close();
  }
}

/**
 * Playback of one response. Emits `started`, `skipped` (the device skipped frames), `underrun`, `drained` and `stopped`
 * with frame and position, then `over` once, and periodic levels.
 *
 * @typedef {import("./jitter_buffer.js").PlayoutEvent} Happened
 * @extends {Emitter<{started: Happened, skipped: Happened, underrun: Happened, drained: Happened, stopped: Happened,
 * over: Happened,
 *   level: import("./mixer.js").VoiceLevel}>}
 */
export class PlayerVoice extends Emitter {
  #timeline = new PlayoutTimeline();
  /** @type {Promise<number> | undefined} */
  #stopping;

  /** @param {Player} player @param {number} number */
  constructor(player, number) {
    super();
    this.player = player;
    this.number = number;
    this.over = false;
  }

  /** Push samples; their buffer is transferred. @param {Float32Array} pcm at `RATE` */
  push(pcm) {
    this.player.output.handleCommand({ type: "push", voice: this.number, pcm });
  }

  /** Set the total number of samples; later ones are not played. @param {number} total */
  end(total) {
    this.player.output.handleCommand({ type: "end", voice: this.number, total });
  }

  /**
   * Fade out now. Returns the position, in samples, where playback ends. Samples that have left the page will still be
   * played, so they count.
   *
   * @returns {Promise<number>}
   */
  stop() {
    this.#stopping ??= new Promise((resolve) => {
      if (this.over) return resolve(this.#timeline.positionAt(Infinity));
      const late = setTimeout(() => resolve(this.played_samples), STOP_TIMEOUT_MS);
      this.on("over", ({ position }) => {
        clearTimeout(late);
        resolve(position);
      });
      this.player.output.handleCommand({ type: "stop", voice: this.number });
    });
    return this.#stopping;
  }

  /** Samples played by now. */
  get played_samples() {
    return Math.max(0, this.#timeline.positionAt(this.over ? Infinity : this.player.playedFrame()));
  }

  /** The audio output is being closed. */
  discard() {
    const frame = this.player.playedFrame();
    this.onPlayoutEvent({ kind: "stopped", frame, position: this.played_samples });
  }

  /** @param {Happened} event */
  onPlayoutEvent(event) {
    this.#timeline.record(event);
    this.emit(event.kind, event);
    if (event.kind === "drained" || event.kind === "stopped") {
      this.over = true;
      this.emit("over", event);
    }
  }
}

/** @param {AudioContext} context @param {"auto" | "worklet" | "scheduled"} wanted */
async function openOutput(context, wanted) {
  if (wanted === "scheduled" || context.audioWorklet === undefined) return new ScheduledOutput(context);
  try {
    return await WorkletOutput.open(context);
  } catch (error) {
    if (wanted === "worklet") throw error;
    return new ScheduledOutput(context);
  }
}
