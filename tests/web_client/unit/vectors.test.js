/** The golden vectors that every implementation of the wire agrees on. */

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import test from "node:test";

import { RemoteProtocolError } from "../../../web_client/protocol/errors.js";
import { CLIENT_EVENTS, SERVER_EVENTS } from "../../../web_client/protocol/events.js";
import {
  parseAudio,
  parseClient,
  parseServer,
  serialize,
  serializeAudio,
} from "../../../web_client/protocol/native.js";

const load = (name) => JSON.parse(readFileSync(new URL(`../../vectors/wire/${name}.json`, import.meta.url), "utf8"));
const bytes = (hex) => Uint8Array.from(Buffer.from(hex, "hex"));
/** JSON has one number, Python two. */
const withoutZeros = (wire) => wire.replaceAll(/([:,[]-?\d+)\.0(?=[,}\]])/g, "$1");

for (const [name, parse, table] of [
  ["client_events", parseClient, CLIENT_EVENTS],
  ["server_events", parseServer, SERVER_EVENTS],
]) {
  for (const { name: what, wire, event } of load(name)) {
    test(`${name}: ${what}`, () => {
      assert.deepEqual(parse(wire), event);
      assert.equal(serialize(parse(wire)), withoutZeros(wire));
    });
  }
  test(`${name}: every event has a vector`, () => {
    assert.deepEqual(new Set(load(name).map(({ event }) => event.type)), new Set(Object.keys(table)));
  });
}

for (const { name, wire_hex, message } of load("audio")) {
  test(`audio: ${name}`, () => {
    const { packets_hex, ...fields } = message;
    const found = parseAudio(bytes(wire_hex));
    assert.deepEqual(found, { ...fields, packets: packets_hex.map(bytes) });
    assert.deepEqual(serializeAudio(found), bytes(wire_hex));
  });
  test(`audio: every truncation of ${name} is refused`, () => {
    const whole = bytes(wire_hex);
    for (let length = 0; length < whole.length; length += 1) {
      assert.throws(() => parseAudio(whole.subarray(0, length)), RemoteProtocolError);
    }
  });
}

const refused = load("refused");
for (const { name, wire, code, param } of refused.client_events) {
  test(`refused: ${name}`, () => assert.throws(() => parseClient(wire), { code, param }));
}
for (const { name, wire_hex, code, param } of refused.audio) {
  test(`refused audio: ${name}`, () => assert.throws(() => parseAudio(bytes(wire_hex)), { code, param }));
}

test("what a server says of tomorrow is passed over", () => {
  const event = parseServer('{"type":"text.flushed","response_id":"r","flush":0,"end_sample":1,"mood":"calm"}');
  assert.deepEqual(event, { type: "text.flushed", response_id: "r", flush: 0, end_sample: 1 });
  assert.throws(() => parseServer('{"type":"mood.changed"}'), { code: "unknown_event" });
});
