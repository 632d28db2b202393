import assert from "node:assert/strict";
import test from "node:test";

import { WordTimes } from "../../../web_client/word_times.js";

const word = (text, raw_start, start_ms, segment = 0) => ({
  text,
  raw_start,
  raw_end: raw_start + [...text].length,
  start_ms,
  end_ms: start_ms + 100,
  segment,
});

test("text is heard up to the word that sounds", () => {
  const times = new WordTimes();
  times.add([word("One", 0, 50), word("two.", 4, 300)]);
  times.add([word("Three", 9, 800, 1)]);
  const heard = (ms) => "One two. Three".slice(0, times.heardCharCount("One two. Three", ms));
  assert.deepEqual([0, 49, 50, 299, 300, 5_000].map(heard), ["", "", "One", "One", "One two.", "One two. Three"]);
  assert.deepEqual(times.seams_ms, [800]);
});

test("characters count as the server counts them, also beyond the first plane", () => {
  const times = new WordTimes();
  const text = "\u{1f680} off we go";
  times.add([word("off", 2, 0), word("we", 6, 100)]);
  assert.equal(text.slice(0, times.heardCharCount(text, 50)), "\u{1f680} off");
  assert.equal(text.slice(0, times.heardCharCount(text, 100)), "\u{1f680} off we");
});
