import assert from "node:assert/strict";
import test from "node:test";

import { Underruns } from "../../../web_client/underruns.js";

/** Sound of 1,000 samples, dry at 2,000 ms; the next audio comes at `came_ms`. */
function gap({ text_ms, ended_ms = null, came_ms }) {
  const underruns = new Underruns();
  underruns.sent(0, false);
  underruns.received(1_000, 900);
  if (came_ms <= 2_000) underruns.received(2_000, came_ms);
  if (text_ms !== undefined) underruns.sent(text_ms, false);
  if (ended_ms !== null) underruns.sent(ended_ms, true);
  underruns.ranDry(1_000, 2_000);
  if (came_ms > 2_000) underruns.received(2_000, came_ms);
  return underruns.resumed();
}

for (const [what, given, cause] of [
  ["the text came late", { text_ms: 2_300, came_ms: 2_400 }, "text"],
  ["the text had just come", { text_ms: 1_800, came_ms: 2_100 }, "text"],
  ["the text was there long before", { text_ms: 1_000, came_ms: 2_400 }, "server"],
  ["the text had ended long before", { ended_ms: 1_000, came_ms: 2_400 }, "server"],
  ["the end of the text came late", { ended_ms: 2_300, came_ms: 2_400 }, "text"],
  ["the audio was there", { text_ms: 2_300, came_ms: 1_990 }, "page"],
]) {
  test(what, () => assert.equal(gap(given), cause));
}

test("sound that never comes back was the end", () => {
  const underruns = new Underruns();
  underruns.ranDry(1_000, 2_000);
  assert.equal(underruns.total, 0);
  assert.equal(new Underruns().resumed(), null);
});

test("what was played is forgotten", () => {
  const underruns = new Underruns();
  for (let n = 1; n <= 100; n += 1) {
    underruns.received(n * 1_000, n * 1_000);
    underruns.ranDry(n * 1_000 - 500, n * 1_000 - 100);
    underruns.resumed();
  }
  assert.ok(underruns.arrivals.length < 3);
  assert.equal(underruns.counts.server, 100);
});
