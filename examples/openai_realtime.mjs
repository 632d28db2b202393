/**
 * Use OpenAI's own package with voicewire: text token by token in, speech and transcript out.
 *
 *     npm install openai ws
 *     OPENAI_API_KEY=any node openai_realtime.mjs https://127.0.0.1:8765 hello.pcm
 *
 * The package requires TLS: `voicewire serve` with `listen.tls_certificate` and `listen.tls_key`; NODE_EXTRA_CA_CERTS names
 * a private certificate. The file holds raw samples: 24 kHz, 16 bits, mono.
 */
import { createWriteStream } from "node:fs";
import OpenAI from "openai";
import { OpenAIRealtimeWS } from "openai/realtime/ws";

const [url, path] = process.argv.slice(2);
const realtime = new OpenAIRealtimeWS({ model: "gpt-realtime" }, new OpenAI({ baseURL: `${url}/v1` }));
const file = createWriteStream(path);

realtime.on("session.created", () => {
  // these two events are extensions of voicewire
  for (const word of "This reply goes to the server token by token, as a model writes it.".split(" "))
    realtime.send({ type: "input_text_buffer.append", delta: `${word} ` });
  realtime.send({ type: "input_text_buffer.commit" });
});
realtime.on("response.output_audio.delta", (event) => file.write(Buffer.from(event.delta, "base64")));
realtime.on("response.output_audio_transcript.delta", (event) => process.stdout.write(event.delta));
realtime.on("response.done", (event) => {
  console.log(`\n${event.response.status}`);
  file.end();
  realtime.close();
});
realtime.on("error", (error) => {
  console.error(error.message);
  process.exitCode = 1;
});
