/**
 * `voicewire.v1`: events as JSON text, audio as binary messages with a fixed header. Each function takes or gives one
 * whole message.
 */

import { LocalProtocolError, RemoteProtocolError } from "./errors.js";
import { AudioKind, CLIENT_EVENTS, SERVER_EVENTS } from "./events.js";
import { struct } from "./schema.js";

export const SUBPROTOCOL = "voicewire.v1";
export const PATH = "/v1/speech";
/** Browsers cannot set headers on a WebSocket, so the key is sent as a further subprotocol. */
export const KEY_SUBPROTOCOL = "voicewire.key.";
export const AUDIO_VERSION = 1;
export const HEADER_BYTES = 16;
export const PACKET_LENGTH_BYTES = 2;

const KINDS = new Set(Object.values(AudioKind));
const MAX_UINT16 = 0xffff;
const MAX_UINT32 = 0xffffffff;

const clientChecks = checksOf(CLIENT_EVENTS, true);
const serverChecks = checksOf(SERVER_EVENTS, false);

/** @param {Record<string, import("./schema.js").Fields>} events @param {boolean} strict */
function checksOf(events, strict) {
  return new Map(
    Object.entries(events).map(([type, fields]) => {
      const tag = { check: () => type, required: true };
      return [type, struct({ type: tag, ...fields }, { strict })];
    }),
  );
}

/**
 * Read one text message of a client. Throws `RemoteProtocolError`.
 *
 * @param {string} data
 * @returns {import("./events.js").ClientEvent}
 */
export function parseClient(data) {
  return /** @type {import("./events.js").ClientEvent} */ (parse(clientChecks, data));
}

/**
 * Read one text message of a server. Throws `RemoteProtocolError`; the code of an event that this file does not know is
 * `unknown_event`, and clients pass over it.
 *
 * @param {string} data
 * @returns {import("./events.js").ServerEvent}
 */
export function parseServer(data) {
  return /** @type {import("./events.js").ServerEvent} */ (parse(serverChecks, data));
}

/**
 * The text message for an event of either side.
 *
 * @param {import("./events.js").ClientEvent | import("./events.js").ServerEvent} event
 * @returns {string}
 */
export function serialize(event) {
  return JSON.stringify(event);
}

/** @param {Map<string, import("./schema.js").Check>} checks @param {string} data */
function parse(checks, data) {
  const value = parseJson(data);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new RemoteProtocolError("invalid_event", "an event is a JSON object");
  }
  const check = checks.get(value.type);
  if (check === undefined) {
    throw new RemoteProtocolError("unknown_event", `unknown event ${String(value.type).slice(0, 64)}`, "type");
  }
  return check(value, "");
}

/** @param {string} data @returns {any} */
function parseJson(data) {
  try {
    return JSON.parse(data, (_, value) => {
      if (typeof value === "string" && value.isWellFormed?.() === false) throw new SyntaxError("half a surrogate pair");
      return value;
    });
  } catch (error) {
    throw new RemoteProtocolError("malformed_json", `not a JSON message: ${/** @type {Error} */ (error).message}`);
  }
}

/**
 * Read one binary message. The packets are views of it. Throws `RemoteProtocolError`, also on bytes left over.
 *
 * @param {ArrayBuffer | Uint8Array} data
 * @returns {import("./events.js").AudioMessage}
 */
export function parseAudio(data) {
  const bytes = data instanceof Uint8Array ? data : new Uint8Array(data);
  if (bytes.length < HEADER_BYTES) {
    throw badAudio(`an audio message has a header of ${HEADER_BYTES} bytes, got ${bytes.length}`);
  }
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const [version, kind] = bytes;
  if (version !== AUDIO_VERSION) throw badAudio(`audio version ${version}, expected ${AUDIO_VERSION}`, "version");
  if (!KINDS.has(/** @type {any} */ (kind))) throw badAudio(`audio kind ${kind} is unknown`, "kind");
  return {
    kind,
    response: view.getUint32(4),
    sequence: view.getUint32(8),
    sample_time: view.getUint32(12),
    packets: parsePackets(bytes, view, view.getUint16(2)),
  };
}

/** @param {Uint8Array} bytes @param {DataView} view @param {number} numPackets */
function parsePackets(bytes, view, numPackets) {
  /** @type {Uint8Array[]} */
  const packets = [];
  let at = HEADER_BYTES;
  for (let number = 0; number < numPackets; number += 1) {
    const start = at + PACKET_LENGTH_BYTES;
    if (start > bytes.length) throw badAudio("an audio message ends before its last packet");
    at = start + view.getUint16(at);
    packets.push(bytes.subarray(start, at));
  }
  if (at !== bytes.length || packets.length === 0) {
    throw badAudio(`${numPackets} packets take ${at} bytes, the audio message has ${bytes.length}`);
  }
  return packets;
}

/**
 * The binary message. Throws `LocalProtocolError` when a number does not fit its field.
 *
 * @param {import("./events.js").AudioMessage} message
 * @returns {Uint8Array}
 */
export function serializeAudio(message) {
  const { kind, response, sequence, sample_time, packets } = message;
  if (packets.length === 0) throw new LocalProtocolError("an audio message holds at least one packet");
  const lengths = packets.map((packet) => packet.length);
  const fits16 = [packets.length, ...lengths].every((value) => value <= MAX_UINT16);
  const fits32 = [response, sequence, sample_time].every((value) => value >= 0 && value <= MAX_UINT32);
  if (!fits16 || !fits32) throw new LocalProtocolError("an audio message does not fit its header");
  const numBytes = lengths.reduce((sum, length) => sum + PACKET_LENGTH_BYTES + length, HEADER_BYTES);
  const bytes = new Uint8Array(numBytes);
  const view = new DataView(bytes.buffer);
  bytes.set([AUDIO_VERSION, kind]);
  view.setUint16(2, packets.length);
  [response, sequence, sample_time].forEach((value, index) => view.setUint32(4 + 4 * index, value));
  let at = HEADER_BYTES;
  for (const packet of packets) {
    view.setUint16(at, packet.length);
    bytes.set(packet, at + PACKET_LENGTH_BYTES);
    at += PACKET_LENGTH_BYTES + packet.length;
  }
  return bytes;
}

/** @param {string} message @param {string | null} [param] */
function badAudio(message, param = null) {
  return new RemoteProtocolError("malformed_audio", message, param);
}
