/**
 * Converts a stream of samples to another rate. Law: however the input is cut, the output is the same; n samples in give
 * ceil(n * to / from) out, and a constant stays constant.
 */

/** Number of samples, at the lower of the two rates, on each side of an output sample. */
const HALF = 16;
/** Parameter of the Kaiser window, with side lobes at about -80 dB. */
const BETA = 8;

/** @param {number} a @param {number} b @returns {number} */
const gcd = (a, b) => (b === 0 ? a : gcd(b, a % b));

/** The modified Bessel function of order zero. @param {number} x */
function bessel(x) {
  let [sum, term] = [1, 1];
  for (let k = 1; term > 1e-12 * sum; k += 1) sum += term *= (x / (2 * k)) ** 2;
  return sum;
}

/** @param {number} x in samples of the lower rate from the center */
function kernel(x) {
  if (Math.abs(x) >= HALF) return 0;
  const sinc = x === 0 ? 1 : Math.sin(Math.PI * x) / (Math.PI * x);
  return (sinc * bessel(BETA * Math.sqrt(1 - (x / HALF) ** 2))) / bessel(BETA);
}

/**
 * The weights of the input samples around a position `share` of a sample after one.
 *
 * @param {number} share
 * @param {number} half number of input samples on each side
 * @param {number} scale input samples for each sample of the lower rate
 */
function weights(share, half, scale) {
  const taps = Float64Array.from({ length: 2 * half }, (_, tap) => kernel((share + half - 1 - tap) / scale));
  const sum = taps.reduce((total, tap) => total + tap, 0);
  return taps.map((tap) => tap / sum);
}

export class Resampler {
  /** @param {number} from @param {number} to in samples a second */
  constructor(from, to) {
    const divisor = gcd(from, to);
    this.up = to / divisor;
    this.down = from / divisor;
    const scale = Math.max(1, from / to);
    this.half = Math.ceil(HALF * scale);
    this.phases = Array.from({ length: this.up }, (_, phase) => weights(phase / this.up, this.half, scale));
    /** The signal before the first sample equals that sample. */
    this.held = new Float32Array(0);
    /** The index of the first stored sample, and of the next output sample. */
    this.first = 0;
    this.next = 0;
    this.received = 0;
  }

  /** @param {Float32Array} pcm @returns {Float32Array} the output so far */
  push(pcm) {
    if (this.up === this.down) return pcm.slice();
    if (this.received === 0 && pcm.length > 0) {
      this.held = new Float32Array(this.half - 1).fill(pcm[0]);
      this.first = 1 - this.half;
    }
    this.received += pcm.length;
    this.#hold(pcm);
    return this.#out(this.first + this.held.length - this.half - 1);
  }

  /** @returns {Float32Array} the rest */
  flush() {
    if (this.up === this.down || this.received === 0) return new Float32Array(0);
    this.#hold(new Float32Array(this.half).fill(this.held.at(-1) ?? 0));
    return this.#out(this.received - 1);
  }

  /** @param {Float32Array} pcm */
  #hold(pcm) {
    const joined = new Float32Array(this.held.length + pcm.length);
    joined.set(this.held);
    joined.set(pcm, this.held.length);
    this.held = joined;
  }

  /** Output up to the position of input sample `last`, exclusive of the next. @param {number} last */
  #out(last) {
    const end = Math.ceil(((last + 1) * this.up) / this.down);
    const out = new Float32Array(Math.max(0, end - this.next));
    for (let index = 0; index < out.length; index += 1, this.next += 1) {
      const place = this.next * this.down;
      const whole = Math.floor(place / this.up);
      const taps = this.phases[place - whole * this.up];
      const start = whole - this.half + 1 - this.first;
      let sum = 0;
      for (let tap = 0; tap < taps.length; tap += 1) sum += taps[tap] * this.held[start + tap];
      out[index] = sum;
    }
    this.#forget();
    return out;
  }

  #forget() {
    const needed = Math.floor((this.next * this.down) / this.up) - this.half + 1 - this.first;
    if (needed <= 0) return;
    this.held = this.held.slice(needed);
    this.first += needed;
  }
}
