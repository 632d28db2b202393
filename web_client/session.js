/** A session with a voicewire server: a connection, an audio device, and responses. */

import { chooseOpusDecoder } from "./audio/decoder.js";
import { Player } from "./audio/player.js";
import { Connection } from "./connection.js";
import { Emitter } from "./emitter.js";
import { SpokenResponse } from "./response.js";
import { wellFormed } from "./surrogate_buffer.js";

const REPORT_EVERY_MS = 200;
/** Number of ended responses that are retained: they can be interrupted while they play. */
const MAX_REMEMBERED = 32;

/**
 * @typedef {import("./protocol/events.js").Settings} Settings
 * @typedef {import("./protocol/events.js").ClientEvent} ClientEvent
 *
 * @typedef {object} SessionOptions
 * @property {string} [url] of the server; by default the one that the page came from
 * @property {string} [api_key]
 * @property {Settings} [settings] speech options of all responses
 * @property {"auto" | "webcodecs" | "wasm"} [decoder]
 * @property {"auto" | "worklet" | "scheduled"} [output]
 * @property {number} [prebuffer_ms] buffered audio before a response starts to play
 *
 * @typedef {object} SpeakOptions
 * @property {string} [text] its beginning, or all of it
 * @property {boolean} [end] whether `text` is all there is
 * @property {Settings} [settings] of this response alone
 * @property {number} [at_ms] when it was asked for, by `performance.now()`
 *
 * @typedef {object} SessionEvents
 * @property {import("./connection.js").ConnectionEvents["state"]} state
 * @property {import("./protocol/events.js").SessionCreated} ready a session has begun; after a lost connection again
 * @property {import("./protocol/events.js").ErrorEvent} error of the session, not of one response
 * @property {AudioContextState} sound `running`, or `suspended` until a user gesture
 * @property {SpokenResponse} response was created
 * @property {import("./connection.js").ConnectionEvents["wire"]} wire
 */

/** @extends {Emitter<SessionEvents>} */
export class VoicewireSession extends Emitter {
  /** The first event of the server. @type {import("./protocol/events.js").SessionCreated | null} */
  info = null;
  /** @type {Player | null} */
  player = null;
  /** Active responses, and some ended ones. @type {Map<string, SpokenResponse>} */
  responses = new Map();
  #numbers = new Map();
  /** Their own settings. @type {WeakMap<SpokenResponse, Settings>} */
  #settings = new WeakMap();
  #count = 0;
  #prefix = Math.random().toString(36).slice(2, 8);
  /** @type {Promise<Player> | undefined} */
  #opening;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #reports;
  /** Id and newest token of the session. @type {{session_id: string, token: string} | null} */
  #resumable = null;
  /** The new session that `session.resume` was sent in. @type {import("./protocol/events.js").SessionCreated | null} */
  #resuming = null;
  /** Fails the responses at the end of the grace. @type {ReturnType<typeof setTimeout> | undefined} */
  #grace;
  /** Settles when it can be used. @type {Promise<import("./audio/decoder.js").OpusKind>} */
  decoder;

  /** @param {SessionOptions} [options] */
  constructor(options = {}) {
    super();
    this.options = options;
    this.connection = new Connection(options.url ?? location.href, options.api_key);
    this.connection.on("state", (change) => this.#stateChanged(change));
    this.connection.on("event", (event) => this.#receive(event));
    this.connection.on("audio", (message) => this.#numbers.get(message.response)?.receive(message));
    this.connection.on("wire", (message) => this.emit("wire", message));
    this.decoder = this.useDecoder(options.decoder ?? "auto");
  }

  /** Connect, and reconnect when the connection is lost. Resolves with the first session. */
  connect() {
    this.connection.open();
    this.#reports ??= setInterval(() => this.#report(), REPORT_EVERY_MS);
    return new Promise((resolve, reject) => {
      const offs = [
        this.on("ready", (info) => finish(() => resolve(info))),
        this.on("state", ({ state, reason }) => {
          if (state === "refused" || state === "closed") finish(() => reject(new Error(reason?.message ?? "closed")));
        }),
      ];
      const finish = (/** @type {() => void} */ settle) => {
        for (const off of offs) off();
        settle();
      };
    });
  }

  /** @returns {import("./connection.js").ConnectionState} */
  get state() {
    return this.connection.state;
  }

  /** Open the audio device. Call it from a click or a key press: browsers allow audio only after one. */
  async prepare() {
    const player = await (this.#opening ??= this.#openPlayer());
    await this.decoder;
    return player;
  }

  /**
   * Say something. Text may follow with `push`; `end` closes it.
   *
   * @param {SpeakOptions} [options]
   * @returns {Promise<SpokenResponse>}
   */
  async speak({ text = "", end = false, settings = {}, at_ms = performance.now() } = {}) {
    const player = await this.prepare();
    const opus = await this.decoder;
    if (this.state !== "open") throw new Error("there is no connection to the server");
    player.resume().catch(() => {}); // `sound` tells
    const beginning = wellFormed(text);
    this.#count += 1;
    const id = `${this.#prefix}-${this.#count}`;
    const response = new SpokenResponse(id, (event) => this.#send(event), player.voice(), opus);
    this.responses.set(id, response);
    this.#settings.set(response, settings);
    response.begin(beginning, end, at_ms);
    this.#create(response);
    this.emit("response", response);
    return response;
  }

  /** Without a session nothing is sent; a resume sends it again. @param {ClientEvent} event */
  #send(event) {
    if (this.state === "open" && this.#resuming === null) this.connection.send(event);
  }

  /** @param {SpokenResponse} response */
  #create(response) {
    this.#send({
      type: "response.create",
      response_id: response.id,
      settings: this.#settingsOf(response),
      ...(response.text && { text: response.text }),
      ...(response.text_ended && { end: true }),
    });
  }

  /** @param {SpokenResponse} response */
  #settingsOf(response) {
    return { checkpoints: true, ...this.#settings.get(response) };
  }

  /** Stop all responses and all playback. @returns {Promise<void>} */
  async interrupt() {
    await Promise.all(this.active.map((response) => response.interrupt()));
  }

  /** Responses that are active or play. */
  get active() {
    return [...this.responses.values()].filter((response) => !response.over);
  }

  /** Set the options of later responses. @param {Settings} settings */
  update(settings) {
    this.options.settings = { ...this.options.settings, ...settings };
    this.#send({ type: "session.update", settings });
  }

  /**
   * Return the played audio of a response.
   *
   * @param {SpokenResponse} response
   * @returns {Promise<Float32Array>}
   */
  async record(response) {
    const sound = (await response.reception?.replay()) ?? new Float32Array(0);
    return sound.slice(0, Math.round(response.voice.played_samples));
  }

  /** Select the decoder of later responses. @param {"auto" | import("./audio/decoder.js").OpusKind} wanted */
  useDecoder(wanted) {
    this.decoder = chooseOpusDecoder(wanted);
    this.decoder.catch(() => {}); // reported where it is awaited
    return this.decoder;
  }

  /** Set the API key, from the next connection on. @param {string} [api_key] */
  setKey(api_key) {
    this.connection.api_key = api_key || undefined;
  }

  async close() {
    clearInterval(this.#reports);
    this.#reports = undefined;
    this.connection.close();
    await this.player?.close();
  }

  async #openPlayer() {
    try {
      this.player = await Player.open(this.options);
    } catch (error) {
      this.#opening = undefined;
      throw error;
    }
    this.player.on("state", (state) => this.emit("sound", state));
    return this.player;
  }

  /** @param {import("./connection.js").ConnectionEvents["state"]} change */
  #stateChanged(change) {
    // The server's own close ends the session. One that was never received (1006) may be resumed, and if the session's
    // gateway is lost (1012), responses go on elsewhere.
    const was_closed = /^closed_(?!1006|1012)/.test(change.reason?.code ?? "");
    const is_final = was_closed || change.state === "refused" || change.state === "closed";
    if (change.state === "open") this.#resuming = null;
    else if (is_final || this.#resumable === null) this.#failResponses();
    else if (change.state === "waiting") {
      this.#grace ??= setTimeout(() => this.#failResponses(), 1000 * (this.info?.resume_grace_s ?? 0));
    }
    this.emit("state", change);
  }

  #failResponses(isLost = (/** @type {SpokenResponse} */ _) => true) {
    this.#numbers.clear();
    this.#resumable = this.#resuming = null;
    clearTimeout(this.#grace);
    this.#grace = undefined;
    const lost = { code: "connection_lost", message: "the connection was lost", param: null };
    for (const response of this.responses.values()) {
      if (response.status !== "speaking" || !isLost(response)) continue;
      response.fail({ ...lost, retryable: true, retry_after_ms: null });
    }
  }

  /** @param {import("./protocol/events.js").ServerEvent} event */
  #receive(event) {
    if (event.type === "session.created") return this.#begin(event);
    if (event.type === "session.resumed") return this.#resumed(event);
    if (this.#resuming && event.type === "error" && event.code === "resume_refused") return this.#beginAnew();
    const response = "response_id" in event && event.response_id ? this.responses.get(event.response_id) : undefined;
    if (event.type === "response.created" && response) this.#numbers.set(event.response, response);
    if (event.type === "response.done") this.#numbers.delete(event.response);
    if (response) response.receive(event);
    else if (event.type === "error") this.emit("error", event);
    this.#evictResponses();
  }

  /** @param {import("./protocol/events.js").SessionCreated} info */
  #begin(info) {
    const speaking = [...this.responses.values()].filter((response) => response.status === "speaking");
    if (this.#resumable !== null && speaking.length > 0) {
      this.#resuming = info;
      const responses = speaking.map((response) => response.position);
      return this.connection.send({ type: "session.resume", ...this.#resumable, responses });
    }
    this.#keep(info);
  }

  /** @param {import("./protocol/events.js").SessionCreated} info of a new session */
  #keep(info) {
    const { session_id, resume_token: token } = info;
    clearTimeout(this.#grace);
    this.#grace = undefined;
    this.#resumable = info.resume_grace_s > 0 ? { session_id, token } : null;
    this.#ready(info);
  }

  /** The former session is over: its responses go on in the new one. */
  #beginAnew() {
    const info = this.#resuming;
    this.#resuming = null;
    const speaking = [...this.responses.values()].filter((response) => response.status === "speaking");
    const max_bytes = info?.limits.max_message_bytes ?? 0;
    const lost = speaking.filter((response) => !response.resync(this.#settingsOf(response), max_bytes));
    this.#failResponses((response) => lost.includes(response));
    if (info !== null) this.#keep(info);
  }

  /** @param {import("./protocol/events.js").SessionResumed} event */
  #resumed({ session_id, token, responses }) {
    const info = this.#resuming;
    this.#resuming = null;
    this.#resumable = { session_id, token };
    clearTimeout(this.#grace);
    this.#grace = undefined;
    this.#numbers.clear();
    for (const resumed of responses) {
      const response = this.responses.get(resumed.response_id);
      if (response === undefined) continue;
      if (resumed.state === "unknown") this.#create(response);
      else this.#numbers.set(resumed.response, response);
      response.resume(resumed);
    }
    if (info !== null) this.#ready({ ...info, session_id });
  }

  /** @param {import("./protocol/events.js").SessionCreated} info */
  #ready(info) {
    this.info = info;
    const { settings } = this.options;
    if (settings && Object.keys(settings).length > 0) this.connection.send({ type: "session.update", settings });
    this.emit("ready", info);
  }

  #evictResponses() {
    for (const [id, response] of this.responses) {
      if (this.responses.size <= MAX_REMEMBERED) return;
      if (response.over && response.status !== "speaking") this.responses.delete(id);
    }
  }

  #report() {
    for (const response of this.active) {
      const { played_ms } = response;
      if (response.status === "speaking" && played_ms > 0) {
        this.#send({ type: "playback.report", response_id: response.id, played_ms: Math.round(played_ms) });
      }
    }
  }
}
