/** Sends the samples of the microphone from the audio thread, in runs of 20 ms. */

const RUN_S = 0.02;

class MicrophoneProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.run = new Float32Array(Math.round(RUN_S * sampleRate));
    this.num_samples = 0;
    this.closed = false;
    this.port.onmessage = () => (this.closed = true);
  }

  /** @param {Float32Array[][]} inputs */
  process(inputs) {
    for (const sample of inputs[0][0] ?? []) {
      this.run[this.num_samples] = sample;
      this.num_samples += 1;
      if (this.num_samples < this.run.length) continue;
      this.port.postMessage(this.run.slice());
      this.num_samples = 0;
    }
    return !this.closed;
  }
}

registerProcessor("voicewire-microphone", MicrophoneProcessor);
