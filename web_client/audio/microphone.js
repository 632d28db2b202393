/** The microphone of the browser, as runs of samples. */

const REASONS = {
  NotAllowedError: "the browser does not allow the microphone",
  NotFoundError: "there is no microphone",
  NotReadableError: "the microphone is in use by another program",
};

/** Whether this page can have a microphone at all: browsers lend it to https and to the local machine only. */
export const hasMicrophone = () => navigator.mediaDevices !== undefined && "audioWorklet" in AudioContext.prototype;

export class Microphone {
  #stream;
  #node;

  /**
   * Open the microphone. Throws an `Error` that says why there is none.
   *
   * @param {(pcm: Float32Array) => void} onPcm receives runs of 20 ms
   * @param {{is_call: boolean}} options `is_call`: with the browser's echo and noise suppression
   */
  static async open(onPcm, { is_call }) {
    if (!hasMicrophone()) throw new Error("browsers lend a microphone over https only");
    const stream = await openStream(is_call);
    const context = new AudioContext();
    await context.audioWorklet.addModule(new URL("./microphone_worklet.js", import.meta.url));
    await context.resume();
    return new Microphone(stream, context, onPcm);
  }

  /** @param {MediaStream} stream @param {AudioContext} context @param {(pcm: Float32Array) => void} onPcm */
  constructor(stream, context, onPcm) {
    this.#stream = stream;
    this.context = context;
    this.#node = new AudioWorkletNode(context, "voicewire-microphone", { numberOfOutputs: 0, channelCount: 1 });
    this.#node.port.onmessage = ({ data }) => onPcm(data);
    context.createMediaStreamSource(stream).connect(this.#node);
  }

  /** Samples a second. */
  get rate() {
    return this.context.sampleRate;
  }

  async close() {
    this.#node.port.onmessage = null;
    this.#node.port.postMessage("close");
    for (const track of this.#stream.getTracks()) track.stop();
    await this.context.close();
  }
}

/** @param {boolean} is_call */
async function openStream(is_call) {
  const processing = { echoCancellation: is_call, noiseSuppression: is_call, autoGainControl: is_call };
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1, ...processing } });
  } catch (error) {
    const { name, message } = /** @type {DOMException} */ (error);
    throw new Error(REASONS[/** @type {keyof typeof REASONS} */ (name)] ?? `the microphone does not open: ${message}`);
  }
}
