/** Convert samples to a WAV file. */

import { toS16le } from "./pcm.js";

const HEADER_BYTES = 44;

/** @param {Float32Array} pcm @param {number} rate @returns {Uint8Array<ArrayBuffer>} 16 bits, one channel */
export function wavFile(pcm, rate) {
  const bytes = new Uint8Array(HEADER_BYTES + 2 * pcm.length);
  const view = new DataView(bytes.buffer);
  const tag = (/** @type {number} */ at, /** @type {string} */ name) =>
    bytes.set(
      [...name].map((letter) => letter.charCodeAt(0)),
      at,
    );
  tag(0, "RIFF");
  view.setUint32(4, bytes.length - 8, true);
  tag(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 1, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  tag(36, "data");
  view.setUint32(40, 2 * pcm.length, true);
  bytes.set(toS16le(pcm), HEADER_BYTES);
  return bytes;
}
