/** The speakers of a dialogue: labels of lines, and the voice of each. */

import { createElement, fillSelect, getById, textarea } from "./dom.js";

const MAX_SPEAKERS = 16;
const MAX_LABEL_CHARS = 40;
/** A label at the beginning of a line: at most three words, and a colon. */
const LABEL = /^[ \t]*(\p{L}[\p{L}\p{N}_.'-]*(?: [\p{L}\p{N}_.'-]+){0,2})(?::(?=\s)|：)/gmu;

/** @type {string[]} */
let voices = [];

export function openSpeakers() {
  const details = /** @type {HTMLDetailsElement} */ (getById("dialogue"));
  details.addEventListener("toggle", () => details.open && rows().length === 0 && fillRows());
  getById("add-speaker").addEventListener("click", () => addRow("").focus());
  getById("speakers").addEventListener("input", showSpeakers);
}

/** Offer these voices; models without any have no dialogues. @param {string[]} names */
export function setSpeakerVoices(names) {
  voices = names;
  getById("dialogue").hidden = names.length === 0;
  for (const { voice } of rows()) fillSelect(voice, names);
}

/** Show the speakers of a sample text in place of others. @param {string} text */
export function findSpeakers(text) {
  const labels = labelsOf(text);
  getById("speakers").replaceChildren();
  for (const label of labels) addRow(label);
  /** @type {HTMLDetailsElement} */ (getById("dialogue")).open = labels.length > 0;
  showSpeakers();
}

/** Begin with the labels of the text, or with two speakers. */
function fillRows() {
  const labels = labelsOf(textarea("text").value);
  for (const label of labels.length > 0 ? labels : ["", ""]) addRow(label);
}

/** Find the labels of a text, in order. @param {string} text */
export const labelsOf = (text) =>
  [...new Set([...text.matchAll(LABEL)].map(([, label]) => label))].slice(0, MAX_SPEAKERS);

/** @returns {Record<string, string>} voices by label */
export function readSpeakers() {
  const named = rows().filter(({ label, voice }) => label.value.trim() && voice.value);
  return Object.fromEntries(named.map(({ label, voice }) => [label.value.trim(), voice.value]));
}

/** @param {string} name @returns {HTMLInputElement} its field */
function addRow(name) {
  const pattern = "[^:：]*";
  const title = "without a colon";
  const label = createElement("input", { value: name, maxLength: MAX_LABEL_CHARS, pattern, title, autocomplete: "off" });
  const voice = createElement("select");
  fillSelect(voice, voices, voices[rows().length % voices.length]);
  const onclick = () => removeRow(row);
  const remove = createElement("button", { type: "button", className: "quiet", onclick }, "Remove");
  /** @type {HTMLElement} */
  const row = createElement("li", { className: "speaker" }, fieldOf("Label", label), fieldOf("Voice", voice), remove);
  getById("speakers").append(row);
  showSpeakers();
  return label;
}

/** @param {HTMLElement} row */
function removeRow(row) {
  row.remove();
  showSpeakers();
  getById("add-speaker").focus();
}

/** @param {string} name @param {HTMLElement} element */
const fieldOf = (name, element) => createElement("label", { className: "field" }, name, element);

/** Show how many there are, and which label is there twice. */
function showSpeakers() {
  const names = rows().map(({ label }) => label.value.trim());
  for (const [index, { label, remove }] of rows().entries()) {
    const is_double = names[index] !== "" && names.indexOf(names[index]) < index;
    label.setCustomValidity(is_double ? "Another speaker has this label." : "");
    remove.ariaLabel = `Remove ${names[index] || `speaker ${index + 1}`}`;
  }
  const count = Object.keys(readSpeakers()).length;
  getById("dialogue-count").textContent = count > 0 ? `(${count === 1 ? "one speaker" : `${count} speakers`})` : "";
  /** @type {HTMLButtonElement} */ (getById("add-speaker")).disabled = names.length >= MAX_SPEAKERS;
}

const rows = () =>
  [...getById("speakers").children].map((row) => ({
    label: /** @type {HTMLInputElement} */ (row.querySelector("input")),
    voice: /** @type {HTMLSelectElement} */ (row.querySelector("select")),
    remove: /** @type {HTMLButtonElement} */ (row.querySelector("button")),
  }));
