/** A WebSocket that reconnects: opens, reads, and reports why it cannot connect. */

import { Emitter } from "./emitter.js";
import { FINAL } from "./protocol/close.js";
import { RemoteProtocolError } from "./protocol/errors.js";
import { KEY_SUBPROTOCOL, PATH, SUBPROTOCOL, parseAudio, parseServer, serialize } from "./protocol/native.js";

const FIRST_RETRY_MS = 250;
const MAX_RETRY_MS = 5_000;
const HANDSHAKE_TIMEOUT_MS = 10_000;

/**
 * @typedef {"connecting" | "open" | "waiting" | "refused" | "closed"} ConnectionState
 * @typedef {{code: string, message: string, retry_ms: number | null}} Reason why there is no connection
 *
 * @typedef {object} ConnectionEvents
 * @property {{state: ConnectionState, reason: Reason | null}} state
 * @property {import("./protocol/events.js").ServerEvent} event
 * @property {import("./protocol/events.js").AudioMessage} audio
 * @property {{sent: boolean, message: string | ArrayBuffer}} wire every message as sent and received
 */

/** @extends {Emitter<ConnectionEvents>} */
export class Connection extends Emitter {
  /** @type {ConnectionState} */
  state = "closed";
  /** @type {WebSocket | undefined} */
  #socket;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  #num_failures = 0;

  /** @param {string} url of the server, `http://...` or `ws://...` @param {string} [api_key] */
  constructor(url, api_key) {
    super();
    this.url = new URL(url);
    this.api_key = api_key;
  }

  open() {
    clearTimeout(this.#timer);
    this.#drop();
    this.#setState("connecting");
    let socket;
    try {
      socket = new WebSocket(this.#address("ws"), this.#subprotocols());
    } catch (error) {
      const reason = { code: "unusable_key", message: "a browser cannot send an API key with such characters" };
      this.#setState("refused", { ...reason, retry_ms: null });
      return;
    }
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    const slow = setTimeout(() => socket.close(), HANDSHAKE_TIMEOUT_MS);
    socket.onopen = () => clearTimeout(slow);
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code }) => {
      clearTimeout(slow);
      this.#onClose(code);
    };
  }

  close() {
    clearTimeout(this.#timer);
    this.#drop();
    this.#setState("closed");
  }

  /**
   * What cannot be sent any more is lost with its session.
   *
   * @param {import("./protocol/events.js").ClientEvent} event
   */
  send(event) {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    const message = serialize(event);
    this.#socket.send(message);
    this.emit("wire", { sent: true, message });
  }

  /** @param {string | ArrayBuffer} message */
  #receive(message) {
    this.emit("wire", { sent: false, message });
    try {
      if (typeof message !== "string") {
        this.emit("audio", parseAudio(message));
        return;
      }
      const event = parseServer(message);
      if (event.type === "session.created") {
        this.#num_failures = 0;
        this.#setState("open");
      }
      this.emit("event", event);
    } catch (error) {
      this.#refuse(error);
    }
  }

  /**
   * Ignore unknown events of the server; a known event that is invalid ends the connection.
   *
   * @param {unknown} error
   */
  #refuse(error) {
    if (error instanceof RemoteProtocolError && error.code === "unknown_event") return;
    const message = error instanceof Error ? error.message : String(error);
    this.#drop();
    this.#setState("refused", {
      code: "bad_server",
      message: `the server said what this page cannot read: ${message}`,
      retry_ms: null,
    });
  }

  /** @param {number} code */
  async #onClose(code) {
    const was_open = this.state === "open";
    this.#socket = undefined;
    if (was_open && !FINAL.has(/** @type {any} */ (code)))
      return this.#scheduleReconnect({ code: `closed_${code}`, message: "the connection was lost" });
    if (was_open)
      return this.#setState("refused", {
        code: `closed_${code}`,
        message: "the server ended the connection",
        retry_ms: null,
      });
    const why = await this.#diagnose();
    if (this.state !== "connecting" || this.#socket !== undefined) return;
    if (why.final) this.#setState("refused", { code: why.code, message: why.message, retry_ms: null });
    else this.#scheduleReconnect(why);
  }

  /** @param {{code: string, message: string, retry_ms?: number}} why */
  #scheduleReconnect({ code, message, retry_ms = 0 }) {
    const grown_ms = Math.min(MAX_RETRY_MS, FIRST_RETRY_MS * 2 ** this.#num_failures);
    const wait_ms = Math.max(retry_ms, grown_ms * (0.75 + 0.5 * Math.random()));
    this.#num_failures += 1;
    this.#setState("waiting", { code, message, retry_ms: Math.round(wait_ms) });
    this.#timer = setTimeout(() => this.open(), wait_ms);
  }

  /**
   * A browser does not tell why a WebSocket was refused; the server's HTTP side does.
   *
   * @returns {Promise<{code: string, message: string, final: boolean, retry_ms?: number}>}
   */
  async #diagnose() {
    try {
      const headers = this.api_key === undefined ? undefined : { Authorization: `Bearer ${this.api_key}` };
      const answer = await fetch(this.#address("http", "/v1/voices"), { headers, cache: "no-store" });
      if (answer.ok)
        return { code: "socket_refused", message: "the server answers, but its WebSocket does not", final: false };
      const { error } = await answer.json();
      const retry_ms = 1000 * Number(answer.headers.get("Retry-After") ?? 0);
      return {
        code: String(error.code),
        message: String(error.message),
        final: answer.status === 401 || answer.status === 403,
        retry_ms,
      };
    } catch {
      return { code: "unreachable", message: "no server answers at this address", final: false };
    }
  }

  /** Detach the socket, so that its later events are ignored. */
  #drop() {
    const socket = this.#socket;
    this.#socket = undefined;
    if (socket === undefined) return;
    socket.onmessage = socket.onclose = null;
    socket.close();
  }

  /** @param {ConnectionState} state @param {Reason | null} [reason] */
  #setState(state, reason = null) {
    this.state = state;
    this.emit("state", { state, reason });
  }

  /** @param {"ws" | "http"} scheme @param {string} [path] */
  #address(scheme, path = `${PATH}?resume=true`) {
    const address = new URL(path, this.url);
    address.protocol = scheme + (/^(https|wss):$/.test(this.url.protocol) ? "s:" : ":");
    return address.href;
  }

  #subprotocols() {
    return this.api_key === undefined ? [SUBPROTOCOL] : [SUBPROTOCOL, KEY_SUBPROTOCOL + this.api_key];
  }
}
