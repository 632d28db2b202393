/** The mixer in the audio thread. */

import { Mixer } from "./mixer.js";

const LEVELS_EVERY_S = 0.05;

class VoicewireProcessor extends AudioWorkletProcessor {
  constructor() {
    super();
    this.mixer = new Mixer();
    this.levels_due = 0;
    this.closed = false;
    this.port.onmessage = ({ data }) => {
      if (data.type === "close") this.closed = true;
      else this.mixer.handleCommand(data);
    };
  }

  /** @param {Float32Array[][]} _ @param {Float32Array[][]} outputs */
  process(_, outputs) {
    const happened = this.mixer.render(outputs[0][0], currentFrame);
    if (happened.length > 0) this.port.postMessage({ happened });
    if (currentFrame >= this.levels_due && this.mixer.voices.size > 0) {
      this.levels_due = currentFrame + LEVELS_EVERY_S * sampleRate;
      this.port.postMessage({ levels: this.mixer.levels(currentFrame + outputs[0][0].length) });
    }
    return !this.closed;
  }
}

registerProcessor("voicewire", VoicewireProcessor);
