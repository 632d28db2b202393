/** The controls of the microphone: its mode, and the button that is held. */

import { AgentMicrophone } from "../../agent/agent_microphone.js";
import { hasMicrophone } from "../../audio/microphone.js";
import { getById } from "../dom.js";
import { showNotice } from "../notices.js";

/** Shorter turns are dropped: the button was hit by accident. */
const MIN_TURN_MS = 150;
/** The server accepts no more. */
const MAX_TURN_MS = 59_000;
const WORDS = { off: "Ready.", hold: "Audio leaves the page while you hold the button.", free: "Listening." };

/** @typedef {import("../../agent/agent_microphone.js").MicrophoneMode} MicrophoneMode */

export class MicrophoneControl {
  #agent;
  #microphone;
  #onChange;
  #is_pressed = false;

  /** @param {import("../../agent/agent_session.js").AgentSession} agent @param {() => void} onChange */
  constructor(agent, onChange) {
    this.#agent = agent;
    this.#onChange = onChange;
    this.#microphone = new AgentMicrophone((pcm) => this.#receive(pcm));
    this.#agent.update({ input: { turn_detection: null } });
    for (const radio of modes()) radio.addEventListener("change", () => this.#setMode(/** @type {any} */ (radio.value)));
    this.#listenToButton(getById("talk-hold"));
  }

  /** @param {boolean} can_recognize whether the server recognizes speech */
  show(can_recognize) {
    getById("talk-microphone").hidden = !can_recognize || !hasMicrophone();
  }

  /** What it does now. */
  get words() {
    const { mode, is_open } = this.#microphone;
    if (mode !== "off" && !is_open) return "Opening the microphone.";
    return this.#is_pressed ? "Listening." : WORDS[mode];
  }

  close() {
    if (this.#microphone.mode !== "off") this.#setMode("off");
  }

  /** @param {MicrophoneMode} mode */
  async #setMode(mode) {
    this.#is_pressed = false;
    this.#agent.update({ input: { turn_detection: mode === "free" ? { type: "server_vad" } : null } });
    this.#agent.clearAudio();
    const opening = this.#microphone.setMode(mode);
    this.#showMode();
    try {
      await opening;
      if (mode !== "off") showNotice("talk", null);
    } catch (error) {
      showNotice("talk", { text: `No microphone: ${/** @type {Error} */ (error).message}.`, tone: "bad", dismiss: true });
    }
    this.#showMode();
  }

  #showMode() {
    const { mode, is_open } = this.#microphone;
    for (const radio of modes()) radio.checked = radio.value === mode;
    const button = /** @type {HTMLButtonElement} */ (getById("talk-hold"));
    button.hidden = mode !== "hold";
    button.disabled = !is_open;
    button.setAttribute("aria-pressed", String(this.#is_pressed));
    this.#onChange();
  }

  /** @param {HTMLElement} button */
  #listenToButton(button) {
    const isKey = (/** @type {KeyboardEvent} */ { key }) => key === " " || key === "Enter";
    button.addEventListener("pointerdown", (event) => {
      button.setPointerCapture(event.pointerId);
      this.#press();
    });
    for (const name of ["pointerup", "pointercancel", "blur"]) button.addEventListener(name, () => this.#release());
    button.addEventListener("keydown", (event) => {
      if (!isKey(event)) return;
      event.preventDefault();
      if (!event.repeat) this.#press();
    });
    button.addEventListener("keyup", (event) => isKey(event) && this.#release());
    button.addEventListener("contextmenu", (event) => event.preventDefault()); // phones open it after a while
  }

  #press() {
    if (this.#is_pressed || this.#agent.state !== "open" || !this.#microphone.is_open) return;
    this.#agent.interrupt();
    this.#agent.clearAudio();
    this.#is_pressed = true;
    this.#microphone.press();
    this.#showMode();
  }

  #release() {
    if (!this.#is_pressed) return;
    this.#is_pressed = false;
    this.#microphone.release();
    if (this.#microphone.sent_ms < MIN_TURN_MS) this.#agent.clearAudio();
    else this.#agent.commitAudio();
    this.#showMode();
  }

  /** @param {Float32Array} pcm */
  #receive(pcm) {
    this.#agent.sendAudio(pcm);
    if (this.#is_pressed && this.#microphone.sent_ms >= MAX_TURN_MS) this.#release();
  }
}

/** @returns {NodeListOf<HTMLInputElement>} */
const modes = () => document.querySelectorAll("#talk-microphone input");
