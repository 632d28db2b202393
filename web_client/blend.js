/** Blends of two speaker embeddings, as `voicewire voices blend` makes them. */

/**
 * Return the embedding `weight` of the way from the first to the second, scaled to the length between theirs.
 *
 * @param {number[]} first
 * @param {number[]} second as many numbers
 * @param {number} weight 0 to 1
 */
export function blendEmbeddings(first, second, weight) {
  if (first.length !== second.length) {
    throw new Error(`embeddings of ${first.length} and ${second.length} numbers belong to two models`);
  }
  const mixed = first.map((number, index) => (1 - weight) * number + weight * second[index]);
  const length = (1 - weight) * lengthOf(first) + weight * lengthOf(second);
  const scale = length / Math.max(lengthOf(mixed), 1e-12);
  return mixed.map((number) => Math.fround(number * scale));
}

/** @param {number[]} numbers */
const lengthOf = (numbers) => Math.sqrt(numbers.reduce((sum, number) => sum + number ** 2, 0));
