/**
 * Use ElevenLabs' own package with voicewire: streamed MP3 and character times.
 *
 *     npm install @elevenlabs/elevenlabs-js
 *     ELEVENLABS_API_KEY=any node elevenlabs_tts.mjs http://127.0.0.1:8765 hello.mp3
 */
import { createWriteStream } from "node:fs";
import { ElevenLabsClient } from "@elevenlabs/elevenlabs-js";

const [url, path] = process.argv.slice(2);
const client = new ElevenLabsClient({ baseUrl: url });
const file = createWriteStream(path);
const text = "This text uses the protocol of another vendor.";
const chunks = await client.textToSpeech.streamWithTimestamps("clara", { text, outputFormat: "mp3_44100_128" });
for await (const { audioBase64, alignment } of chunks) {
  file.write(Buffer.from(audioBase64, "base64"));
  alignment?.characters.forEach((character, at) =>
    console.log(`${alignment.characterStartTimesSeconds[at].toFixed(2).padStart(6)}  ${character}`),
  );
}
file.end();
