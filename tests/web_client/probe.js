/** Listens inside the audio thread: hands on every sample that the page puts out, with the number of the first. */

const RUN = 4_096;

class Probe extends AudioWorkletProcessor {
  constructor() {
    super();
    this.run = new Float32Array(RUN);
    this.filled = 0;
    this.frame = 0;
    this.marked = -1;
    this.port.onmessage = ({ data }) => (data === "mark" ? (this.marked = currentFrame) : this.hand());
  }

  process([input]) {
    const pcm = input[0] ?? new Float32Array(128);
    if (this.filled === 0) this.frame = currentFrame;
    this.run.set(pcm, this.filled);
    this.filled += pcm.length;
    if (this.filled + pcm.length > RUN) this.hand();
    return true;
  }

  hand() {
    this.port.postMessage({ frame: this.frame, pcm: this.run.slice(0, this.filled), marked: this.marked });
    this.frame += this.filled;
    this.filled = 0;
  }
}

registerProcessor("probe", Probe);
