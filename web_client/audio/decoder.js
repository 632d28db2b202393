/** Decode a response's packets to samples at the player's rate, without the pre-skip. */

import { WasmOpusDecoder, loadLibOpus } from "./opus_wasm.js";
import { WebCodecsOpusDecoder, hasWebCodecsOpus, warmUp } from "./opus_webcodecs.js";
import { PcmDecoder, READERS } from "./pcm.js";

/**
 * @typedef {"webcodecs" | "wasm"} OpusKind
 * @typedef {{kind: string, rate: number, decode(packet: Uint8Array): void, flush(): Promise<void>, close(): void}
 *   } Decoder
 */

/**
 * The Opus decoder to use, made ready.
 *
 * @param {"auto" | OpusKind} [wanted]
 * @returns {Promise<OpusKind>}
 */
export async function chooseOpusDecoder(wanted = "auto") {
  if (wanted !== "wasm" && (await hasWebCodecsOpus())) {
    await warmUp();
    return "webcodecs";
  }
  await loadLibOpus();
  return "wasm";
}

/**
 * @param {import("../protocol/events.js").ActualFormat} format
 * @param {OpusKind} opus
 * @param {number} rate samples a second to come out
 * @param {(pcm: Float32Array) => void} onPcm
 * @returns {Decoder}
 */
export function openDecoder(format, opus, rate, onPcm) {
  if (format.encoding !== "opus") {
    if (READERS[format.encoding] === undefined) throw new RangeError(`unknown encoding ${format.encoding}`);
    return new PcmDecoder(format.encoding, format.sample_rate, rate, onPcm);
  }
  const skip = Math.round((format.pre_skip_samples * rate) / format.sample_rate);
  const trimmed = skipSamples(skip, onPcm);
  const decoder = opus === "webcodecs" ? new WebCodecsOpusDecoder(trimmed) : new WasmOpusDecoder(trimmed);
  if (decoder.rate !== rate) throw new RangeError(`Opus is decoded at ${decoder.rate} samples a second, not ${rate}`);
  return decoder;
}

/** @param {number} num @param {(pcm: Float32Array) => void} onPcm */
function skipSamples(num, onPcm) {
  return (/** @type {Float32Array} */ pcm) => {
    const cut = Math.min(num, pcm.length);
    num -= cut;
    if (cut < pcm.length) onPcm(cut > 0 ? pcm.slice(cut) : pcm);
  };
}
