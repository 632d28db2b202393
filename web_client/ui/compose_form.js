/** The form: text and speech options. */

import { createElement, fillSelect, getById, input, select, textarea } from "./dom.js";
import { limitLexicons, readModelFields } from "./model_fields.js";
import { findSpeakers, openSpeakers, readSpeakers, setSpeakerVoices } from "./speakers_form.js";
import { scheduleTokens } from "./token_stream.js";

const SAMPLES = {
  Greeting: "Good morning! I can start speaking before you have finished writing. Stop me whenever you like.",
  Reply:
    "Sure, here is the short version. Your order left our warehouse on the 3rd of May and should arrive on Thursday, " +
    "between 9:30 and 11. The driver will call you about twenty minutes before. If nobody is at home, the parcel goes to " +
    "the shop around the corner, " +
    "and you have seven days to pick it up. Would you like me to change the delivery day, or is Thursday fine for you?",
  Numbers:
    "The total is $1,249.50, due on 12/06. Your confirmation code is A7 4402, " +
    "and the balance after that is 3.5% lower than last year.",
  Dialogue: "Ann: Is the kettle on?\nBob: It has been singing for a minute.\nAnn: Then tea it is.",
};

/**
 * @typedef {{text: string, settings: import("../protocol/events.js").Settings, tokens: import("./token_stream.js").Token[] | null, copies: number, how: string}} Order
 */

const textField = () => textarea("text");

/** @param {(event: Event) => void} onSpeak */
export function openComposer(onSpeak) {
  const form = /** @type {HTMLFormElement} */ (getById("composer"));
  textField().value = SAMPLES.Reply;
  for (const [name, text] of Object.entries(SAMPLES)) {
    const choose = () => {
      textField().value = text;
      textField().focus();
      findSpeakers(text);
    };
    getById("samples").append(createElement("button", { type: "button", className: "chip", onclick: choose }, name));
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    onSpeak(event);
  });
  textField().addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  form.addEventListener("input", showDelivery);
  getById("lexicons").addEventListener("change", limitLexicons);
  openSpeakers();
  for (const folded of form.querySelectorAll("details")) {
    folded.addEventListener("invalid", () => (folded.open = true), true); // a browser cannot focus a folded field
  }
  showDelivery();
}

/** @param {import("../protocol/events.js").SessionCreated} info */
export function setOptions({ voices, languages, settings }) {
  setVoices(voices, settings.voice);
  fillSelect(select("language"), languages, settings.language);
}

/** @param {string[]} names @param {string} [chosen] */
export function setVoices(names, chosen) {
  fillSelect(select("voice"), names, chosen);
  setSpeakerVoices(names);
}

/** @returns {Order} */
export function readForm() {
  const text = textField().value;
  const [encoding, sample_rate, bitrate] = select("format").value.split("/");
  const seed = input("seed").valueAsNumber;
  const format = { encoding, sample_rate: Number(sample_rate), ...(bitrate && { bitrate: Number(bitrate) }) };
  const speakers = readSpeakers();
  const voice = select("voice").value; // empty where the model has no voice of its own, and none is stored
  const settings = {
    ...(voice && { voice }),
    language: select("language").value,
    format,
    word_times: true,
    ...(Number.isInteger(seed) && { seed }),
    ...(Object.keys(speakers).length > 0 && { speakers }),
    ...readModelFields(),
  };
  const pauses = /** @type {import("./token_stream.js").Pauses} */ (select("pauses").value);
  const tokens = writesTokens() ? scheduleTokens(text, input("rate").valueAsNumber, pauses) : null;
  const how = `${voice || "no voice"} · ${select("format").selectedOptions[0].text}`;
  return { text, settings, tokens, copies: Number(select("copies").value), how };
}

/** @returns {"auto" | "webcodecs" | "wasm"} */
export const wantedDecoder = () => /** @type {"auto"} */ (select("decoder").value);

const writesTokens = () =>
  /** @type {RadioNodeList} */ (/** @type {HTMLFormElement} */ (getById("composer")).elements.namedItem("delivery"))
    .value === "tokens";

function showDelivery() {
  getById("tokens").hidden = !writesTokens();
  getById("rate-value").textContent = input("rate").value;
}
