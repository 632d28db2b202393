/** The peak of every hundredth of a second, independent of how the input is split. */

export class Peaks {
  /** @param {number} rate */
  constructor(rate) {
    this.window_samples = Math.round(rate / 100);
    /** @type {number[]} */
    this.values = [];
    this.num_samples = 0;
  }

  /** @param {Float32Array} pcm */
  push(pcm) {
    for (const sample of pcm) {
      const window = Math.floor(this.num_samples / this.window_samples);
      this.values[window] = Math.max(this.values[window] ?? 0, Math.abs(sample));
      this.num_samples += 1;
    }
  }
}
