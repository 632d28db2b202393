/**
 * Buffer one response's samples until playback. Pure: its only clock is the number of samples requested, so it runs in
 * an audio worklet, on a page and in tests.
 *
 * Every pushed sample is played exactly once and in order, however pushes and renderings are split, unless playback is
 * stopped. Playback starts with `prebuffer_samples` buffered, when all samples have arrived, or when the oldest sample
 * has waited that long. At an underrun it fades out and waits again, for longer each time.
 */

/**
 * @typedef {object} JitterSettings all in samples
 * @property {number} prebuffer_samples buffered before playback starts
 * @property {number} step_samples added to the prebuffer after each underrun
 * @property {number} max_prebuffer_samples
 * @property {number} calm_samples played without an underrun, after which one step is taken back
 * @property {number} fade_samples of a fade
 */

/**
 * An event: `frame` is the index of the output sample at which it happened, `position` the number of this response's
 * samples played by then.
 *
 * @typedef {{kind: "started" | "skipped" | "underrun" | "drained" | "stopped", frame: number, position: number}} PlayoutEvent
 */

/** @param {number} rate samples a second @returns {JitterSettings} */
export function jitterSettings(rate, { prebuffer_ms = 100, step_ms = 40, max_prebuffer_ms = 500, fade_ms = 6 } = {}) {
  const samples = (/** @type {number} */ ms) => Math.round((rate * ms) / 1000);
  return {
    prebuffer_samples: samples(prebuffer_ms),
    step_samples: samples(step_ms),
    max_prebuffer_samples: samples(max_prebuffer_ms),
    calm_samples: samples(10_000),
    fade_samples: samples(fade_ms),
  };
}

/**
 * More in hand for the next response, after one that ran dry.
 *
 * @param {JitterSettings} settings
 * @returns {JitterSettings}
 */
export function increasePrebuffer(settings) {
  const { prebuffer_samples, step_samples, max_prebuffer_samples } = settings;
  return { ...settings, prebuffer_samples: Math.min(prebuffer_samples + step_samples, max_prebuffer_samples) };
}

/**
 * Less again, after one that did not; never less than `least`.
 *
 * @param {JitterSettings} settings
 * @param {JitterSettings} least
 */
export function decreasePrebuffer(settings, least) {
  const prebuffer_samples = Math.max(settings.prebuffer_samples - settings.step_samples, least.prebuffer_samples);
  return { ...settings, prebuffer_samples };
}

export class JitterBuffer {
  /** @param {JitterSettings} settings */
  constructor(settings) {
    this.settings = settings;
    /** Samples played. */
    this.position = 0;
    /** Samples pushed. */
    this.pushed = 0;
    /** @type {"waiting" | "playing" | "dry" | "stopping" | "over"} */
    this.state = "waiting";
    /** @type {Float32Array[]} */
    this.queue = [];
    /** Samples already played of the first item in the queue. */
    this.offset = 0;
    this.total = Infinity;
    this.prebuffer = settings.prebuffer_samples;
    this.waited = 0;
    this.calm = 0;
    /** Gain from 0 to 1, before the shape of the fade is applied. */
    this.level = 1;
    /** Samples to play until a fade out has ended. */
    this.fade_left = 0;
  }

  /** Number of buffered samples. */
  get buffered() {
    return Math.min(this.pushed, this.total) - this.position;
  }

  get isPlaying() {
    return this.state === "playing" || this.state === "dry" || (this.state === "stopping" && this.fade_left > 0);
  }

  /** True if all samples have arrived. */
  get isComplete() {
    return this.pushed >= this.total;
  }

  /** @param {Float32Array} pcm */
  push(pcm) {
    if (this.state === "over" || this.state === "stopping" || pcm.length === 0) return;
    this.queue.push(pcm);
    this.pushed += pcm.length;
  }

  /** Limit playback to `total` samples; later ones are discarded. @param {number} total */
  end(total) {
    this.total = Math.max(total, this.position);
    this.fade_left = Math.min(this.fade_left, this.buffered);
  }

  /** Fade out and end. */
  stop() {
    if (this.state === "over" || this.state === "stopping") return;
    if (this.state === "playing") this.fade_left = Math.min(this.settings.fade_samples, this.buffered);
    this.state = "stopping";
  }

  /**
   * Add the next samples to `output`, and return the events.
   *
   * @param {Float32Array} output
   * @param {number} frame the number of its first sample
   * @returns {PlayoutEvent[]}
   */
  render(output, frame) {
    /** @type {PlayoutEvent[]} */
    const events = [];
    if (this.state === "waiting") this.#wait(output.length, frame, events);
    if (this.state === "playing" && this.#tooShortFor(output.length)) this.#onUnderrun();
    if (this.state === "playing") this.#play(output, frame, events);
    else if (this.state === "dry" || this.state === "stopping") this.#fadeOut(output, frame, events);
    return events;
  }

  /** @param {number} length @param {number} frame @param {PlayoutEvent[]} events */
  #wait(length, frame, events) {
    if (this.buffered === 0 && !this.isComplete) return;
    if (!this.isComplete && this.buffered < this.prebuffer && this.waited < this.prebuffer) {
      this.waited += length;
      return;
    }
    this.waited = 0;
    this.calm = 0;
    this.level = this.position > 0 ? 0 : 1;
    this.state = "playing";
    if (this.buffered > 0) events.push({ kind: "started", frame, position: this.position });
  }

  /** True if too few samples for a fade remain after `length` more. @param {number} length */
  #tooShortFor(length) {
    return !this.isComplete && this.buffered < length + this.settings.fade_samples;
  }

  #onUnderrun() {
    this.state = "dry";
    this.fade_left = this.buffered;
    this.prebuffer = Math.min(this.prebuffer + this.settings.step_samples, this.settings.max_prebuffer_samples);
  }

  /** @param {Float32Array} output @param {number} frame @param {PlayoutEvent[]} events */
  #play(output, frame, events) {
    const num = Math.min(output.length, this.buffered);
    this.#take(num, (sample, index) => {
      output[index] += this.level < 1 ? sample * fadeCurve(this.level) : sample;
      this.#fadeIn();
    });
    this.#relaxPrebuffer(num);
    if (this.isComplete && this.buffered === 0) this.#finish("drained", frame + num, events);
  }

  /** @param {Float32Array} output @param {number} frame @param {PlayoutEvent[]} events */
  #fadeOut(output, frame, events) {
    const num = Math.min(output.length, this.fade_left);
    this.#take(num, (sample, index) => {
      output[index] += sample * fadeCurve(this.level);
      if (this.fade_left <= this.settings.fade_samples) this.level -= this.level / this.fade_left;
      else this.#fadeIn();
      this.fade_left -= 1;
    });
    if (this.fade_left > 0) return;
    if (this.state === "stopping") this.#finish("stopped", frame + num, events);
    else if (this.isComplete && this.buffered === 0) this.#finish("drained", frame + num, events);
    else {
      this.state = "waiting";
      events.push({ kind: "underrun", frame: frame + num, position: this.position });
    }
  }

  #fadeIn() {
    this.level = Math.min(1, this.level + 1 / this.settings.fade_samples);
  }

  /** @param {number} num @param {(sample: number, index: number) => void} use */
  #take(num, use) {
    for (let done = 0; done < num;) {
      const first = this.queue[0];
      const run = Math.min(num - done, first.length - this.offset);
      for (let index = 0; index < run; index += 1) use(first[this.offset + index], done + index);
      done += run;
      this.offset += run;
      if (this.offset === first.length) {
        this.queue.shift();
        this.offset = 0;
      }
    }
    this.position += num;
  }

  /** @param {number} num */
  #relaxPrebuffer(num) {
    this.calm += num;
    if (this.calm < this.settings.calm_samples) return;
    this.calm = 0;
    this.prebuffer = Math.max(this.prebuffer - this.settings.step_samples, this.settings.prebuffer_samples);
  }

  /** @param {"drained" | "stopped"} kind @param {number} frame @param {PlayoutEvent[]} events */
  #finish(kind, frame, events) {
    this.state = "over";
    this.queue = [];
    events.push({ kind, frame, position: this.position });
  }
}

/** A raised cosine. @param {number} level 0 to 1 */
function fadeCurve(level) {
  return 0.5 - 0.5 * Math.cos(Math.PI * level);
}
