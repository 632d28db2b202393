/** The form that designs a voice from a description. */

import { getById, input, textarea } from "../dom.js";
import { saveFile } from "../files.js";

const NUM_SEEDS = 2 ** 32;

export class DesignForm {
  /** The version that was spoken last. @type {{file: Blob, seed: number} | null} */
  #version = null;

  /** @param {import("./voices_view.js").VoicesContext} context */
  constructor(context) {
    this.context = context;
    getById("design-save").addEventListener("click", () => this.#save());
    getById("design-form").addEventListener("submit", (event) => {
      event.preventDefault();
      context.report(this.#speak());
    });
  }

  /** @param {import("../../http_api.js").ModelInfo} model */
  show({ task }) {
    getById("design-form").hidden = task !== "voice_design";
  }

  /** Speak the sentence with a new version of the voice, or with the version of a seed. */
  async #speak() {
    const chosen = input("design-seed").valueAsNumber;
    const seed = Number.isInteger(chosen) ? chosen : Math.floor(Math.random() * NUM_SEEDS);
    const instructions = textarea("design-description").value.trim();
    await this.context.listen({ instructions, seed }, (file) => {
      this.#version = { file, seed };
      getById("design-version").textContent = `Seed ${seed}`;
      /** @type {HTMLButtonElement} */ (getById("design-save")).disabled = false;
    });
  }

  #save() {
    if (this.#version !== null) saveFile(this.#version.file, `voice-${this.#version.seed}.wav`);
  }
}
