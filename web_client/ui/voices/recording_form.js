/** The form that makes a voice from a recording: of the microphone, or a file. */

import { ClipPlayer, decodeClip, joinRuns } from "../../audio/clip.js";
import { Microphone } from "../../audio/microphone.js";
import { wavFile } from "../../audio/wav.js";
import { getById, input, textarea } from "../dom.js";
import { TrimEditor } from "./trim_editor.js";

const MAX_FILE_BYTES = 50_000_000;

/** @typedef {import("./voices_view.js").VoicesContext} VoicesContext */

export class RecordingForm {
  #trim = new TrimEditor();
  #clips = new ClipPlayer();
  /** @type {Microphone | null} */
  #microphone = null;
  /** @type {Float32Array[]} */
  #runs = [];

  /** @param {VoicesContext} context */
  constructor(context) {
    this.context = context;
    getById("record").addEventListener("click", () => this.#report(this.#toggle()));
    input("recording-file").addEventListener("change", () => this.#report(this.#open()));
    getById("trim-listen").addEventListener("click", () => this.#report(this.#listen()));
    getById("recording-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#report(this.#store());
    });
  }

  redraw() {
    this.#trim.redraw();
  }

  /** Show the outcome of an action, or why it failed. @param {Promise<string>} action */
  async #report(action) {
    const status = getById("recording-status");
    try {
      status.textContent = await action;
      status.dataset.tone = "info";
    } catch (error) {
      status.textContent = /** @type {Error} */ (error).message;
      status.dataset.tone = "bad";
    }
  }

  async #toggle() {
    if (this.#microphone !== null) return this.#finish();
    this.#clips.stop();
    this.#runs = [];
    const { max_sample_s } = this.context.model();
    this.#microphone = await Microphone.open((pcm) => this.#receive(pcm, max_sample_s), { is_call: false });
    this.#showRecording(true);
    return "Recording.";
  }

  /** @param {Float32Array} pcm @param {number} max_s */
  #receive(pcm, max_s) {
    const rate = this.#microphone?.rate;
    if (rate === undefined) return;
    this.#runs.push(pcm);
    const length_s = (this.#runs.length * pcm.length) / rate;
    getById("record-time").textContent = `${length_s.toFixed(1)} s of at most ${max_s} s`;
    if (length_s >= max_s) this.#report(this.#finish());
  }

  async #finish() {
    const microphone = this.#microphone;
    this.#microphone = null;
    if (microphone === null) return "";
    const { rate } = microphone;
    await microphone.close();
    this.#showRecording(false);
    this.#trim.show({ pcm: joinRuns(this.#runs), rate });
    return "Recorded. Select the part to be used.";
  }

  /** @param {boolean} is_recording */
  #showRecording(is_recording) {
    getById("record").textContent = is_recording ? "Stop recording" : "Record";
    getById("record").setAttribute("aria-pressed", String(is_recording));
  }

  async #open() {
    const file = input("recording-file").files?.[0];
    if (file === undefined) return "";
    if (file.size > MAX_FILE_BYTES) {
      throw new Error(`A file has at most ${MAX_FILE_BYTES} bytes here; this one has ${file.size}.`);
    }
    const context = await this.context.audioContext();
    const clip = await decodeClip(context, await file.arrayBuffer()).catch(() => {
      throw new Error(`This browser cannot decode ${file.name}.`);
    });
    this.#trim.show(clip);
    return "Select the part to be used.";
  }

  async #listen() {
    await this.#clips.play(await this.context.audioContext(), this.#trim.selection);
    return "";
  }

  async #store() {
    const { pcm, rate } = this.#trim.selection;
    const { min_sample_s, max_sample_s } = this.context.model();
    const length_s = pcm.length / rate;
    if (this.#trim.clip === null) throw new Error("Record something, or choose a file.");
    if (length_s < min_sample_s || length_s > max_sample_s) {
      throw new Error(`Select ${min_sample_s} to ${max_sample_s} s; ${length_s.toFixed(2)} s are selected.`);
    }
    const voice = await this.context.api.addVoice({
      name: input("voice-name").value.trim(),
      consent: textarea("voice-consent").value.trim(),
      ref_text: textarea("voice-transcript").value.trim(),
      speaker_description: input("voice-description").value.trim(),
      audio_sample: new Blob([wavFile(pcm, rate)], { type: "audio/wav" }),
    });
    /** @type {HTMLFormElement} */ (getById("recording-form")).reset();
    this.#trim.show(null);
    await this.context.refresh();
    return `Voice ${voice.name} is stored.`;
  }
}
