/**
 * Use LiveKit Agents for JavaScript with voicewire through its ElevenLabs class: text token by token in, audio and word
 * times out.
 *
 *     npm install @livekit/agents @livekit/agents-plugin-elevenlabs @livekit/rtc-node
 *     ELEVEN_API_KEY=any node livekit_tts.mjs http://127.0.0.1:8765 hello.pcm
 *
 * In an agent: `new voice.AgentSession({ tts: new elevenlabs.TTS({ baseURL: "http://127.0.0.1:8765/v1" }), ... })`.
 * The file holds raw samples: 24 kHz, 16 bits, mono.
 */
import { createWriteStream } from "node:fs";
import { initializeLogger, tts } from "@livekit/agents";
import * as elevenlabs from "@livekit/agents-plugin-elevenlabs";

initializeLogger({ pretty: false, level: "warn" });
const [url, path] = process.argv.slice(2);
const speech = new elevenlabs.TTS({ baseURL: `${url}/v1`, voiceId: "clara", encoding: "pcm_24000" });
const stream = speech.stream();
for (const word of "This text uses the protocol of another vendor.".split(" ")) stream.pushText(`${word} `);
stream.endInput();
const file = createWriteStream(path);
for await (const event of stream) {
  if (event === tts.SynthesizeStream.END_OF_STREAM) break;
  const { data } = event.frame;
  file.write(Buffer.from(data.buffer, data.byteOffset, data.byteLength));
  for (const word of event.timedTranscripts ?? []) console.log(`${word.startTime.toFixed(2).padStart(6)}  ${word.text}`);
}
stream.close();
await speech.close();
file.end(() => process.exit());
