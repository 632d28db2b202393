/**
 * OpenAI's JavaScript package speaks through the realtime wire: `node realtime_client.mjs openai HTTPS_URL MODE` prints
 * JSON. Modes as in realtime_client.py. The package makes `wss` of every address; NODE_EXTRA_CA_CERTS names the
 * certificate.
 */
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";
import { KEY, LONG, TURNS, deltas, isEnough, keepCut, played } from "./turns.mjs";

const RATE = 24_000;
const [, url, mode] = process.argv.slice(2);
const client = new OpenAI({ apiKey: KEY, baseURL: `${url}/v1` });
const realtime = new OpenAIRealtimeWS({ model: "gpt-realtime" }, client);
realtime.on("error", (error) => {
  console.error(error);
  process.exit(1);
});

const next = (type, wanted = () => true) =>
  new Promise((resolve) => {
    const take = (event) => {
      if (!wanted(event)) return;
      realtime.off(type, take);
      resolve(event);
    };
    realtime.on(type, take);
  });

function say(text) {
  if (mode === "tokens") {
    for (const delta of deltas(text)) realtime.send({ type: "input_text_buffer.append", delta });
    realtime.send({ type: "input_text_buffer.commit" });
    return;
  }
  const content = [{ type: "input_text", text }];
  realtime.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
  realtime.send({ type: "response.create" });
}

/** The first turn is cancelled and truncated; what was heard is less than what was said. */
async function interrupt() {
  const added = next("response.output_item.added");
  const pcm = [];
  const take = (event) => pcm.push(Buffer.from(event.delta, "base64"));
  realtime.on("response.output_audio.delta", take);
  const sounds = next("response.output_audio.delta", () => isEnough(pcm, RATE));
  say(LONG);
  const itemId = (await added).item.id;
  await sounds;
  const done = next("response.done");
  const truncated = next("conversation.item.truncated");
  realtime.send({ type: "response.cancel" });
  realtime.send({ type: "conversation.item.truncate", item_id: itemId, content_index: 0, audio_end_ms: 400 });
  if ((await done).response.status !== "cancelled") throw new Error("it was not cancelled");
  await truncated;
  realtime.off("response.output_audio.delta", take);
  keepCut(pcm, RATE);
  const retrieved = next("conversation.item.retrieved");
  realtime.send({ type: "conversation.item.retrieve", item_id: itemId });
  const heard = (await retrieved).item.content[0].transcript;
  if (!LONG.startsWith(heard) || heard.length > LONG.length / 2) throw new Error(`heard: ${heard}`);
}

async function turn(text) {
  const pcm = [];
  const take = (event) => pcm.push(Buffer.from(event.delta, "base64"));
  realtime.on("response.output_audio.delta", take);
  const done = next("response.done");
  say(text);
  const { response } = await done;
  realtime.off("response.output_audio.delta", take);
  if (response.status !== "completed") throw new Error(JSON.stringify(response));
  return played(text, pcm, RATE);
}

await next("session.created");
if (mode === "interrupt") await interrupt();
const turns = [];
for (const text of TURNS) turns.push(await turn(text));
realtime.close();
console.log(JSON.stringify({ turns, errors: [] }));
process.exit(0);
