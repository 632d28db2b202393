/** Cuts of an array, the same in every run. */

/** A small generator of numbers from 0 to 1 (mulberry32). */
export function random(seed) {
  return () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let mixed = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    mixed = (mixed + Math.imul(mixed ^ (mixed >>> 7), 61 | mixed)) ^ mixed;
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** Pieces of 0 to `max` items. */
export function* pieces(array, next, max) {
  for (let at = 0; at < array.length;) {
    const length = Math.floor(next() * (max + 1));
    yield array.slice(at, at + length);
    at += length;
  }
}

export function joined(parts) {
  return Float32Array.from([...parts].flatMap((part) => [...part]));
}

export const tone = (length, cycle = 100) =>
  Float32Array.from({ length }, (_, n) => 0.5 * Math.sin((2 * Math.PI * n) / cycle));
