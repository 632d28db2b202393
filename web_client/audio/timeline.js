/** Map samples of a voice to output frames: runs of audio, and gaps between them. Pure. */

export class PlayoutTimeline {
  constructor() {
    /** @type {{frame: number, position: number, end: number}[]} `end`: the position at which the run ended */
    this.runs = [];
  }

  /** @param {import("./jitter_buffer.js").PlayoutEvent} event */
  record({ kind, frame, position }) {
    const last = this.runs.at(-1);
    if (last !== undefined && kind !== "started") last.end = position;
    if (kind === "started" || kind === "skipped") this.runs.push({ frame, position, end: Infinity });
  }

  /** Samples played when output frame `frame` is reached. @param {number} frame */
  positionAt(frame) {
    const run = this.runs.findLast((candidate) => candidate.frame <= frame);
    return run === undefined ? 0 : Math.min(run.position + frame - run.frame, run.end);
  }
}
