/**
 * What all clients say, and what each tells of a turn it played. `VOICEWIRE_PLAYED` names a folder for the sound:
 * `turn-1.wav`, `turn-2.wav` ... in the order they are told.
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
export const deltas = (text) => text.split(" ").map((word) => `${word} `);

let number = 0;

/** `pcm`: s16le, mono, in pieces. `words`: each begins with its text and its start in seconds. */
export function played(text, pcm, rate, words = []) {
  const joined = Buffer.concat(pcm.map((piece) => Buffer.from(piece)));
  const bytes = joined.subarray(0, joined.length & ~1);
  let peak = 0;
  for (let at = 0; at < bytes.length; at += 2) peak = Math.max(peak, Math.abs(bytes.readInt16LE(at)));
  const folder = process.env.VOICEWIRE_PLAYED;
  if (folder && rate) writeFileSync(join(folder, `turn-${++number}.wav`), Buffer.concat([header(bytes.length, rate), bytes]));
  return { text, duration_s: rate ? bytes.length / 2 / rate : 0, peak, words };
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
