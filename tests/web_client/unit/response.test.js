import assert from "node:assert/strict";
import { test } from "node:test";
import { SpokenResponse } from "../../../web_client/response.js";

const EMOJI = "\u{1F600}";

function opened() {
  const sent = [];
  const voice = { on() {}, player: { context: { sampleRate: 48_000 } } };
  return { sent, response: new SpokenResponse("r", (event) => sent.push(event), voice, "wasm") };
}

test("text cut within a character goes out whole", () => {
  const text = `Hi ${EMOJI}, you ${EMOJI}${EMOJI}.`;
  const { sent, response } = opened();
  for (let at = 0; at < text.length; at += 1) response.push(text[at]);
  response.end();
  const pieces = sent.filter(({ type }) => type === "text.append").map((event) => event.text);
  assert.equal(pieces.join(""), text);
  assert.ok(pieces.every((piece) => piece.length > 0 && !/\p{Surrogate}/u.test(piece)));
  assert.equal(response.text, text);
});

test("half a character that stays alone is replaced", () => {
  const { sent, response } = opened();
  response.push("a\uDE00b\uD83D");
  response.flush();
  response.push("\uD83D");
  response.end();
  const pieces = sent.filter(({ type }) => type === "text.append").map((event) => event.text);
  assert.deepEqual(pieces, ["a\uFFFDb", "\uFFFD", "\uFFFD"]);
  assert.deepEqual(sent.map(({ type }) => type), ["text.append", "text.append", "text.flush", "text.append", "text.end"]);
});
