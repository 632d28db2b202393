/** Simulate a language model: text in tokens, at a rate, with pauses. */

const MAX_PIECE_CHARS = 4;
const LONG_EVERY = 20;

/** @typedef {{text: string, wait_ms: number}} Token to be sent this time after the previous one */
/** @typedef {"none" | "sentences" | "long"} Pauses */

/** Split the text before each word, and long words again; joined, the parts equal the text. @param {string} text */
export function splitPieces(text) {
  const words = text.match(/\s*\S+|\s+$/gu) ?? [];
  return words.flatMap((word) => {
    const letters = [...word];
    const starts = Array.from({ length: Math.ceil(letters.length / MAX_PIECE_CHARS) }, (_, n) => n * MAX_PIECE_CHARS);
    return starts.map((at) => letters.slice(at, at + MAX_PIECE_CHARS).join(""));
  });
}

/** @param {string} text @param {number} per_second @param {Pauses} pauses @returns {Token[]} */
export function scheduleTokens(text, per_second, pauses) {
  let before = "";
  return splitPieces(text).map((piece, index) => {
    const sentence_ended = pauses === "sentences" && /[.!?…]$/u.test(before) && /^\s/u.test(piece);
    const long = pauses === "long" && index > 0 && index % LONG_EVERY === 0;
    before = piece;
    const wait_ms = index === 0 ? 0 : 1000 / per_second;
    return { text: piece, wait_ms: wait_ms + (sentence_ended ? 500 : 0) + (long ? 2_000 : 0) };
  });
}

/**
 * Push tokens into a response until all are sent or the response has ended.
 *
 * @param {import("../response.js").SpokenResponse} response
 * @param {Token[]} tokens
 */
export async function streamTokens(response, tokens) {
  let due_ms = performance.now();
  for (const { text, wait_ms } of tokens) {
    due_ms += wait_ms;
    const left_ms = due_ms - performance.now();
    if (left_ms > 0) await new Promise((resolve) => setTimeout(resolve, left_ms));
    if (response.status !== "speaking" || response.interrupted) return;
    response.push(text);
  }
  response.end();
}
