// The vendors' own JavaScript packages speak through this server: `node vendor_client.mjs SERVICE HTTP_URL MODE` prints
// what came as JSON. NODE_EXTRA_CA_CERTS names the certificate where a package insists on TLS.
import { createRequire } from "node:module";
import { KEY, LONG, TURNS, TURN_TIMEOUT_MS, deltas, isEnough, keepCut, played } from "./turns.mjs";

const RATE = 24_000;

async function elevenlabs(url, mode) {
  const { ElevenLabsClient } = await import("@elevenlabs/elevenlabs-js");
  const client = new ElevenLabsClient({ apiKey: KEY, baseUrl: url });
  const turns = [];
  for (const text of TURNS) {
    const pcm = [];
    const words = [];
    if (mode === "timestamps") {
      let word = "";
      let start = null;
      for await (const chunk of await client.textToSpeech.streamWithTimestamps("zoe", { text, outputFormat: "pcm_24000" })) {
        pcm.push(Buffer.from(chunk.audioBase64, "base64"));
        (chunk.alignment?.characters ?? []).forEach((character, at) => {
          if (character === " ") {
            words.push([word, start]);
            word = "";
            start = null;
          } else {
            word += character;
            start ??= chunk.alignment.characterStartTimesSeconds[at];
          }
        });
      }
    } else {
      for await (const chunk of await client.textToSpeech.stream("zoe", { text, outputFormat: "pcm_24000" }))
        pcm.push(Buffer.from(chunk));
    }
    turns.push(played(text, pcm, RATE, words));
  }
  return turns;
}

async function cartesia(url, mode) {
  const { default: Cartesia } = createRequire(import.meta.url)("@cartesia/cartesia-js"); // as a module it misses ws
  const client = new Cartesia({ apiKey: KEY, baseURL: url });
  const common = {
    model_id: "sonic-3",
    voice: { mode: "id", id: "zoe" },
    output_format: { container: "raw", encoding: "pcm_s16le", sample_rate: RATE },
  };
  if (mode === "bytes") {
    const turns = [];
    for (const text of TURNS) {
      const answer = await client.tts.generate({ transcript: text, ...common });
      turns.push(played(text, [await answer.arrayBuffer()], RATE));
    }
    return turns;
  }
  const socket = await client.tts.websocket();
  if (mode === "cancel") {
    const context = socket.context(common);
    await context.push({ transcript: LONG });
    await context.no_more_inputs();
    const pcm = [];
    for await (const event of context.receive()) {
      if (event.type === "chunk") pcm.push(Buffer.from(event.data, "base64"));
      if (isEnough(pcm, RATE)) break;
    }
    keepCut(pcm, RATE);
    await context.cancel();
  }
  const turns = [];
  for (const text of TURNS) {
    const context = socket.context({ ...common, add_timestamps: true });
    for (const transcript of deltas(text)) await context.push({ transcript });
    await context.no_more_inputs();
    const pcm = [];
    const words = [];
    for await (const event of context.receive()) {
      if (event.type === "chunk") pcm.push(Buffer.from(event.data, "base64"));
      if (event.type === "timestamps")
        event.word_timestamps.words.forEach((word, at) => words.push([word, event.word_timestamps.start[at]]));
      if (event.type === "error") throw new Error(JSON.stringify(event));
    }
    turns.push(played(text, pcm, RATE, words));
  }
  socket.close();
  return turns;
}

async function deepgram(url, mode) {
  const { DeepgramClient } = await import("@deepgram/sdk");
  const socketUrl = url.replace("http", "ws");
  const environment = { base: url, production: socketUrl, agent: socketUrl, agentRest: url };
  const client = new DeepgramClient({ apiKey: KEY, environment });
  const isFlux = mode.startsWith("v2");
  const model = isFlux ? "flux-heather-en" : "aura-2-asteria-en";
  const socket = await (isFlux ? client.speak.v2 : client.speak.v1).connect({ model, encoding: "linear16", sample_rate: RATE });
  const line = { pcm: [], kinds: [], ring: () => {} };
  socket.on("message", async (data) => {
    if (data instanceof Blob) line.pcm.push(Buffer.from(await data.arrayBuffer()));
    else if (data instanceof ArrayBuffer || ArrayBuffer.isView(data)) line.pcm.push(Buffer.from(data));
    else line.kinds.push(data.type);
    line.ring();
  });
  const until = (condition) =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`waited in vain: ${line.kinds}`)), TURN_TIMEOUT_MS);
      line.ring = () => {
        if (!condition()) return;
        clearTimeout(timer);
        resolve();
      };
      line.ring();
    });
  const say = (text) => (isFlux ? socket.sendSpeak({ type: "Speak", text }) : socket.sendText({ type: "Speak", text }));
  socket.connect();
  await socket.waitForOpen();
  if (mode === "clear" || mode === "v2_interrupt") {
    say(LONG);
    socket.sendFlush({ type: "Flush" });
    await until(() => line.pcm.length > 5 && isEnough(line.pcm, RATE));
    if (isFlux) socket.sendInterrupt({ type: "Interrupt" });
    else socket.sendClear({ type: "Clear" });
    await until(() => line.kinds.includes(isFlux ? "SpeechInterrupted" : "Cleared"));
    keepCut(line.pcm, RATE);
  }
  const turns = [];
  for (const text of TURNS) {
    line.pcm = [];
    line.kinds = [];
    deltas(text).forEach(say);
    socket.sendFlush({ type: "Flush" });
    await until(() => line.kinds.includes(isFlux ? "SpeechMetadata" : "Flushed"));
    await new Promise((resolve) => setTimeout(resolve, 50));
    turns.push(played(text, line.pcm, RATE));
  }
  socket.sendClose({ type: "Close" });
  await new Promise((resolve) => setTimeout(resolve, 200));
  socket.close();
  return turns;
}

const [name, url, mode] = process.argv.slice(2);
const turns = await { elevenlabs, cartesia, deepgram }[name](url, mode);
console.log(JSON.stringify({ turns, errors: [] }));
process.exit(0);
