/** Sums, samples and files. */

import assert from "node:assert/strict";
import test from "node:test";

import { Mixer, softClip } from "../../../web_client/audio/mixer.js";
import { jitterSettings } from "../../../web_client/audio/jitter_buffer.js";
import { READERS } from "../../../web_client/audio/pcm.js";
import { Peaks } from "../../../web_client/audio/peaks.js";
import { Resampler } from "../../../web_client/audio/resampler.js";
import { PlayoutTimeline } from "../../../web_client/audio/timeline.js";
import { wavFile } from "../../../web_client/audio/wav.js";
import { joined, pieces, random, tone } from "./cuts.js";

const SETTINGS = jitterSettings(48_000);

test("voices add up, and one alone stays as it is", () => {
  const mixer = new Mixer();
  const output = new Float32Array(128);
  const pcm = tone(128);
  for (const voice of [1, 2]) {
    mixer.handleCommand({ type: "open", voice, settings: SETTINGS });
    mixer.handleCommand({ type: "push", voice, pcm: pcm.slice() });
    if (voice === 1) mixer.handleCommand({ type: "end", voice, total: 128 });
  }
  const happened = mixer.render(output, 0);
  assert.deepEqual(output, pcm);
  assert.deepEqual(
    happened.map(({ voice, kind }) => [voice, kind]),
    [
      [1, "started"],
      [1, "drained"],
    ],
  );
  mixer.handleCommand({ type: "end", voice: 2, total: 128 });
  mixer.handleCommand({ type: "open", voice: 3, settings: SETTINGS });
  mixer.handleCommand({ type: "push", voice: 3, pcm: pcm.slice() });
  mixer.handleCommand({ type: "end", voice: 3, total: 128 });
  mixer.render(output, 128);
  assert.deepEqual(
    output,
    pcm.map((sample) => softClip(2 * sample)),
  );
  assert.equal(mixer.voices.size, 0);
});

test("frames that the device leaves out are told of the voices that sound", () => {
  const mixer = new Mixer();
  for (const voice of [1, 2]) mixer.handleCommand({ type: "open", voice, settings: SETTINGS });
  mixer.handleCommand({ type: "push", voice: 1, pcm: tone(20_000) });
  const happened = [0, 128, 1_024, 1_152].flatMap((frame) => mixer.render(new Float32Array(128), frame));
  assert.deepEqual(happened, [
    { kind: "started", frame: 0, position: 0, voice: 1 },
    { kind: "skipped", frame: 1_024, position: 256, voice: 1 },
  ]);
  const timeline = new PlayoutTimeline();
  for (const event of happened) timeline.record(event);
  assert.deepEqual(
    [100, 256, 1_000, 1_024, 1_100].map((frame) => timeline.positionAt(frame)),
    [100, 256, 256, 256, 332],
  );
});

test("commands for a voice that is not there are passed over", () => {
  const mixer = new Mixer();
  for (const type of ["push", "end", "stop"]) mixer.handleCommand({ type, voice: 9, pcm: tone(5), total: 1 });
  assert.deepEqual(mixer.render(new Float32Array(128), 0), []);
});

test("loud sums are bent: never over one, in order, and smooth at the knee", () => {
  const inputs = Array.from({ length: 2_000 }, (_, n) => (n - 1_000) / 125);
  const outputs = inputs.map(softClip);
  assert.ok(outputs.every((value, n) => Math.abs(value) <= 1 && (n === 0 || value >= outputs[n - 1])));
  assert.ok(Math.abs(softClip(0.8501) - 0.8501) < 1e-6);
});

for (const [from, to] of [
  [8_000, 48_000],
  [16_000, 48_000],
  [22_050, 48_000],
  [24_000, 48_000],
  [44_100, 48_000],
  [48_000, 48_000],
  [48_000, 24_000],
  [44_100, 24_000],
  [16_000, 24_000],
]) {
  test(`${from} to ${to}: any cut gives the same, of the right length`, () => {
    const next = random(from);
    const pcm = Float32Array.from({ length: 1_500 }, () => next() - 0.5);
    const whole = new Resampler(from, to);
    const expected = joined([whole.push(pcm), whole.flush()]);
    assert.equal(expected.length, Math.ceil((pcm.length * to) / from));
    for (let round = 0; round < 5; round += 1) {
      const cut = new Resampler(from, to);
      const parts = [...pieces(pcm, next, 200)].map((piece) => cut.push(piece));
      assert.deepEqual(joined([...parts, cut.flush()]), expected);
    }
  });

  test(`${from} to ${to}: a constant stays one, and a tone the same tone`, () => {
    const steady = new Resampler(from, to);
    const flat = joined([steady.push(new Float32Array(800).fill(0.5)), steady.flush()]);
    assert.ok(flat.every((sample) => Math.abs(sample - 0.5) < 1e-6));
    const cycle = from / 1_000;
    const pure = new Resampler(from, to);
    const found = joined([pure.push(tone(4_000, cycle)), pure.flush()]);
    const ideal = tone(found.length, to / 1_000);
    const error = found
      .slice(200, -200)
      .reduce((most, sample, n) => Math.max(most, Math.abs(sample - ideal[n + 200])), 0);
    assert.ok(error < 1e-3, `${error}`);
  });
}

test("a tone above half the lower rate does not come through", () => {
  const down = new Resampler(48_000, 24_000);
  const found = down.push(tone(9_600, 48_000 / 14_000));
  const loudest = found.slice(100).reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
  assert.ok(loudest < 1e-3, `${loudest}`);
});

test("samples of 16 bits are read as they are", () => {
  const bytes = new Uint8Array(new Int16Array([0, 1, -1, 32_767, -32_768]).buffer);
  assert.deepEqual([...READERS.pcm_s16le(bytes)], [0, 1 / 32_768, -1 / 32_768, 32_767 / 32_768, -1]);
});

test("G.711's codes are odd, ordered, and end where the standard says", () => {
  const codes = Uint8Array.from({ length: 256 }, (_, n) => n);
  const [mulaw, alaw] = [READERS.mulaw(codes), READERS.alaw(codes)];
  const sizes = (table) =>
    [...new Set([...table].map((value) => Math.round(32_768 * Math.abs(value))))].sort((a, b) => a - b);
  assert.deepEqual([sizes(mulaw).length, sizes(mulaw)[0], sizes(mulaw).at(-1)], [128, 0, 32_124]);
  assert.deepEqual([sizes(alaw).length, sizes(alaw)[0], sizes(alaw).at(-1)], [128, 8, 32_256]);
  for (let code = 0; code < 128; code += 1) {
    assert.equal(mulaw[code], -mulaw[code + 128]);
    assert.equal(alaw[code], -alaw[code + 128]);
  }
  assert.deepEqual([...READERS.mulaw(Uint8Array.of(0x80, 0x00))], [32_124 / 32_768, -32_124 / 32_768]);
  assert.deepEqual([...READERS.alaw(Uint8Array.of(0xaa, 0x2a))], [32_256 / 32_768, -32_256 / 32_768]);
});

test("the outline does not show how the sound was cut", () => {
  const next = random(5);
  const pcm = tone(48_000, 4_321);
  const [whole, cut] = [new Peaks(48_000), new Peaks(48_000)];
  whole.push(pcm);
  for (const piece of pieces(pcm, next, 999)) cut.push(piece);
  assert.deepEqual(cut.values, whole.values);
  assert.equal(whole.values.length, 100);
});

test("a place in time is a place in the sound, also around gaps", () => {
  const timeline = new PlayoutTimeline();
  assert.equal(timeline.positionAt(1_000), 0);
  timeline.record({ kind: "started", frame: 100, position: 0 });
  timeline.record({ kind: "underrun", frame: 150, position: 50 });
  timeline.record({ kind: "started", frame: 400, position: 50 });
  assert.deepEqual(
    [0, 100, 120, 150, 300, 400, 460].map((frame) => timeline.positionAt(frame)),
    [0, 0, 20, 50, 50, 50, 110],
  );
  timeline.record({ kind: "stopped", frame: 500, position: 150 });
  assert.equal(timeline.positionAt(Infinity), 150);
});

test("a WAV file says what it holds", () => {
  const file = wavFile(Float32Array.of(0, 1, -1, 2), 48_000);
  const view = new DataView(file.buffer);
  assert.equal(String.fromCharCode(...file.slice(0, 4), ...file.slice(8, 16)), "RIFFWAVEfmt ");
  assert.deepEqual([view.getUint32(4, true), view.getUint32(24, true), view.getUint32(40, true)], [44, 48_000, 8]);
  assert.deepEqual(
    [44, 46, 48, 50].map((at) => view.getInt16(at, true)),
    [0, 32_767, -32_767, 32_767],
  );
});
