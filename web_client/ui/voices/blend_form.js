/** The form that blends two stored voices. */

import { blendEmbeddings } from "../../blend.js";
import { createElement, getById, input, select, textarea } from "../dom.js";

export class BlendForm {
  /** @param {import("./voices_view.js").VoicesContext} context */
  constructor(context) {
    this.context = context;
    for (const id of ["blend-first", "blend-second"]) select(id).addEventListener("change", () => this.#showWeight());
    input("blend-weight").addEventListener("input", () => this.#showWeight());
    getById("blend-listen").addEventListener("click", () => context.report(this.#listen()));
    getById("blend-form").addEventListener("submit", (event) => {
      event.preventDefault();
      context.report(this.#store());
    });
  }

  /** @param {import("../../http_api.js").VoiceList} list */
  show({ uploaded_voices, can_change }) {
    const names = uploaded_voices.map(({ name }) => name);
    const can_blend = can_change && names.length > 1 && this.context.model().voice_sources.includes("embedding");
    const was_hidden = getById("blend-form").hidden;
    getById("blend-form").hidden = !can_blend;
    for (const [index, id] of ["blend-first", "blend-second"].entries()) {
      const before = was_hidden ? names[index] : select(id).value;
      select(id).replaceChildren(...names.map((name) => createElement("option", { value: name }, name)));
      if (names.includes(before)) select(id).value = before;
    }
    this.#showWeight();
  }

  #showWeight() {
    const percent = Math.round(100 * input("blend-weight").valueAsNumber);
    const text = `${100 - percent} % ${select("blend-first").value}, ${percent} % ${select("blend-second").value}`;
    getById("blend-share").textContent = text;
    input("blend-weight").setAttribute("aria-valuetext", text);
  }

  async #embedding() {
    const { api } = this.context;
    const names = [select("blend-first").value, select("blend-second").value];
    const [first, second] = await Promise.all(names.map((name) => api.embedding(name)));
    return blendEmbeddings(first, second, input("blend-weight").valueAsNumber);
  }

  async #listen() {
    await this.context.listen({ speaker_embedding: await this.#embedding() });
  }

  async #store() {
    const voice = await this.context.api.addVoice({
      name: input("blend-name").value.trim(),
      consent: textarea("blend-consent").value.trim(),
      speaker_description: getById("blend-share").textContent ?? "",
      speaker_embedding: JSON.stringify(await this.#embedding()),
    });
    input("blend-name").value = textarea("blend-consent").value = "";
    await this.context.refresh(voice.name);
  }
}
