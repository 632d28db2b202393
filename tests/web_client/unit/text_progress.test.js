/** What of an answer's text has been played. */

import assert from "node:assert/strict";
import test from "node:test";

import { TextProgress } from "../../../web_client/agent/text_progress.js";

test("words are heard with the audio before them, to the end of a word", () => {
  const progress = new TextProgress();
  progress.add("One two three.", 1_400);
  progress.add(" Four.", 2_000);
  const heard = (played) => progress.text.slice(0, progress.numHeard(played));
  assert.equal(heard(0), "");
  assert.equal(heard(100), "One");
  assert.equal(heard(500), "One two");
  assert.equal(heard(1_400), "One two three.");
  assert.equal(heard(2_000), "One two three. Four.");
});

test("it never goes back, and ends with all words that have come", () => {
  const progress = new TextProgress();
  assert.equal(progress.numHeard(500), 0);
  for (const [words, position] of [["你好你好", 400], [" a b", 400], [" long words here", 900]]) progress.add(words, position);
  let before = 0;
  for (let played = 0; played <= 1_000; played += 10) {
    assert.ok(progress.numHeard(played) >= before, `${played}`);
    before = progress.numHeard(played);
  }
  assert.equal(before, progress.text.length);
});
