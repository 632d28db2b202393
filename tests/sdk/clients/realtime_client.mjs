/**
 * OpenAI's JavaScript package speaks through the realtime wire: `node realtime_client.mjs openai HTTPS_URL items` prints
 * JSON. The package makes `wss` of every address; NODE_EXTRA_CA_CERTS names the certificate.
 */
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const KEY = "a-key-of-enough-characters";
const TURNS = [
  "Hello there, how are you today? It is nice to hear from you.",
  "This is the second turn. Goodbye for now.",
];
const [, url] = process.argv.slice(2);
const client = new OpenAI({ apiKey: KEY, baseURL: `${url}/v1` });
const realtime = new OpenAIRealtimeWS({ model: "gpt-realtime" }, client);
const turns = [];
let chunks = [];

function say(text) {
  chunks = [];
  const content = [{ type: "input_text", text }];
  realtime.send({ type: "conversation.item.create", item: { type: "message", role: "user", content } });
  realtime.send({ type: "response.create" });
}

realtime.on("error", (error) => {
  console.error(error);
  process.exit(1);
});
realtime.on("session.created", () => say(TURNS[0]));
realtime.on("response.output_audio.delta", (event) => chunks.push(Buffer.from(event.delta, "base64")));
realtime.on("response.done", () => {
  const pcm = Buffer.concat(chunks);
  let peak = 0;
  for (let at = 0; at < pcm.length; at += 2) peak = Math.max(peak, Math.abs(pcm.readInt16LE(at)));
  turns.push({ text: TURNS[turns.length], duration_s: pcm.length / 48000, peak, words: [] });
  if (turns.length < TURNS.length) {
    say(TURNS[turns.length]);
  } else {
    realtime.close();
    console.log(JSON.stringify({ turns, errors: [] }));
    process.exit(0);
  }
});
