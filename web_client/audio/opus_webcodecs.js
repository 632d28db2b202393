/** Decode Opus by WebCodecs, which always returns 48,000 samples per second. */

const CONFIG = { codec: "opus", sampleRate: 48_000, numberOfChannels: 1 };
export const PACKET_US = 20_000;
export const PACKET_SAMPLES = 960;

/** 20 ms of nothing. */
const SILENCE = Uint8Array.of(0xf8, 0xff, 0xfe);

/** Decode once in advance: the first decoder of a page starts slowly. */
export async function warmUp() {
  const decoder = new WebCodecsOpusDecoder(() => {});
  decoder.decode(SILENCE);
  await decoder.flush();
  decoder.close();
}

/** True if WebCodecs is available; it is not on pages over plain http from another machine. */
export async function hasWebCodecsOpus() {
  if (globalThis.AudioDecoder === undefined) return false;
  try {
    return (await AudioDecoder.isConfigSupported(CONFIG)).supported === true;
  } catch {
    return false;
  }
}

export class WebCodecsOpusDecoder {
  kind = "webcodecs";
  rate = CONFIG.sampleRate;
  #time_us = 0;
  #pending = 0;
  #closed = false;
  /** @type {AudioDecoder | undefined} */
  #decoder;

  /** @param {(pcm: Float32Array) => void} onPcm */
  constructor(onPcm) {
    this.onPcm = onPcm;
    this.#open();
  }

  /** @param {Uint8Array} packet */
  decode(packet) {
    if (this.#decoder?.state !== "configured") this.#open();
    this.#pending += 1;
    const data = /** @type {Uint8Array<ArrayBuffer>} */ (packet);
    this.#decoder?.decode(new EncodedAudioChunk({ type: "key", timestamp: this.#time_us, data }));
    this.#time_us += PACKET_US;
  }

  /** Wait until all input was decoded. */
  async flush() {
    if (this.#decoder?.state !== "configured") return;
    await this.#decoder.flush().catch(() => {}); // the error callback has seen to it
  }

  close() {
    this.#closed = true;
    if (this.#decoder?.state !== "closed") this.#decoder?.close();
  }

  #open() {
    this.#decoder = new AudioDecoder({ output: (data) => this.#take(data), error: () => this.#onError() });
    this.#decoder.configure(CONFIG);
  }

  /** @param {AudioData} data */
  #take(data) {
    const pcm = new Float32Array(data.numberOfFrames);
    data.copyTo(pcm, { planeIndex: 0, format: "f32-planar" });
    data.close();
    this.#pending -= 1;
    if (!this.#closed) this.onPcm(pcm);
  }

  /** Replace undecodable packets by silence of the same length. Browsers also close an idle decoder. */
  #onError() {
    const lost = this.#pending;
    this.#pending = 0;
    if (lost > 0 && !this.#closed) this.onPcm(new Float32Array(lost * PACKET_SAMPLES));
  }
}
