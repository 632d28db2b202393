/** The waveform of a recording, with two sliders that select the part to be used. */

import { Peaks } from "../../audio/peaks.js";
import { getById, input } from "../dom.js";
import { drawSelection } from "../waveform.js";

export class TrimEditor {
  /** @type {import("../../audio/clip.js").Clip | null} */
  clip = null;
  /** @type {number[]} */
  #peaks = [];
  #canvas = /** @type {HTMLCanvasElement} */ (getById("trim-wave"));

  constructor() {
    for (const id of ["trim-start", "trim-end"]) input(id).addEventListener("input", () => this.#limit(id));
    this.#canvas.addEventListener("pointerdown", (event) => this.#drag(event));
    addEventListener("resize", () => this.redraw());
  }

  /** @param {import("../../audio/clip.js").Clip | null} clip */
  show(clip) {
    this.clip = clip;
    getById("trim").hidden = clip === null;
    if (clip === null) return;
    const peaks = new Peaks(clip.rate);
    peaks.push(clip.pcm);
    this.#peaks = peaks.values;
    const length_s = clip.pcm.length / clip.rate;
    for (const id of ["trim-start", "trim-end"]) input(id).max = String(length_s);
    input("trim-start").value = "0";
    input("trim-end").value = String(length_s);
    this.redraw();
  }

  /** Seconds from the beginning of the recording. */
  get range_s() {
    return { start_s: input("trim-start").valueAsNumber, end_s: input("trim-end").valueAsNumber };
  }

  /** The selected part. @returns {import("../../audio/clip.js").Clip} */
  get selection() {
    const { pcm, rate } = this.clip ?? { pcm: new Float32Array(0), rate: 1 };
    const { start_s, end_s } = this.range_s;
    return { pcm: pcm.slice(Math.round(start_s * rate), Math.round(end_s * rate)), rate };
  }

  redraw() {
    if (this.clip === null) return;
    const { start_s, end_s } = this.range_s;
    drawSelection(this.#canvas, this.#peaks, 1000 * start_s, 1000 * end_s);
    const text = `${(end_s - start_s).toFixed(2)} s, from ${start_s.toFixed(2)} to ${end_s.toFixed(2)} s`;
    getById("trim-length").textContent = text;
    input("trim-start").setAttribute("aria-valuetext", `${start_s.toFixed(2)} seconds`);
    input("trim-end").setAttribute("aria-valuetext", `${end_s.toFixed(2)} seconds`);
  }

  /** Move the slider that was not moved, so that the start is not behind the end. @param {string} moved */
  #limit(moved) {
    const { start_s, end_s } = this.range_s;
    if (start_s > end_s) input(moved === "trim-start" ? "trim-end" : "trim-start").value = input(moved).value;
    this.redraw();
  }

  /** Move the nearer border to the pointer. @param {PointerEvent} event */
  #drag(event) {
    const place_s = this.#secondsAt(event);
    const { start_s, end_s } = this.range_s;
    const moved = Math.abs(place_s - start_s) < Math.abs(place_s - end_s) ? "trim-start" : "trim-end";
    const move = (/** @type {PointerEvent} */ pointer) => {
      input(moved).value = String(this.#secondsAt(pointer));
      this.#limit(moved);
    };
    this.#canvas.setPointerCapture(event.pointerId);
    this.#canvas.onpointermove = move;
    this.#canvas.onpointerup = this.#canvas.onpointercancel = () => (this.#canvas.onpointermove = null);
    move(event);
  }

  /** @param {PointerEvent} event */
  #secondsAt({ offsetX }) {
    return (offsetX / this.#canvas.clientWidth) * Number(input("trim-end").max);
  }
}
