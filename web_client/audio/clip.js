/** Recordings as samples of one channel, and their playback. */

/** @typedef {{pcm: Float32Array, rate: number}} Clip */

/**
 * Decode a file in any format that the browser knows; channels are averaged.
 *
 * @param {BaseAudioContext} context its rate is that of the clip
 * @param {ArrayBuffer} data
 * @returns {Promise<Clip>}
 */
export async function decodeClip(context, data) {
  const buffer = await context.decodeAudioData(data);
  const pcm = new Float32Array(buffer.length);
  for (let channel = 0; channel < buffer.numberOfChannels; channel += 1) {
    buffer.getChannelData(channel).forEach((sample, index) => (pcm[index] += sample / buffer.numberOfChannels));
  }
  return { pcm, rate: buffer.sampleRate };
}

/** Join runs of samples. @param {Float32Array[]} runs */
export function joinRuns(runs) {
  const pcm = new Float32Array(runs.reduce((total, run) => total + run.length, 0));
  let at = 0;
  for (const run of runs) {
    pcm.set(run, at);
    at += run.length;
  }
  return pcm;
}

/** Plays one clip at a time. */
export class ClipPlayer {
  /** @type {AudioBufferSourceNode | null} */
  #source = null;

  /** @param {AudioContext} context @param {Clip} clip @returns {Promise<void>} settles at the end, or when it stops */
  async play(context, { pcm, rate }) {
    this.stop();
    if (pcm.length === 0) return;
    await context.resume();
    const buffer = context.createBuffer(1, pcm.length, rate);
    buffer.copyToChannel(new Float32Array(pcm), 0);
    const source = new AudioBufferSourceNode(context, { buffer });
    this.#source = source;
    source.connect(context.destination);
    source.start();
    await new Promise((resolve) => (source.onended = resolve));
    if (this.#source === source) this.#source = null;
  }

  stop() {
    this.#source?.stop();
    this.#source = null;
  }
}
