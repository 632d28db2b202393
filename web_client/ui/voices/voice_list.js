/** The list of voices: listen, rename, download the embedding, delete. */

import { createElement, getById, input } from "../dom.js";
import { saveFile } from "../files.js";

/** @typedef {import("../../http_api.js").StoredVoice} StoredVoice */

export class VoiceList {
  /** @param {import("./voices_view.js").VoicesContext} context */
  constructor(context) {
    this.context = context;
  }

  /** @param {import("../../http_api.js").VoiceList} list */
  show({ voices, uploaded_voices, can_change }) {
    const stored = new Map(uploaded_voices.map((voice) => [voice.name, voice]));
    const rows = voices.map((name) => this.#row(name, stored.get(name), can_change));
    getById("voice-list").replaceChildren(...rows);
  }

  /** @param {string} name @param {StoredVoice | undefined} voice @param {boolean} can_change */
  #row(name, voice, can_change) {
    const title = createElement("div", { className: "voice-title" }, createElement("b", {}, name));
    title.append(createElement("span", { className: "muted" }, describe(voice)));
    const buttons = createElement("div", { className: "voice-buttons" }, this.#button("Listen", name, () => this.#listen(name)));
    const row = createElement("li", { className: "voice" }, title, buttons);
    row.dataset.name = name;
    if (voice !== undefined && can_change) {
      buttons.append(this.#button("Embedding", name, () => this.#download(name)));
      if (!voice.shared) {
        buttons.append(
          this.#button("Rename", name, async () => this.#askForName(row, name)),
          this.#button("Delete", name, () => this.#delete(name)),
        );
      }
    }
    return row;
  }

  /** @param {string} label @param {string} name @param {() => Promise<void>} action */
  #button(label, name, action) {
    const onclick = () => this.context.report(action());
    return createElement("button", { type: "button", className: "quiet", ariaLabel: `${label} ${name}`, onclick }, label);
  }

  /** @param {string} voice */
  async #listen(voice) {
    await this.context.listen({ voice });
  }

  /** @param {string} name */
  async #download(name) {
    const numbers = await this.context.api.embedding(name);
    saveFile(new Blob([JSON.stringify(numbers)], { type: "application/json" }), `${name}.json`);
  }

  /** @param {HTMLElement} row @param {string} name */
  #askForName(row, name) {
    const field = createElement("input", { value: name, maxLength: 64, required: true, ariaLabel: `New name of ${name}` });
    const save = createElement("button", { type: "submit" }, "Save");
    const close = () => this.context.report(this.context.refresh(name));
    const cancel = createElement("button", { type: "button", className: "quiet", onclick: close }, "Cancel");
    const form = createElement("form", { className: "renaming" }, field, save, cancel);
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.context.report(this.#rename(name, field.value.trim()));
    });
    form.addEventListener("keydown", (event) => event.key === "Escape" && close());
    row.replaceChildren(form);
    field.select();
  }

  /** @param {string} name @param {string} new_name */
  async #rename(name, new_name) {
    if (new_name !== name) await this.context.api.renameVoice(name, new_name);
    await this.context.refresh(new_name);
  }

  /** @param {string} name */
  async #delete(name) {
    if (!confirm(`Delete the voice ${name}? It cannot be restored.`)) return;
    await this.context.api.deleteVoice(name);
    await this.context.refresh();
    input("voice-sentence").focus();
  }
}

/** @param {StoredVoice | undefined} voice */
function describe(voice) {
  if (voice === undefined) return "of the model";
  const made = voice.source === "audio" ? `recording of ${voice.sample_s ?? "?"} s` : voice.source;
  const parts = [made, voice.in_context && "with transcript", voice.shared && "of the operator", voice.speaker_description];
  return parts.filter(Boolean).join(" · ");
}
