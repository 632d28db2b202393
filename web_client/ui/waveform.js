/** Waveforms: of a response, with played audio and segment borders; of a recording, with its selected part. */

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
  const { peaks, played_ms } = outline;
  const { clientWidth: width, clientHeight: height } = canvas;
  const paint = clearCanvas(canvas);
  if (paint === null) return;
  const px_per_ms = width / Math.max(MIN_SPAN_MS, 10 * peaks.length);
  const colours = getComputedStyle(canvas);
  drawSeams(paint, outline.seams_ms, px_per_ms, height, colours.getPropertyValue("--seam"));
  drawBars(paint, canvas, peaks, px_per_ms, (ms) => ms < played_ms);
  const head_ms = outline.cut_ms ?? played_ms;
  if (head_ms > 0 && head_ms < 10 * peaks.length) {
    paint.fillStyle = colours.getPropertyValue(outline.cut_ms === null ? "--accent" : "--stop");
    paint.fillRect(Math.round(head_ms * px_per_ms), 0, 2, height);
  }
}

/**
 * Draw a whole recording, with a selected part of it.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} peaks one for every hundredth of a second
 * @param {number} from_ms
 * @param {number} to_ms
 */
export function drawSelection(canvas, peaks, from_ms, to_ms) {
  const paint = clearCanvas(canvas);
  if (paint === null || peaks.length === 0) return;
  const px_per_ms = canvas.clientWidth / (10 * peaks.length);
  drawBars(paint, canvas, peaks, px_per_ms, (ms) => from_ms <= ms && ms < to_ms);
  paint.fillStyle = getComputedStyle(canvas).getPropertyValue("--accent");
  for (const ms of [from_ms, to_ms]) paint.fillRect(ms * px_per_ms - 1, 0, 2, canvas.clientHeight);
}

/** Fit the canvas to its element, and clear it. @param {HTMLCanvasElement} canvas */
function clearCanvas(canvas) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== width * scale || canvas.height !== height * scale) {
    canvas.width = width * scale;
    canvas.height = height * scale;
  }
  const paint = canvas.getContext("2d");
  if (paint === null || width === 0) return null;
  paint.setTransform(scale, 0, 0, scale, 0, 0);
  paint.clearRect(0, 0, width, height);
  return paint;
}

/**
 * @param {CanvasRenderingContext2D} paint
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} peaks
 * @param {number} px_per_ms
 * @param {(ms: number) => boolean} isActive whether the bar at this time is played, or selected
 */
function drawBars(paint, canvas, peaks, px_per_ms, isActive) {
  const { clientWidth: width, clientHeight: height } = canvas;
  const colours = getComputedStyle(canvas);
  const [active, rest] = [colours.getPropertyValue("--accent"), colours.getPropertyValue("--unheard")];
  const end_px = Math.min(width, 10 * peaks.length * px_per_ms);
  for (let x = 0; x < end_px; x += BAR_PX + GAP_PX) {
    const from = Math.floor(x / px_per_ms / 10);
    const to = Math.max(from + 1, Math.ceil((x + BAR_PX + GAP_PX) / px_per_ms / 10));
    const peak = Math.max(0, ...peaks.slice(from, to));
    const tall = Math.max(2, Math.min(1, (1.5 * peak) ** 0.8) * (height - 4));
    paint.fillStyle = isActive(x / px_per_ms) ? active : rest;
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
