/** The view of voices: what the server has, and what can be made. */

import { ClipPlayer, decodeClip } from "../../audio/clip.js";
import { getById, input } from "../dom.js";
import { showNotice } from "../notices.js";
import { BlendForm } from "./blend_form.js";
import { DesignForm } from "./design_form.js";
import { RecordingForm } from "./recording_form.js";
import { VoiceList } from "./voice_list.js";

/**
 * @typedef {object} VoicesContext what the parts of this view share
 * @property {import("../../http_api.js").SpeechApi} api
 * @property {() => import("../../http_api.js").ModelInfo} model
 * @property {() => Promise<AudioContext>} audioContext
 * @property {(fields: Record<string, unknown>, onFile?: (wav: Blob) => void) => Promise<void>} listen speaks the sentence
 *   with fields of the speech API
 * @property {(name?: string) => Promise<void>} refresh shows the voices of the server; focus goes to this one
 * @property {(action: Promise<void>) => Promise<void>} report shows why an action failed
 */

/**
 * Open the view. Returns a function that shows the present state of the server.
 *
 * @param {object} page
 * @param {import("../../session.js").VoicewireSession} page.session
 * @param {import("../../http_api.js").SpeechApi} page.api
 * @param {(voices: string[]) => void} page.onVoices
 * @returns {() => Promise<void>}
 */
export function openVoices({ session, api, onVoices }) {
  const clips = new ClipPlayer();
  /** @type {import("../../http_api.js").ModelInfo} */
  let model;
  const audioContext = async () => (await session.prepare()).context;
  /** @type {VoicesContext} */
  const context = {
    api,
    audioContext,
    model: () => model,
    async listen(fields, onFile) {
      clips.stop();
      const device = await audioContext();
      const wav = await api.speech({ input: input("voice-sentence").value, ...fields });
      onFile?.(new Blob([wav], { type: "audio/wav" }));
      await clips.play(device, await decodeClip(device, wav));
    },
    async refresh(name) {
      const [described, voices] = await Promise.all([api.model(), api.voices()]);
      model = described;
      list.show(voices);
      blend.show(voices);
      design.show(model);
      showWhatIsPossible(model, voices.can_change);
      recording.redraw();
      onVoices(voices.voices);
      const row = [...getById("voice-list").children].find((item) => /** @type {HTMLElement} */ (item).dataset.name === name);
      row?.querySelector("button")?.focus();
    },
    report: (action) => report(action),
  };
  const list = new VoiceList(context);
  const blend = new BlendForm(context);
  const design = new DesignForm(context);
  const recording = new RecordingForm(context);
  return () => report(context.refresh());
}

/** @param {Promise<void>} action */
async function report(action) {
  try {
    await action;
    showNotice("voices", null);
  } catch (error) {
    showNotice("voices", { text: /** @type {Error} */ (error).message, tone: "bad", dismiss: true });
  }
}

/** @param {import("../../http_api.js").ModelInfo} model @param {boolean} can_change */
function showWhatIsPossible(model, can_change) {
  const can_record = model.voice_sources.includes("audio");
  const note = !can_record
    ? `${model.id} cannot make voices from recordings.`
    : "Storing, renaming and deleting voices needs an API key; a token is not enough.";
  const is_possible = can_record && can_change;
  getById("voices-note").textContent = is_possible ? "" : note;
  getById("recording-fields").toggleAttribute("disabled", !is_possible);
}
