import assert from "node:assert/strict";
import test from "node:test";

import { UnderrunTracker } from "../../../web_client/underruns.js";

/** A reply whose sound runs dry at 2,000 ms; what happened is told in order: text at a time, or audio at a time. */
function gap(...happened) {
  const underruns = new UnderrunTracker();
  let position = 0;
  for (const [what, at_ms] of happened) {
    if (what === "text") underruns.sent();
    else if (what === "audio") underruns.received((position += 1_000), at_ms);
    else underruns.onUnderrun(position === 2_000 ? 1_000 : position, at_ms);
  }
  return underruns.resumed();
}

for (const [what, cause, ...happened] of [
  [
    "audio came again after text had",
    "text",
    ["text", 0],
    ["audio", 900],
    ["dry", 2_000],
    ["text", 2_300],
    ["audio", 2_400],
  ],
  [
    "text had come while there was sound",
    "text",
    ["text", 0],
    ["audio", 900],
    ["text", 1_500],
    ["dry", 2_000],
    ["audio", 2_100],
  ],
  ["all text was there before", "server", ["text", 0], ["text", 100], ["audio", 900], ["dry", 2_000], ["audio", 2_400]],
  ["the audio was there", "page", ["text", 0], ["audio", 900], ["audio", 1_990], ["dry", 2_000]],
]) {
  test(what, () => assert.equal(gap(...happened), cause));
}

test("sound that never comes back was the end", () => {
  const underruns = new UnderrunTracker();
  underruns.onUnderrun(1_000, 2_000);
  assert.deepEqual(underruns.counts, { text: 0, server: 0, page: 0 });
  assert.equal(new UnderrunTracker().resumed(), null);
});

test("what was played is forgotten", () => {
  const underruns = new UnderrunTracker();
  for (let n = 1; n <= 100; n += 1) {
    underruns.received(n * 1_000, n * 1_000);
    underruns.onUnderrun(n * 1_000 - 500, n * 1_000 - 100);
    underruns.resumed();
  }
  assert.ok(underruns.arrivals.length < 3);
  assert.equal(underruns.counts.server, 100);
});
