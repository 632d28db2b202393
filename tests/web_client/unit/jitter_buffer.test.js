import assert from "node:assert/strict";
import test from "node:test";

import { JitterBuffer, decreasePrebuffer, increasePrebuffer } from "../../../web_client/audio/jitter_buffer.js";
import { pieces, random, tone } from "./cuts.js";

const QUANTUM = 128;
const SETTINGS = {
  prebuffer_samples: 480,
  step_samples: 200,
  max_prebuffer_samples: 1000,
  calm_samples: 4000,
  fade_samples: 240,
};

/** Render until it is over or `limit` frames have gone by; `feed(frame)` is called before each quantum. */
function play(buffer, feed = () => {}, { limit = 100_000, quantum = () => QUANTUM } = {}) {
  const samples = [];
  const events = [];
  for (let frame = 0; frame < limit && buffer.state !== "over";) {
    feed(frame);
    const output = new Float32Array(quantum());
    events.push(...buffer.render(output, frame));
    samples.push(...output);
    frame += output.length;
  }
  return { samples: Float32Array.from(samples), events };
}

const kinds = ({ events }) => events.map(({ kind }) => kind);
const steepest = (samples) =>
  samples.reduce((most, sample, n) => Math.max(most, Math.abs(sample - (samples[n - 1] ?? sample))), 0);

test("however it is cut, all that is pushed is played once, in order, and nothing else", () => {
  for (let seed = 0; seed < 60; seed += 1) {
    const next = random(seed);
    const pcm = tone(Math.floor(next() * 5_000));
    const buffer = new JitterBuffer(SETTINGS);
    for (const piece of pieces(pcm, next, 700)) buffer.push(piece);
    buffer.end(pcm.length);
    const { samples, events } = play(buffer, undefined, { quantum: () => 1 + Math.floor(next() * 300) });
    assert.deepEqual(samples.slice(0, pcm.length), pcm);
    assert.ok(samples.slice(pcm.length).every((sample) => sample === 0));
    assert.equal(events.at(-1).kind, "drained");
    assert.equal(events.at(-1).frame, pcm.length);
    assert.equal(buffer.position, pcm.length);
  }
});

test("no sample is lost or said twice when it comes late, and each gap is told", () => {
  for (let seed = 0; seed < 60; seed += 1) {
    const next = random(seed);
    const pcm = Float32Array.from({ length: 6_000 }, () => 0.2 + 0.6 * next());
    const parts = [...pieces(pcm, next, 900)];
    const buffer = new JitterBuffer({ ...SETTINGS, fade_samples: 1 });
    let due = 0;
    const { samples, events } = play(buffer, (frame) => {
      if (frame < due || parts.length === 0) return;
      buffer.push(parts.shift());
      due = frame + next() * 1_500;
      if (parts.length === 0) buffer.end(pcm.length);
    });
    const sounded = samples.filter((sample) => sample !== 0);
    const gaps = events.filter(({ kind }) => kind === "underrun").length;
    assert.equal(buffer.position, pcm.length);
    assert.ok(
      sounded.length <= pcm.length && sounded.length >= pcm.length - 2 * (gaps + 1),
      `${sounded.length} of ${pcm.length}, ${gaps} gaps`,
    );
    const starts = events.filter(({ kind }) => kind === "started").length;
    assert.ok(starts === gaps + 1 || starts === gaps, `${starts} starts, ${gaps} gaps`);
  }
});

test("it starts with the prebuffer in hand, and not before", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.push(tone(300));
  assert.deepEqual(kinds(play(buffer, undefined, { limit: 256 })), []);
  buffer.push(tone(300));
  assert.deepEqual(kinds(play(buffer, undefined, { limit: 128 })), ["started"]);
});

test("it starts at once when all has come", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.push(tone(50));
  buffer.end(50);
  assert.deepEqual(kinds(play(buffer)), ["started", "drained"]);
});

test("no sample waits longer than the prebuffer", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.push(tone(400));
  const { events } = play(buffer, undefined, { limit: 2_000 });
  assert.equal(events[0].kind, "started");
  assert.ok(events[0].frame >= 480 && events[0].frame < 480 + 2 * QUANTUM);
});

test("nothing to say is over at once", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.end(0);
  assert.deepEqual(kinds(play(buffer)), ["drained"]);
});

test("what lies beyond the end is not played", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.push(tone(1_000));
  buffer.end(900);
  play(buffer);
  assert.equal(buffer.position, 900);
});

test("the fades of a gap make no click; a cut without them would", () => {
  const render = (fade_samples) => {
    const buffer = new JitterBuffer({ ...SETTINGS, fade_samples });
    buffer.push(tone(2_025));
    return play(buffer, (frame) => frame === 4_096 && buffer.push(tone(2_000, 90)), { limit: 8_192 });
  };
  const faded = render(240);
  assert.deepEqual(kinds(faded), ["started", "underrun", "started", "underrun"]);
  assert.ok(steepest(faded.samples) < 0.04, `${steepest(faded.samples)}`);
  assert.ok(steepest(render(1).samples) > 0.4);
});

test("an underrun plays all it has, then waits for a little more than before", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.push(tone(1_000));
  const { events } = play(buffer, undefined, { limit: 2_048 });
  assert.deepEqual(events[1], { kind: "underrun", frame: events[0].frame + 1_000, position: 1_000 });
  assert.equal(buffer.prebuffer, 680);
});

test("calm takes the longer wait back", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.push(tone(1_000));
  play(buffer, undefined, { limit: 2_048 });
  buffer.push(tone(10_000));
  play(buffer, undefined, { limit: 6_000 });
  assert.equal(buffer.prebuffer, 480);
});

test("a stop fades out from wherever it is, within the fade, and nothing follows", () => {
  for (let seed = 0; seed < 60; seed += 1) {
    const next = random(seed);
    const buffer = new JitterBuffer(SETTINGS);
    const at = Math.floor(next() * 3_000);
    buffer.push(tone(1_000 + Math.floor(next() * 3_000)));
    let frame_of_stop = -1;
    const { samples, events } = play(buffer, (frame) => {
      if (frame_of_stop >= 0 || frame < at) return;
      buffer.stop();
      frame_of_stop = frame;
    });
    assert.equal(events.at(-1).kind, "stopped");
    const rest = samples.slice(frame_of_stop);
    assert.ok(rest.slice(240).every((sample) => sample === 0));
    assert.ok(steepest(samples) < 0.04, `${steepest(samples)} at ${frame_of_stop}`);
    buffer.push(tone(500));
    assert.equal(buffer.buffered, buffer.pushed - buffer.position);
    assert.equal(buffer.state, "over");
  }
});

test("a stop before anything sounded is told as well", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.push(tone(100));
  buffer.stop();
  assert.deepEqual(play(buffer).events, [{ kind: "stopped", frame: 0, position: 0 }]);
});

test("the end that comes during the last fade is no gap", () => {
  const buffer = new JitterBuffer(SETTINGS);
  buffer.push(tone(1_000));
  const told = [];
  for (let frame = 0; buffer.state !== "over" && frame < 4_000; frame += QUANTUM) {
    if (buffer.state === "dry") buffer.end(1_000);
    told.push(...buffer.render(new Float32Array(QUANTUM), frame).map(({ kind }) => kind));
  }
  assert.deepEqual(told, ["started", "drained"]);
});

test("the next reply takes more in hand after one that ran dry, and less again later", () => {
  let settings = SETTINGS;
  const seen = [increasePrebuffer, increasePrebuffer, increasePrebuffer, increasePrebuffer, decreasePrebuffer, decreasePrebuffer, decreasePrebuffer, decreasePrebuffer].map((change) => {
    settings = change(settings, SETTINGS);
    return settings.prebuffer_samples;
  });
  assert.deepEqual(seen, [680, 880, 1_000, 1_000, 800, 600, 480, 480]);
});
