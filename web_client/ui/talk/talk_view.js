/** The view of the conversation with the agent. */

import { AgentSession } from "../../agent/agent_session.js";
import { createElement, fillSelect, getById, select, textarea } from "../dom.js";
import { showNotice } from "../notices.js";
import { listenForKeys } from "../shortcuts.js";
import { checkSound } from "../status.js";
import { MicrophoneControl } from "./microphone_control.js";
import { TurnCard } from "./turn_card.js";

const MAX_CARDS = 200;
const NO_AGENT = "This server has no agent. Start it with a language model: serve --llm URL.";

/** @typedef {import("../../agent/agent_session.js").Turn} Turn */

export class TalkView {
  #agent;
  #microphone;
  /** @type {WeakMap<Turn, TurnCard>} */
  #cards = new WeakMap();

  /**
   * @param {import("../../session.js").VoicewireSession} session
   * @param {import("../../http_api.js").SpeechApi} api
   * @param {(text: string) => void} announce to screen readers
   */
  constructor(session, api, announce) {
    this.session = session;
    this.api = api;
    this.announce = announce;
    this.#agent = new AgentSession(session.connection, () => session.prepare());
    this.#microphone = new MicrophoneControl(this.#agent, () => this.#showStatus());
    this.#agent.on("state", (change) => this.#showState(change));
    this.#agent.on("turn", (turn) => this.#showTurn(turn));
    this.#agent.on("error", ({ code, message }) => showProblem(`${message} (${code})`));
    this.#listen();
  }

  /** Show what the server can do, and connect. */
  async show() {
    try {
      const [{ agent }, { voices }] = await Promise.all([this.api.model(), this.api.voices()]);
      fillSelect(select("talk-voice"), voices, select("voice").value);
      this.#showAbilities(agent);
      this.#setVoice();
      if (agent !== "none") await this.#agent.connect();
    } catch (error) {
      showProblem(/** @type {Error} */ (error).message);
    }
  }

  /** Another view is shown: the microphone is closed. */
  leave() {
    this.#microphone.close();
  }

  #listen() {
    const form = /** @type {HTMLFormElement} */ (getById("talk-form"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#send();
    });
    textarea("talk-text").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      form.requestSubmit();
    });
    getById("talk-interrupt").addEventListener("click", () => this.#agent.interrupt());
    getById("talk-restart").addEventListener("click", () => this.#restart());
    select("talk-voice").addEventListener("change", () => this.#setVoice());
    listenForKeys(
      () => !getById("view-talk").hidden && this.#agent.is_busy,
      () => this.#agent.interrupt(),
    );
  }

  async #send() {
    const field = textarea("talk-text");
    const text = field.value.trim();
    if (text === "" || this.#agent.state !== "open") return field.focus();
    field.value = "";
    showNotice("talk", null);
    const player = await this.session.prepare();
    player.resume().catch(() => {}); // `checkSound` reports it
    checkSound(this.session);
    await this.#agent.ask(text);
  }

  async #restart() {
    this.#microphone.close();
    this.#agent.close();
    getById("turns").replaceChildren();
    getById("talk-empty").hidden = false;
    showNotice("talk", null);
    await this.#agent.connect();
    textarea("talk-text").focus();
  }

  #setVoice() {
    const voice = select("talk-voice").value;
    if (voice) this.#agent.update({ output: { voice } });
  }

  /** @param {import("../../http_api.js").ModelInfo["agent"]} agent */
  #showAbilities(agent) {
    getById("talk-note").textContent = NO_AGENT;
    getById("talk-note").hidden = agent !== "none";
    for (const id of ["talk-text", "talk-send", "talk-voice", "talk-restart"]) {
      /** @type {HTMLButtonElement} */ (getById(id)).disabled = agent === "none";
    }
    this.#microphone.show(agent === "audio");
  }

  /** @param {import("../../agent/agent_session.js").AgentEvents["state"]} change */
  #showState({ state, reason }) {
    this.#showStatus();
    if (state === "open" && getById("turns").childElementCount > 0) this.#separate();
    if (state === "connecting") showNotice("talk", null);
    if (state !== "closed") return;
    this.#microphone.close();
    if (reason === null) return;
    showNotice("talk", {
      text: `The conversation has ended: ${reason}.`,
      tone: "bad",
      action: "Begin another",
      onAction: () => this.#agent.connect(),
    });
  }

  /** Separate the turns of an earlier conversation, which this one does not know. */
  #separate() {
    getById("turns").append(createElement("li", { className: "parting" }, "another conversation"));
  }

  /** @param {Turn} turn */
  #showTurn(turn) {
    let card = this.#cards.get(turn);
    if (card === undefined) {
      card = new TurnCard(turn);
      this.#cards.set(turn, card);
      const list = getById("turns");
      list.append(card.element);
      while (list.childElementCount > MAX_CARDS) list.firstElementChild?.remove();
      getById("talk-empty").hidden = true;
      card.element.scrollIntoView({ block: "nearest" });
    } else {
      const before = card.element.dataset.state;
      card.refresh();
      if (before !== turn.state) this.#announce(turn);
    }
    this.#showStatus();
  }

  /** @param {Turn} turn */
  #announce(turn) {
    if (turn.kind === "user" && turn.state === "said") this.announce(`You said: ${turn.text || "nothing understood"}`);
    if (turn.kind === "agent" && turn.state === "interrupted") this.announce("The answer is interrupted.");
    if (turn.state === "failed") this.announce("The turn failed.");
  }

  #showStatus() {
    const { state, is_busy } = this.#agent;
    getById("talk-interrupt").setAttribute("aria-disabled", String(!is_busy));
    const words = { closed: "Not connected.", connecting: "Connecting.", open: this.#microphone.words };
    getById("talk-status").textContent = words[state];
  }
}

/** @param {string} text */
function showProblem(text) {
  showNotice("talk", { text, tone: "bad", dismiss: true });
}
