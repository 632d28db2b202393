/** A response's waveform: played and remaining audio, and segment borders. */

const BAR_PX = 3;
const GAP_PX = 1;
const MIN_SPAN_MS = 4_000;

/**
 * @typedef {object} Outline
 * @property {number[]} peaks one for every hundredth of a second
 * @property {number} played_ms
 * @property {number | null} cut_ms where it was interrupted
 * @property {number[]} seams_ms where segments meet
 */

/** @param {HTMLCanvasElement} canvas @param {Outline} outline */
export function drawWaveform(canvas, outline) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== width * scale || canvas.height !== height * scale) {
    canvas.width = width * scale;
    canvas.height = height * scale;
  }
  const paint = canvas.getContext("2d");
  if (paint === null || width === 0) return;
  paint.setTransform(scale, 0, 0, scale, 0, 0);
  paint.clearRect(0, 0, width, height);
  const px_per_ms = width / Math.max(MIN_SPAN_MS, 10 * outline.peaks.length);
  const colours = getComputedStyle(canvas);
  drawSeams(paint, outline.seams_ms, px_per_ms, height, colours.getPropertyValue("--seam"));
  drawBars(paint, outline, px_per_ms, width, height, colours);
  const head_ms = outline.cut_ms ?? outline.played_ms;
  if (head_ms > 0 && head_ms < 10 * outline.peaks.length) {
    paint.fillStyle = colours.getPropertyValue(outline.cut_ms === null ? "--accent" : "--stop");
    paint.fillRect(Math.round(head_ms * px_per_ms), 0, 2, height);
  }
}

/**
 * @param {CanvasRenderingContext2D} paint
 * @param {Outline} outline
 * @param {number} px_per_ms
 * @param {number} width
 * @param {number} height
 * @param {CSSStyleDeclaration} colours
 */
function drawBars(paint, { peaks, played_ms }, px_per_ms, width, height, colours) {
  const [heard, rest] = [colours.getPropertyValue("--accent"), colours.getPropertyValue("--unheard")];
  const end_px = Math.min(width, 10 * peaks.length * px_per_ms);
  for (let x = 0; x < end_px; x += BAR_PX + GAP_PX) {
    const from = Math.floor(x / px_per_ms / 10);
    const to = Math.max(from + 1, Math.ceil((x + BAR_PX + GAP_PX) / px_per_ms / 10));
    const peak = Math.max(0, ...peaks.slice(from, to));
    const tall = Math.max(2, Math.min(1, (1.5 * peak) ** 0.8) * (height - 4));
    paint.fillStyle = x / px_per_ms < played_ms ? heard : rest;
    paint.fillRect(x, (height - tall) / 2, BAR_PX, tall);
  }
}

/**
 * @param {CanvasRenderingContext2D} paint
 * @param {number[]} seams_ms
 * @param {number} px_per_ms
 * @param {number} height
 * @param {string} colour
 */
function drawSeams(paint, seams_ms, px_per_ms, height, colour) {
  paint.strokeStyle = colour;
  paint.setLineDash([3, 3]);
  for (const seam_ms of seams_ms) {
    const x = Math.round(seam_ms * px_per_ms) + 0.5;
    paint.beginPath();
    paint.moveTo(x, 0);
    paint.lineTo(x, height);
    paint.stroke();
  }
  paint.setLineDash([]);
}
