/**
 * LiveKit Agents for JavaScript speaks through this server: `node livekit_client.mjs SERVICE HTTP_URL MODE` prints JSON.
 * Modes as in livekit_client.py. NODE_EXTRA_CA_CERTS names the certificate where the address is https.
 */
import { initializeLogger, llm, tts } from "@livekit/agents";
import * as cartesia from "@livekit/agents-plugin-cartesia";
import * as deepgram from "@livekit/agents-plugin-deepgram";
import * as elevenlabs from "@livekit/agents-plugin-elevenlabs";
import * as inworld from "@livekit/agents-plugin-inworld";
import * as openai from "@livekit/agents-plugin-openai";
import { KEY, LONG, TURNS, TURN_TIMEOUT_MS, deltas, isEnough, keepCut, played } from "./turns.mjs";

initializeLogger({ pretty: false, level: "error" });
const [name, url, mode] = process.argv.slice(2);
const socketUrl = url.replace("http", "ws");
const services = {
  elevenlabs: () => new elevenlabs.TTS({ apiKey: KEY, baseURL: `${url}/v1`, encoding: "pcm_24000" }),
  elevenlabs_defaults: () => new elevenlabs.TTS({ apiKey: KEY, baseURL: `${url}/v1` }),
  cartesia: () => new cartesia.TTS({ apiKey: KEY, baseUrl: url }),
  deepgram: () => new deepgram.TTS({ apiKey: KEY, baseUrl: url }),
  inworld: () =>
    new inworld.TTS({ apiKey: KEY, baseURL: `${url}/`, wsURL: `${socketUrl}/`, timestampType: "WORD" }),
  openai: () => new openai.TTS({ apiKey: KEY, baseURL: `${url}/v1` }),
};

/** OpenAI's realtime model: what the user writes is what it speaks. Mode `interrupt` cuts the first turn. */
async function converse() {
  const model = new openai.realtime.RealtimeModel({ apiKey: KEY, baseURL: `${url}/v1`, turnDetection: null });
  const session = model.session();
  const context = llm.ChatContext.empty();
  const ask = async (text) => {
    context.addMessage({ role: "user", content: [text] });
    await session.updateChatCtx(context);
    const reply = await session.generateReply();
    for await (const message of reply.messageStream) return message;
  };
  if (mode === "interrupt") {
    const message = await within(ask(LONG));
    await keepBeginning(framesOf(message.audioStream.getReader()));
    await session.interrupt();
    await session.truncate({ messageId: message.messageId, modalities: ["audio"], audioEndMs: 300 });
    await new Promise((resolve) => setTimeout(resolve, 300));
  }
  const turns = [];
  for (const text of TURNS) {
    const message = await within(ask(text));
    const pcm = [];
    let rate = 0;
    for await (const { data, sampleRate } of message.audioStream) {
      pcm.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
      rate = sampleRate;
    }
    turns.push(played(text, pcm, rate));
  }
  return turns;
}

const within = (work) =>
  Promise.race([
    work,
    new Promise((_, reject) => setTimeout(() => reject(new Error("waited in vain")), TURN_TIMEOUT_MS).unref()),
  ]);

async function hear(stream, text) {
  const pcm = [];
  const words = [];
  let rate = 0;
  for await (const event of stream) {
    if (event === tts.SynthesizeStream.END_OF_STREAM) break;
    const { data, sampleRate } = event.frame;
    pcm.push(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
    rate = sampleRate;
    for (const word of event.timedTranscripts ?? []) words.push([word.text, word.startTime, word.endTime]);
  }
  return played(text, pcm, rate, words);
}

async function speak(service, text) {
  const stream = service.stream();
  for (const delta of deltas(text)) stream.pushText(delta);
  stream.endInput();
  const turn = await hear(stream, text);
  stream.close();
  return turn;
}

async function drop(service) {
  const stream = service.stream();
  stream.pushText(LONG);
  stream.endInput();
  await keepBeginning(framesOf({ read: () => stream.next() }, (event) => event.frame));
  stream.close();
}

/** Leaves the reader as it is when nothing more is wanted. */
async function* framesOf(reader, frameOf = (value) => value) {
  for (let told = await reader.read(); !told.done; told = await reader.read()) yield frameOf(told.value);
}

/** Enough of it to interrupt the turn. */
async function keepBeginning(frames) {
  const pcm = [];
  for await (const { data, sampleRate } of frames) {
    pcm.push(Buffer.from(data.buffer.slice(data.byteOffset, data.byteOffset + data.byteLength)));
    if (isEnough(pcm, sampleRate)) return keepCut(pcm, sampleRate);
  }
  throw new Error("it ended");
}

async function talk(service) {
  service.on("error", (event) => console.error(event.error));
  if (mode === "cancel") await within(drop(service));
  const turns = [];
  for (const text of mode === "cancel" ? TURNS.slice(1) : TURNS)
    turns.push(await within(mode === "synthesize" ? hear(service.synthesize(text), text) : speak(service, text)));
  return turns;
}

const turns = name === "realtime" ? await converse() : await talk(services[name]());
console.log(JSON.stringify({ turns, errors: [] }));
process.exit(0);
