/** Protocol messages, as lines that can be copied. */

import { parseAudio } from "../protocol/native.js";
import { getById, input, createElement } from "./dom.js";

const MAX_LINES = 1_000;
const MAX_SHOWN = 300;
const MAX_CHARS = 2_000;
const KINDS = ["", "Opus", "PCM", "mu-law", "A-law"];

/** @typedef {{text: string, kind: "audio" | "report" | "event", sent: boolean}} Line */

export class EventLog {
  /** @type {Line[]} */
  #lines = [];
  #begun_ms = performance.now();
  #asked = false;

  constructor() {
    this.box = /** @type {HTMLDetailsElement} */ (getById("log"));
    this.list = getById("log-lines");
    this.box.addEventListener("toggle", () => this.#askToShow());
    for (const id of ["log-audio", "log-reports"]) input(id).addEventListener("change", () => this.#askToShow());
    getById("log-clear").addEventListener("click", () => this.#clear());
    getById("log-copy").addEventListener("click", () => this.#copy());
  }

  /** @param {{sent: boolean, message: string | ArrayBuffer}} message */
  add({ sent, message }) {
    const time = ((performance.now() - this.#begun_ms) / 1000).toFixed(3).padStart(8);
    const { kind, said } =
      typeof message === "string"
        ? describe(message)
        : { kind: /** @type {const} */ ("audio"), said: describeAudio(message) };
    this.#lines.push({ text: `${time} ${sent ? "→" : "←"} ${said}`, kind, sent });
    if (this.#lines.length > MAX_LINES) this.#lines.shift();
    this.#askToShow();
  }

  /** @returns {Line[]} */
  get wanted() {
    const hidden = { audio: !input("log-audio").checked, report: !input("log-reports").checked, event: false };
    return this.#lines.filter(({ kind }) => !hidden[kind]);
  }

  #askToShow() {
    if (this.#asked) return;
    this.#asked = true;
    setTimeout(() => this.#show(), 100);
  }

  #show() {
    this.#asked = false;
    getById("log-count").textContent = this.#lines.length === 0 ? "" : `(${this.#lines.length})`;
    if (!this.box.open) return;
    const at_end = this.list.scrollTop + this.list.clientHeight >= this.list.scrollHeight - 30;
    const lines = this.wanted.slice(-MAX_SHOWN);
    this.list.replaceChildren(...lines.map(({ text, sent }) => createElement("li", { className: sent ? "sent" : "got" }, text)));
    if (at_end) this.list.scrollTop = this.list.scrollHeight;
  }

  #clear() {
    this.#lines = [];
    this.#show();
  }

  async #copy() {
    const text = this.wanted.map((line) => line.text).join("\n");
    const done = await copyText(text);
    const button = getById("log-copy");
    button.textContent = done ? "Copied" : "Not permitted";
    setTimeout(() => (button.textContent = "Copy"), 1_500);
  }
}

/** @param {string} message @returns {{kind: Line["kind"], said: string}} */
function describe(message) {
  const kind = message.startsWith('{"type":"playback.report"') ? "report" : "event";
  return { kind, said: message.length > MAX_CHARS ? `${message.slice(0, MAX_CHARS)}…` : message };
}

/** @param {ArrayBuffer} message */
function describeAudio(message) {
  try {
    const { kind, response, sequence, sample_time, packets } = parseAudio(message);
    const where = `response ${response}, sequence ${sequence}, sample time ${sample_time}`;
    return `audio: ${where}, ${packets.length} × ${KINDS[kind]}, ${message.byteLength} bytes`;
  } catch {
    return `binary, ${message.byteLength} bytes`;
  }
}

/** Copy text, also if the page may not use the clipboard API. @param {string} text */
async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = createElement("textarea", { value: text, className: "unseen" });
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  }
}
