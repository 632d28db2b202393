/** What the tests do in the browser: taps the sound, speaks, and tells what came of it. */

/** By then the audio device has started, and leaves no more frames out. */
const SETTLED_S = 0.4;

/** Hears all that reaches the loudspeaker of a context, by an ear in the audio thread. */
export class Tap {
  static async on(context, open) {
    await context.audioWorklet.addModule("/probe.js");
    const node = new AudioWorkletNode(context, "probe", { numberOfOutputs: 0 });
    const tap = new Tap(node);
    const connect = AudioNode.prototype.connect;
    AudioNode.prototype.connect = function (target, ...rest) {
      if (target === context.destination) connect.call(this, node);
      return connect.call(this, target, ...rest);
    };
    open?.(node);
    return tap;
  }

  constructor(node) {
    this.node = node;
    this.runs = [];
    node.port.onmessage = ({ data }) => this.runs.push(data);
  }

  /** Take note of the frame at which the audio thread is told so. */
  mark() {
    this.node.port.postMessage("mark");
  }

  /** Everything since the last time: the first frame, the one marked last, and s32 floats in base64. */
  async take() {
    const { promise, resolve } = Promise.withResolvers();
    this.node.port.onmessage = ({ data }) => {
      this.runs.push(data);
      resolve();
    };
    this.node.port.postMessage("hand");
    await promise;
    const runs = this.runs.splice(0);
    const bytes = new Uint8Array(await new Blob(runs.map(({ pcm }) => pcm)).arrayBuffer());
    return {
      frame: runs[0].frame,
      marked: runs.at(-1).marked,
      pcm: base64(bytes),
      whole: runs.every((run, n) => n === 0 || run.frame === runs[n - 1].frame + runs[n - 1].pcm.length),
    };
  }
}

export function base64(bytes) {
  let text = "";
  for (let at = 0; at < bytes.length; at += 0x8000) text += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(text);
}

const bytesOf = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));

/** Put an ear on the session's loudspeaker. */
export async function tapped(session) {
  const player = await session.prepare();
  const { node } = player.output;
  const tap = await Tap.on(player.context, (ear) => node?.connect(ear));
  while (player.context.currentTime < SETTLED_S) await new Promise((resolve) => setTimeout(resolve, 20));
  await tap.take();
  return tap;
}

/** Speak one text, hear it to its end, and tell all about it. `drop` loses every so many messages on purpose. */
export async function hear({ options = {}, text, settings = {}, drop = 0, deltas = null, gap_ms = 0 }) {
  const { VoicewireSession } = await import("/index.js");
  const session = new VoicewireSession(options);
  await session.connect();
  const tap = await tapped(session);
  const response = await session.speak(deltas ? { settings } : { text, end: true, settings });
  const events = [];
  for (const kind of ["started", "skipped", "underrun", "drained", "stopped"])
    response.voice.on(kind, (event) => events.push(event));
  let done = null;
  session.connection.on("event", (event) => (done = event.type === "response.done" ? event : done));
  if (drop > 0) {
    const receive = response.receive.bind(response);
    response.receive = (event) => ("type" in event || event.sequence % drop !== drop - 1) && receive(event);
  }
  for (const [at, delta] of (deltas ?? []).entries()) {
    response.push(delta);
    await globalThis.onDelta?.(at);
    await new Promise((resolve) => setTimeout(resolve, gap_ms));
  }
  if (deltas) response.end();
  const status = await response.finished;
  await new Promise((resolve) => setTimeout(resolve, 100));
  const { statistics, played_ms, heard } = response;
  const told = {
    status,
    events,
    done,
    statistics,
    played_ms,
    heard,
    tap: await tap.take(),
    output: session.player.output.kind,
    opus: await session.decoder,
  };
  const recorded = await session.record(response);
  await session.close();
  return { ...told, recorded: recorded.length };
}

/** Decode packets of a known sound. */
export async function decode({ vector, kind }) {
  const { openDecoder, chooseOpusDecoder } = await import("/audio/decoder.js");
  const parts = [];
  const format = { encoding: "opus", sample_rate: vector.sample_rate, pre_skip_samples: vector.pre_skip_samples };
  const chosen = await chooseOpusDecoder(kind);
  const decoder = openDecoder(format, chosen, 48_000, (pcm) => parts.push(pcm));
  for (const packet of vector.packets_base64) decoder.decode(bytesOf(packet));
  await decoder.flush();
  decoder.close();
  return { chosen, pcm: base64(new Uint8Array(await new Blob(parts).arrayBuffer())) };
}

/**
 * Play samples through scheduled buffers of an offline context. Its time stands still while the page works, which it
 * does every `step_frames` frames: it pushes the next piece, if any is left, and runs the output's timer.
 */
export async function schedule({ pcm, num_pieces, step_frames, num_steps }) {
  const { ScheduledOutput } = await import("/audio/scheduled_output.js");
  const { jitterSettings } = await import("/audio/jitter_buffer.js");
  const context = new OfflineAudioContext(1, step_frames * num_steps, 48_000);
  Object.defineProperty(context, "state", { value: "running" });
  const tick = Promise.withResolvers();
  const { setInterval } = globalThis;
  globalThis.setInterval = tick.resolve;
  const output = new ScheduledOutput(context);
  globalThis.setInterval = setInterval;
  const run = await tick.promise;
  const events = [];
  output.on("happened", (event) => events.push(event));
  output.handleCommand({ type: "open", voice: 1, settings: jitterSettings(48_000) });
  const samples = new Float32Array(bytesOf(pcm).buffer);
  const piece = Math.ceil(samples.length / num_pieces);
  for (let step = 0; step < num_steps; step += 1)
    context.suspend((step * step_frames) / 48_000).then(() => {
      const part = samples.slice(step * piece, (step + 1) * piece);
      if (part.length > 0) output.handleCommand({ type: "push", voice: 1, pcm: part });
      if (step === num_pieces) output.handleCommand({ type: "end", voice: 1, total: samples.length });
      run();
      context.resume();
    });
  const rendered = await context.startRendering();
  run();
  return { events, pcm: base64(new Uint8Array(rendered.getChannelData(0).buffer)) };
}
