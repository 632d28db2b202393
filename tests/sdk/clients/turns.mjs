/**
 * What all clients say, and what each tells of a turn it played. `VOICEWIRE_PLAYED` names a folder for the sound:
 * each turn names its file, and `cut.wav` is what came of a turn that was interrupted.
 */
import { writeFileSync } from "node:fs";
import { join } from "node:path";

export const KEY = "a-key-of-enough-characters";
export const TURNS = [
  "Hello there, how are you today? It is nice to hear from you.",
  "This is the second turn. Goodbye for now.",
];
export const LONG = Array.from({ length: 30 }, (_, at) => `This is sentence number ${at} of a very long story.`).join(" ");
export const TURN_TIMEOUT_MS = 1000 * Number(process.env.VOICEWIRE_TURN_TIMEOUT_S ?? 30);
/** A turn is interrupted once so much of it has come, and something. */
const CUT_AFTER_S = Number(process.env.VOICEWIRE_CUT_AFTER_S ?? 0);
export const deltas = (text) => text.split(" ").map((word) => `${word} `);

let number = 0;

/** `pcm`: s16le, mono, in pieces. `words`: each begins with its text and its start in seconds. */
export function played(text, pcm, rate, words = []) {
  const bytes = samplesOf(pcm);
  let peak = 0;
  for (let at = 0; at < bytes.length; at += 2) peak = Math.max(peak, Math.abs(bytes.readInt16LE(at)));
  const sound = `turn-${++number}.wav`;
  keep(sound, bytes, rate);
  return { text, duration_s: rate ? bytes.length / 2 / rate : 0, peak, words, sound };
}

/** To interrupt the turn. `pcm` as in `played`. */
export function isEnough(pcm, rate) {
  const numBytes = pcm.reduce((sum, piece) => sum + piece.byteLength, 0);
  return numBytes > 0 && numBytes >= 2 * rate * CUT_AFTER_S;
}

/** What came of the turn that was interrupted: of `LONG`. */
export const keepCut = (pcm, rate) => keep("cut.wav", samplesOf(pcm), rate);

function samplesOf(pcm) {
  const joined = Buffer.concat(pcm.map((piece) => Buffer.from(piece)));
  return joined.subarray(0, joined.length & ~1);
}

function keep(name, bytes, rate) {
  const folder = process.env.VOICEWIRE_PLAYED;
  if (folder && rate) writeFileSync(join(folder, name), Buffer.concat([header(bytes.length, rate), bytes]));
}

function header(numBytes, rate) {
  const found = Buffer.alloc(44);
  found.write("RIFF", 0);
  found.writeUInt32LE(36 + numBytes, 4);
  found.write("WAVEfmt ", 8);
  found.writeUInt32LE(16, 16);
  found.writeUInt16LE(1, 20);
  found.writeUInt16LE(1, 22);
  found.writeUInt32LE(rate, 24);
  found.writeUInt32LE(2 * rate, 28);
  found.writeUInt16LE(2, 32);
  found.writeUInt16LE(16, 34);
  found.write("data", 36);
  found.writeUInt32LE(numBytes, 40);
  return found;
}
