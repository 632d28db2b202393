/** The WebSocket of `/v1/realtime`: JSON events of OpenAI's realtime API. */

import { Emitter } from "../emitter.js";

/** Samples a second of audio in both directions. */
export const AGENT_RATE = 24_000;
const PATH = "/v1/realtime?model=voicewire";
const SUBPROTOCOL = "realtime";
const KEY_SUBPROTOCOL = "openai-insecure-api-key.";

/** @typedef {Record<string, any> & {type: string}} RealtimeEvent */

/** @extends {Emitter<{event: RealtimeEvent, closed: string}>} `closed`: why, once */
export class RealtimeSocket extends Emitter {
  #socket;
  /** Why the server is about to close, as its last error says. */
  #reason = "";

  /** @param {{url: URL, api_key?: string}} access */
  constructor({ url, api_key }) {
    super();
    const address = new URL(PATH, url);
    address.protocol = address.protocol.replace("http", "ws");
    const key = api_key === undefined ? [] : [KEY_SUBPROTOCOL + api_key];
    this.#socket = new WebSocket(address, [SUBPROTOCOL, ...key]);
    this.#socket.onmessage = ({ data }) => this.#receive(data);
    this.#socket.onclose = ({ code, reason }) => {
      this.emit("closed", this.#reason || reason || `the connection was lost (${code})`);
    };
  }

  /** What cannot be sent any more is lost with the conversation. @param {RealtimeEvent} event */
  send(event) {
    if (this.#socket.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(event));
  }

  /** Close without the event `closed`. */
  close() {
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
  }

  /** @param {string | ArrayBuffer} data */
  #receive(data) {
    /** @type {RealtimeEvent} */
    let event;
    try {
      event = JSON.parse(String(data));
    } catch {
      return; // the server sends JSON only
    }
    this.#reason = event.type === "error" ? String(event.error?.message ?? "") : "";
    this.emit("event", event);
  }
}

/** @param {string} text @returns {Uint8Array<ArrayBuffer>} */
export const fromBase64 = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** @param {Uint8Array} bytes a few thousand at most */
export const toBase64 = (bytes) => btoa(String.fromCharCode(...bytes));
