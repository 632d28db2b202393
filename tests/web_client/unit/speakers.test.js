import assert from "node:assert/strict";
import test from "node:test";

import { labelsOf } from "../../../web_client/ui/speakers_form.js";

test("labels of a dialogue are found at the beginnings of lines", () => {
  const text = "Dr. Ann Lee: One: two.\n  Bob: Three.\nBob: Four.\r\n小明：五\nIt was late, and she said: no.";
  assert.deepEqual(labelsOf(text), ["Dr. Ann Lee", "Bob", "小明"]);
});

test("what is no label is left alone", () => {
  assert.deepEqual(labelsOf("See https://example.com\nat 9:30\nOne two three four: five\n: six\nAnn:seven"), []);
  assert.equal(labelsOf(Array.from({ length: 20 }, (_, index) => `A${index}: x`).join("\n")).length, 16);
});
