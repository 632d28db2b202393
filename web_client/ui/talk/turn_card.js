/** One turn of the conversation: its text, what was heard of it, and its latency. */

import { createElement } from "../dom.js";

/** @typedef {import("../../agent/agent_session.js").Turn} Turn */

const STATES = {
  said: "",
  speaking: "speaking",
  recognizing: "recognizing",
  failed: "failed",
  thinking: "thinking",
  heard: "heard",
  interrupted: "interrupted",
};
const LATENCIES = /** @type {const} */ ([
  ["endpointing_ms", "end of speech"],
  ["stt_ms", "recognition"],
  ["llm_first_token_ms", "first token"],
  ["first_audio_ms", "first audio"],
]);

export class TurnCard {
  /** @param {Turn} turn */
  constructor(turn) {
    this.turn = turn;
    this.state = createElement("span", { className: "state" });
    this.said = createElement("p", { className: "said", dir: "auto" });
    this.problem = createElement("p", { className: "problem", hidden: true });
    this.numbers = createElement("dl", { className: "numbers", hidden: true });
    const title = createElement("h2", {}, turn.kind === "user" ? "You" : "Agent");
    const parts = [createElement("header", {}, title, this.state), this.said, this.problem, this.numbers];
    this.element = createElement("li", { className: "reply turn card" }, ...parts);
    this.element.dataset.kind = turn.kind;
    this.refresh();
  }

  refresh() {
    const { turn } = this;
    const state = STATES[turn.state];
    this.state.textContent = state;
    this.state.hidden = state === "";
    this.element.dataset.state = turn.state;
    if (turn.kind === "user") this.#showUser(turn);
    else this.#showAnswer(turn);
  }

  /** @param {import("../../agent/agent_session.js").UserTurn} turn */
  #showUser({ state, text }) {
    const is_failed = state === "failed";
    this.said.textContent = is_failed ? "" : state === "said" && text === "" ? "(nothing understood)" : text;
    this.#showProblem(is_failed ? text : null);
  }

  /** @param {import("../../agent/spoken_answer.js").SpokenAnswer} answer */
  #showAnswer({ text, num_heard, heard, played_ms, error, calls, latency }) {
    const known = heard !== null && text.startsWith(heard) ? heard.length : num_heard;
    const cut = played_ms === null ? [] : [cutMark(played_ms)];
    this.said.dataset.cut = String(played_ms !== null);
    if (heard !== null) this.element.dataset.heard = heard;
    this.said.replaceChildren(
      createElement("span", { className: "heard" }, heard ?? text.slice(0, known)),
      ...cut,
      createElement("span", { className: "rest" }, text.slice(known)),
    );
    for (const call of calls) {
      const line = `${call.name}(${call.arguments}): this page carries out no functions`;
      this.said.append(createElement("span", { className: "muted" }, line));
    }
    this.#showProblem(error);
    if (latency !== null) this.#showLatency(latency);
  }

  /** @param {string | null} text */
  #showProblem(text) {
    this.problem.textContent = text;
    this.problem.hidden = text === null;
  }

  /** @param {import("../../agent/spoken_answer.js").AgentLatency} latency */
  #showLatency(latency) {
    const parts = LATENCIES.flatMap(([name, label]) => {
      const value = latency[name];
      if (value === null) return [];
      return [createElement("div", {}, createElement("dt", {}, label), createElement("dd", {}, `${Math.round(value)} ms`))];
    });
    this.numbers.replaceChildren(...parts);
    this.numbers.hidden = parts.length === 0;
  }
}

/** @param {number} played_ms */
function cutMark(played_ms) {
  const seconds = `${(played_ms / 1000).toFixed(2)} s`;
  return createElement(
    "span",
    { className: "cut" },
    createElement("span", { className: "unseen" }, ` [interrupted after ${seconds}; not heard:] `),
    createElement("span", { ariaHidden: "true" }, seconds),
  );
}
