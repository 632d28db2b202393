/**
 * Use Cartesia's own package with voicewire: text token by token in, audio and word times out.
 *
 *     npm install @cartesia/cartesia-js ws
 *     CARTESIA_API_KEY=any node cartesia_tts.mjs https://127.0.0.1:8765 hello.pcm
 *
 * The package requires TLS for its socket: `voicewire serve` with `listen.tls_certificate` and `listen.tls_key`;
 * NODE_EXTRA_CA_CERTS names a private certificate. The file holds raw samples: 24 kHz, 16 bits, mono.
 */
import { createWriteStream } from "node:fs";
import { createRequire } from "node:module";

const { default: Cartesia } = createRequire(import.meta.url)("@cartesia/cartesia-js"); // as a module it misses ws

const [url, path] = process.argv.slice(2);
const client = new Cartesia({ baseURL: url });
const file = createWriteStream(path);
const socket = await client.tts.websocket();
const context = socket.context({
  model_id: "sonic-3",
  voice: { mode: "id", id: "clara" },
  output_format: { container: "raw", encoding: "pcm_s16le", sample_rate: 24_000 },
  add_timestamps: true,
});
for (const word of "This text uses the protocol of another vendor.".split(" ")) await context.push({ transcript: `${word} ` });
await context.no_more_inputs();
for await (const event of context.receive()) {
  if (event.type === "chunk") file.write(Buffer.from(event.data, "base64"));
  if (event.type === "error") throw new Error(JSON.stringify(event));
  if (event.type === "timestamps")
    event.word_timestamps.words.forEach((word, at) =>
      console.log(`${event.word_timestamps.start[at].toFixed(2).padStart(6)}  ${word}`),
    );
}
file.end();
socket.close();
