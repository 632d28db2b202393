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


test("a server that lacks the session gets all that is known", () => {
  const { sent, response } = opened();
  response.push(`One ${EMOJI}. `);
  response.flush();
  response.push("Two. ");
  for (const [index, data] of ["a", "b", "x"].entries())
    response.receive({ type: "response.checkpoint", response_id: "r", index, data });
  response.receive({ type: "response.checkpoint", response_id: "r", index: 1, data: "c" });
  response.receive({ type: "text.flushed", response_id: "r", flush: 0, end_sample: 5 });
  sent.length = 0;
  assert.ok(response.resync({ seed: 5 }, 1000));
  const { resync, ...created } = sent.shift();
  assert.deepEqual(created, { type: "response.create", response_id: "r", settings: { seed: 5 } });
  assert.deepEqual(resync, {
    checkpoints: ["a", "c"],
    received_samples: 0,
    received_flushes: 1,
    received_words: 0,
  });
  assert.deepEqual(sent, [
    { type: "text.append", response_id: "r", text: `One ${EMOJI}. `, at: 0 },
    { type: "text.flush", response_id: "r" },
    { type: "text.append", response_id: "r", text: "Two. ", at: 7 },
  ]);
});

test("a response whose checkpoints exceed a message sends nothing", () => {
  const { sent, response } = opened();
  response.receive({ type: "response.checkpoint", response_id: "r", index: 0, data: "x".repeat(1000) });
  sent.length = 0;
  assert.ok(!response.resync({}, 1000));
  assert.deepEqual(sent, []);
  assert.ok(response.resync({}, 1200));
  assert.equal(sent.length, 1);
});
