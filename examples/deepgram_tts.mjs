/**
 * Use Deepgram's own package with voicewire: text token by token in, audio out.
 *
 *     npm install @deepgram/sdk
 *     DEEPGRAM_API_KEY=any node deepgram_tts.mjs http://127.0.0.1:8765 hello.pcm
 *
 * The file holds raw samples: 24 kHz, 16 bits, mono.
 */
import { writeFile } from "node:fs/promises";
import { DeepgramClient } from "@deepgram/sdk";

const [url, path] = process.argv.slice(2);
const socketUrl = url.replace("http", "ws");
const environment = { base: url, production: socketUrl, agent: socketUrl, agentRest: url };
const client = new DeepgramClient({ environment });
const connection = await client.speak.v1.connect({ model: "aura-2-clara-en", encoding: "linear16", sample_rate: 24_000 });
const pieces = [];
const spoken = new Promise((resolve) => {
  connection.on("message", (message) => {
    if (message.type === "Flushed") resolve();
    else if (message instanceof Blob) pieces.push(message.arrayBuffer());
    else if (message instanceof ArrayBuffer || ArrayBuffer.isView(message)) pieces.push(message);
  });
});
connection.connect();
await connection.waitForOpen();
for (const word of "This text uses the protocol of another vendor.".split(" "))
  connection.sendText({ type: "Speak", text: `${word} ` });
connection.sendFlush({ type: "Flush" });
await spoken;
connection.sendClose({ type: "Close" });
await writeFile(path, Buffer.concat((await Promise.all(pieces)).map((piece) => Buffer.from(piece))));
connection.close();
