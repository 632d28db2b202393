/**
 * A conversation with the agent of a server: turns of the user, and spoken answers. It lasts as long as its connection.
 * The server's conversation holds what was heard: an interruption reports the milliseconds that were played.
 */

import { toS16le } from "../audio/pcm.js";
import { Emitter } from "../emitter.js";
import { RealtimeSocket, toBase64 } from "./realtime_socket.js";
import { SpokenAnswer } from "./spoken_answer.js";

/** Answers to a cancel that crossed the end of the response. */
const CROSSED = new Set(["response_cancel_not_active"]);
const MAX_TURNS = 200;
const TRANSCRIPTION = "conversation.item.input_audio_transcription";

/**
 * @typedef {{kind: "user", id: string, text: string, state: "said" | "speaking" | "recognizing" | "failed"}} UserTurn
 * @typedef {UserTurn | SpokenAnswer} Turn
 * @typedef {import("./realtime_socket.js").RealtimeEvent} RealtimeEvent
 *
 * @typedef {object} AgentEvents
 * @property {{state: "closed" | "connecting" | "open", reason: string | null}} state
 * @property {Turn} turn is new, or has changed
 * @property {{code: string, message: string}} error of the server; the conversation goes on
 */

/** @extends {Emitter<AgentEvents>} */
export class AgentSession extends Emitter {
  /** @type {"closed" | "connecting" | "open"} */
  state = "closed";
  /** The newest turns, also of earlier connections, in the order in which they began. @type {Turn[]} */
  turns = [];
  /** @type {RealtimeSocket | null} */
  #socket = null;
  /** @type {import("../audio/player.js").Player | null} */
  #player = null;
  #num_requests = 0;
  /** Number of the request whose response has not begun. @type {number | null} */
  #awaited = null;
  /** Requests up to this number are canceled. */
  #num_canceled = 0;
  /** What the server is to know at each connection. @type {Record<string, unknown>} */
  #settings = {};

  /** @param {{url: URL, api_key?: string}} access @param {() => Promise<import("../audio/player.js").Player>} prepare */
  constructor(access, prepare) {
    super();
    this.access = access;
    this.prepare = prepare;
  }

  /** Begin a conversation, if there is none. */
  async connect() {
    if (this.state !== "closed") return;
    this.#setState("connecting");
    try {
      this.#player = await this.prepare();
      const socket = new RealtimeSocket(this.access);
      this.#socket = socket;
      socket.on("event", (event) => this.#receive(event));
      socket.on("closed", (reason) => this.#end(reason));
    } catch (error) {
      this.#end(/** @type {Error} */ (error).message);
    }
  }

  /** End the conversation and all playback, and drop the turns. */
  close() {
    this.#socket?.close();
    this.#end(null);
    for (const answer of this.#answers) if (!answer.over) answer.stop();
    this.turns = [];
  }

  /** True while an answer is expected, comes or plays. */
  get is_busy() {
    return this.#awaited !== null || this.#answers.some((answer) => !answer.over);
  }

  /**
   * Change settings of the session, now and at later connections.
   *
   * @param {Record<string, unknown>} settings of `session.update`: `input` and `output` of `audio`
   */
  update(settings) {
    this.#settings = { ...this.#settings, ...settings };
    if (this.state === "open") this.#sendSettings();
  }

  /** Send a typed turn. What still sounds is interrupted. @param {string} text */
  async ask(text) {
    await this.interrupt();
    const id = `typed-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    const content = [{ type: "input_text", text }];
    this.#send({ type: "conversation.item.create", item: { id, type: "message", role: "user", content } });
    this.#add({ kind: "user", id, text, state: "said" });
    this.#request();
  }

  /** Send audio of the user. @param {Float32Array} pcm at `AGENT_RATE` */
  sendAudio(pcm) {
    if (pcm.length > 0) this.#send({ type: "input_audio_buffer.append", audio: toBase64(toS16le(pcm)) });
  }

  /** Drop audio that is not part of a turn. */
  clearAudio() {
    this.#send({ type: "input_audio_buffer.clear" });
  }

  /** End a spoken turn, and have it answered. */
  commitAudio() {
    this.#send({ type: "input_audio_buffer.commit" });
    this.#request();
  }

  /** Stop all answers and their playback. */
  async interrupt() {
    if (!this.is_busy) return;
    if (this.#awaited !== null || this.#answers.some((answer) => !answer.is_done)) {
      this.#send({ type: "response.cancel" });
    }
    this.#num_canceled = this.#num_requests;
    this.#awaited = null;
    await this.#stopPlayback();
  }

  get #answers() {
    return this.turns.filter((turn) => turn instanceof SpokenAnswer);
  }

  #request() {
    this.#num_requests += 1;
    this.#awaited = this.#num_requests;
    const metadata = { request: String(this.#num_requests) };
    this.#send({ type: "response.create", event_id: `request-${this.#num_requests}`, response: { metadata } });
  }

  async #stopPlayback() {
    await Promise.all(this.#answers.filter((answer) => !answer.over).map((answer) => this.#cut(answer)));
  }

  /** Stop an answer, and report what was played of it. @param {SpokenAnswer} answer */
  async #cut(answer) {
    const audio_end_ms = await answer.stop();
    if (answer.item_id === null) return;
    this.#send({ type: "conversation.item.truncate", item_id: answer.item_id, content_index: 0, audio_end_ms });
  }

  /** Ask for the heard text of an answer, once it was ended and cut. @param {SpokenAnswer} answer */
  #retrieveHeard({ is_done, is_truncated, item_id }) {
    if (is_done && is_truncated && item_id !== null) this.#send({ type: "conversation.item.retrieve", item_id });
  }

  /** @param {RealtimeEvent} event */
  #receive(event) {
    const { type } = event;
    if (type === "session.created") this.#begin();
    else if (type === "error") this.#showError(event.error);
    else if (type.startsWith("response.")) this.#receiveResponse(event);
    else if (type.startsWith("input_audio_buffer.")) this.#receiveSpeech(event);
    else if (type === `${TRANSCRIPTION}.completed`) this.#setUserTurn(event.item_id, "said", event.transcript);
    else if (type === `${TRANSCRIPTION}.failed`) this.#setUserTurn(event.item_id, "failed", event.error.message);
    else this.#receiveItem(event);
  }

  #begin() {
    this.#setState("open");
    this.#sendSettings();
  }

  /** @param {RealtimeEvent} event */
  #receiveItem({ type, item, item_id }) {
    const answer = this.#answers.find((one) => one.item_id === (item?.id ?? item_id));
    if (answer === undefined) return;
    if (type === "conversation.item.truncated") {
      answer.is_truncated = true;
      this.#retrieveHeard(answer);
    } else if (type === "conversation.item.retrieved") {
      answer.heard = item.content[0]?.transcript ?? "";
      this.emit("turn", answer);
    }
  }

  /** @param {RealtimeEvent} event */
  #receiveSpeech({ type, item_id }) {
    if (type === "input_audio_buffer.speech_started") {
      this.#awaited = null;
      this.#stopPlayback(); // the server has canceled the response itself
      this.#setUserTurn(item_id, "speaking");
    } else if (type === "input_audio_buffer.committed") {
      this.#setUserTurn(item_id, "recognizing");
    } else if (type === "input_audio_buffer.cleared") {
      for (const turn of this.turns) {
        if (turn.kind === "user" && turn.state === "speaking") this.#setUserTurn(turn.id, "failed", "not sent");
      }
    }
  }

  /** @param {string} id @param {UserTurn["state"]} state @param {string} [text] */
  #setUserTurn(id, state, text = "") {
    const turn = this.turns.find((one) => one.kind === "user" && one.id === id);
    if (turn === undefined) this.#add({ kind: "user", id, text, state });
    else this.emit("turn", Object.assign(turn, { state, text }));
  }

  /** @param {RealtimeEvent} event */
  #receiveResponse(event) {
    if (event.type === "response.created") {
      this.#beginAnswer(event.response);
      return;
    }
    const answer = this.#answers.find((one) => one.id === (event.response_id ?? event.response?.id));
    if (answer === undefined) return;
    switch (event.type) {
      case "response.output_item.added":
        if (event.item.type === "message") this.#beginMessage(answer, event.item.id);
        return;
      case "response.output_audio.delta":
        answer.pushAudio(event.delta);
        return;
      case "response.output_audio.done":
        answer.endAudio();
        return;
      case "response.output_audio_transcript.delta":
        answer.addText(event.delta);
        break;
      case "response.function_call_arguments.done":
        answer.calls.push({ name: event.name, arguments: event.arguments });
        break;
      case "response.done":
        this.#endAnswer(answer, event.response);
        break;
      default:
        return;
    }
    this.emit("turn", answer);
  }

  /** @param {{id: string, metadata: {request?: string} | null}} response */
  #beginAnswer({ id, metadata }) {
    const player = /** @type {import("../audio/player.js").Player} */ (this.#player);
    const answer = new SpokenAnswer(id, player, () => this.emit("turn", answer));
    const request = Number(metadata?.request ?? Infinity);
    if (request === this.#awaited) this.#awaited = null;
    this.#add(answer);
    if (request > this.#num_canceled) return;
    this.#send({ type: "response.cancel", response_id: id });
    answer.stop();
  }

  /** @param {SpokenAnswer} answer @param {string} item_id */
  #beginMessage(answer, item_id) {
    answer.item_id = item_id;
    if (answer.is_stopped) this.#cut(answer);
  }

  /** @param {SpokenAnswer} answer @param {{status: string, status_details: any, latency?: any}} response */
  #endAnswer(answer, { status, status_details, latency }) {
    answer.is_done = true;
    answer.latency = latency ?? null;
    if (status === "failed") answer.error = status_details?.error?.message ?? "the answer failed";
    if (status === "cancelled" && !answer.is_stopped) this.#cut(answer);
    answer.endAudio();
    this.#retrieveHeard(answer);
  }

  /** @param {{code: string, message: string, event_id?: string}} error */
  #showError({ code, message, event_id }) {
    if (event_id === `request-${this.#awaited}`) this.#awaited = null;
    if (!CROSSED.has(code)) this.emit("error", { code, message });
  }

  /** @param {Turn} turn */
  #add(turn) {
    this.turns.push(turn);
    this.turns.splice(0, this.turns.length - MAX_TURNS);
    this.emit("turn", turn);
  }

  #sendSettings() {
    this.#send({ type: "session.update", session: { type: "realtime", audio: this.#settings } });
  }

  /** @param {RealtimeEvent} event */
  #send(event) {
    this.#socket?.send(event);
  }

  /** @param {string | null} reason */
  #end(reason) {
    this.#socket = null;
    this.#awaited = null;
    for (const answer of this.#answers) {
      if (answer.is_done) continue;
      answer.is_done = true;
      answer.error = reason;
      answer.endAudio(); // what has come is still played
    }
    this.#setState("closed", reason);
  }

  /** @param {"closed" | "connecting" | "open"} state @param {string | null} [reason] */
  #setState(state, reason = null) {
    this.state = state;
    this.emit("state", { state, reason });
  }
}
