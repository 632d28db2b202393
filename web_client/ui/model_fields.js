/** Fields of the form that the loaded model honors: instruction, sampling, markup and lexicons. */

import { createElement, getById, input, textarea } from "./dom.js";

const NUMBERS = {
  temperature: "Temperature",
  top_p: "Top p",
  top_k: "Top k",
  repetition_penalty: "Repetition penalty",
  repetition_window: "Repetition window, frames",
  min_new_tokens: "Minimum length, frames",
  predictor_temperature: "Predictor temperature",
  predictor_top_p: "Predictor top p",
  predictor_top_k: "Predictor top k",
};
const SWITCHES = { do_sample: "Sampling", predictor_do_sample: "Predictor sampling" };
const FRACTIONS = new Set(["temperature", "top_p", "repetition_penalty", "predictor_temperature", "predictor_top_p"]);
const MAX_LEXICONS = 4;

/** @typedef {import("../http_api.js").ModelInfo} ModelInfo */

const instruction = () => textarea("instruct");

/** Show the fields of a model, with the values that are there. @param {ModelInfo} model */
export function showModelFields(model) {
  const supported = new Set(model.supported_parameters);
  getById("instruct-field").hidden = !supported.has("instruct");
  const describes = model.task === "voice_design";
  getById("instruct-label").textContent = describes ? "Description of the voice" : "Style";
  instruction().placeholder = describes ? "A calm elderly man with a deep voice" : "Speak slowly and warmly";
  const before = sampling();
  const fields = [...Object.entries(NUMBERS), ...Object.entries(SWITCHES)].filter(([name]) => supported.has(name));
  getById("sampling").replaceChildren(...fields.map(([name, label]) => samplingField(name, label, model)));
  for (const [name, value] of Object.entries(before)) {
    const field = samplingInputs().find((element) => element.name === name);
    if (field) field.value = String(value);
  }
}

/**
 * Show the lexicons that can be selected.
 *
 * @param {string[] | null} names `null`: they need an API key
 */
export function showLexicons(names) {
  const selected = new Set(lexicons());
  const ticks = (names ?? []).map((name) => {
    const box = createElement("input", { type: "checkbox", value: name, checked: selected.has(name) });
    return createElement("label", { className: "tick" }, box, name);
  });
  getById("lexicons").replaceChildren(...ticks);
  const none = names === null ? "Lexicons need an API key." : "No lexicons are stored.";
  getById("lexicons-note").textContent = ticks.length > 0 ? "" : none;
  limitLexicons();
}

/** Disable further lexicons at the limit. */
export function limitLexicons() {
  const is_full = lexicons().length >= MAX_LEXICONS;
  for (const box of lexiconBoxes()) box.disabled = is_full && !box.checked;
}

/** @returns {import("../protocol/events.js").Settings} what is filled in */
export function readModelFields() {
  const text = getById("instruct-field").hidden ? "" : instruction().value.trim();
  const values = sampling();
  const selected = lexicons();
  return {
    ...(text && { instruct: text }),
    ...(Object.keys(values).length > 0 && { sampling: values }),
    ...(input("ssml").checked && { markup: /** @type {const} */ ("ssml") }),
    ...(selected.length > 0 && { lexicons: selected }),
  };
}

/** @param {string} name @param {string} label @param {ModelInfo} model */
function samplingField(name, label, { parameter_ranges }) {
  const id = `sampling-${name}`;
  if (name in SWITCHES) {
    const names = [["", "the model's"], ["true", "on"], ["false", "off"]];
    const options = names.map(([value, text]) => createElement("option", { value }, text));
    return createElement("label", { className: "field", htmlFor: id }, label, createElement("select", { id, name }, ...options));
  }
  const [min, max] = parameter_ranges[name].map(String);
  const step = FRACTIONS.has(name) ? "any" : "1";
  const field = createElement("input", { id, name, type: "number", min, max, step, placeholder: "the model's" });
  field.inputMode = step === "any" ? "decimal" : "numeric";
  return createElement("label", { className: "field", htmlFor: id }, label, field);
}

/** @returns {Record<string, number | boolean>} */
function sampling() {
  const filled = samplingInputs().filter(({ value }) => value !== "");
  return Object.fromEntries(
    filled.map(({ name, value }) => [name, name in SWITCHES ? value === "true" : Number(value)]),
  );
}

const samplingInputs = () =>
  /** @type {(HTMLInputElement | HTMLSelectElement)[]} */ ([...getById("sampling").querySelectorAll("input, select")]);

const lexiconBoxes = () =>
  /** @type {HTMLInputElement[]} */ ([...getById("lexicons").querySelectorAll("input")]);

const lexicons = () => lexiconBoxes().filter(({ checked }) => checked).map(({ value }) => value);
