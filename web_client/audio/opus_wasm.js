/** Decode Opus by libopus in WebAssembly, for pages without WebCodecs. */

import { PACKET_SAMPLES } from "./opus_webcodecs.js";

const LIBRARY = new URL("../vendor/opus-decoder/opus-decoder.min.js", import.meta.url).href;
const RATE = 48_000;
const MONO = {
  sampleRate: RATE,
  channels: 1,
  streamCount: 1,
  coupledStreamCount: 0,
  channelMappingTable: [0],
  preSkip: 0,
};

/**
 * @typedef {{ready: Promise<void>, free(): void,
 *   decodeFrame(packet: Uint8Array): {channelData: Float32Array[], samplesDecoded: number}}} LibOpus
 */

/** @type {Promise<new (options: typeof MONO) => LibOpus> | undefined} */
let library;

/** Fetch the library, once. */
export function loadLibOpus() {
  library ??= import(LIBRARY).then(() => /** @type {any} */ (globalThis)["opus-decoder"].OpusDecoder);
  return library;
}

export class WasmOpusDecoder {
  kind = "wasm";
  rate = RATE;
  #closed = false;
  /** @type {LibOpus | undefined} */
  #opus;
  /** @type {Uint8Array[]} */
  #early = [];
  /** @type {Promise<void>} */
  #ready;

  /** @param {(pcm: Float32Array) => void} onPcm */
  constructor(onPcm) {
    this.onPcm = onPcm;
    this.#ready = this.#open();
  }

  /** @param {Uint8Array} packet */
  decode(packet) {
    if (this.#closed) return;
    if (this.#opus === undefined) this.#early.push(packet);
    else this.#decode(this.#opus, packet);
  }

  async flush() {
    await this.#ready;
  }

  close() {
    if (this.#closed) return;
    this.#closed = true;
    this.#opus?.free();
  }

  async #open() {
    const Decoder = await loadLibOpus();
    const opus = new Decoder(MONO);
    await opus.ready;
    if (this.#closed) return opus.free();
    this.#opus = opus;
    for (const packet of this.#early.splice(0)) this.#decode(opus, packet);
  }

  /** @param {LibOpus} opus @param {Uint8Array} packet */
  #decode(opus, packet) {
    const { channelData, samplesDecoded } = opus.decodeFrame(packet);
    this.onPcm(samplesDecoded > 0 ? channelData[0].slice(0, samplesDecoded) : new Float32Array(PACKET_SAMPLES));
  }
}
