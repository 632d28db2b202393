/** Convert PCM and G.711 samples to floats. */

import { Resampler } from "./resampler.js";

const FULL_SCALE = 32_768;

/** @param {Uint8Array} bytes s16le @returns {Float32Array} */
export function fromS16le(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Float32Array.from({ length: bytes.length >> 1 }, (_, index) => view.getInt16(2 * index, true) / FULL_SCALE);
}

/** @param {Float32Array} pcm @returns {Uint8Array<ArrayBuffer>} s16le */
export function toS16le(pcm) {
  const view = new DataView(new ArrayBuffer(2 * pcm.length));
  pcm.forEach((sample, index) => {
    view.setInt16(2 * index, Math.round(Math.max(-1, Math.min(1, sample)) * 32_767), true);
  });
  return new Uint8Array(view.buffer);
}

/** G.711 mu-law. @param {number} code */
function muLaw(code) {
  const bits = ~code & 0xff;
  const size = ((((bits & 0x0f) << 3) + 0x84) << ((bits & 0x70) >> 4)) - 0x84;
  return (bits & 0x80 ? -size : size) / FULL_SCALE;
}

/** G.711 A-law. @param {number} code */
function aLaw(code) {
  const bits = code ^ 0x55;
  const exponent = (bits & 0x70) >> 4;
  const mantissa = ((bits & 0x0f) << 4) + 8;
  const size = exponent === 0 ? mantissa : (mantissa + 0x100) << (exponent - 1);
  return (bits & 0x80 ? size : -size) / FULL_SCALE;
}

const MULAW = Float32Array.from({ length: 256 }, (_, code) => muLaw(code));
const ALAW = Float32Array.from({ length: 256 }, (_, code) => aLaw(code));

/** @param {Float32Array} table @returns {(bytes: Uint8Array) => Float32Array} */
const byTable = (table) => (bytes) => Float32Array.from(bytes, (code) => table[code]);

/** @type {Record<string, (bytes: Uint8Array) => Float32Array>} */
export const READERS = { pcm_s16le: fromS16le, mulaw: byTable(MULAW), alaw: byTable(ALAW) };

/** Convert runs of samples to the player's rate. */
export class PcmDecoder {
  kind = "pcm";

  /** @param {string} encoding @param {number} from @param {number} rate @param {(pcm: Float32Array) => void} onPcm */
  constructor(encoding, from, rate, onPcm) {
    this.rate = rate;
    this.read = READERS[encoding];
    this.resampler = new Resampler(from, rate);
    this.onPcm = onPcm;
  }

  /** @param {Uint8Array} packet */
  decode(packet) {
    this.onPcm(this.resampler.push(this.read(packet)));
  }

  async flush() {
    this.onPcm(this.resampler.flush());
  }

  close() {}
}
