/**
 * Speaks through JavaScript packages that ask `POST /v1/audio/speech` and vendors' HTTP addresses for a whole text:
 * `node speech_client.mjs SERVICE HTTP_URL MODE` prints JSON.
 *
 * `ai-sdk`: Vercel's `generateSpeech`. `mastra`: `@mastra/voice-openai`. `jambonz`: `@jambonz/speech-utils`, with the
 * vendor as its mode. `librechat`: the requests of LibreChat's speech service, which is an application; its body names
 * no format, and it passes on whatever comes as MP3.
 */
import { createRequire } from "node:module";
import axios from "axios";
import { MPEGDecoder } from "mpg123-decoder";
import { KEY, TURNS, played } from "./turns.mjs";

const [service, url, mode] = process.argv.slice(2);
const INSTRUCTIONS = "Speak in a cheerful and positive tone.";
const errors = [];

/** As `played`, from MP3. */
async function playedMp3(text, data) {
  const decoder = new MPEGDecoder();
  await decoder.ready;
  const { channelData, sampleRate, errors: faults } = decoder.decode(new Uint8Array(data));
  decoder.free();
  errors.push(...faults.map(({ message }) => message));
  const samples = Int16Array.from(channelData[0], (x) => Math.round(Math.max(-1, Math.min(1, x)) * 32_767));
  return played(text, [Buffer.from(samples.buffer)], sampleRate);
}

async function aiSdk() {
  const { experimental_generateSpeech: generateSpeech } = await import("ai");
  const { createOpenAI } = await import("@ai-sdk/openai");
  const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: KEY });
  const more = mode === "instructions" ? { instructions: INSTRUCTIONS } : {};
  const turns = [];
  for (const text of TURNS) {
    const { audio, warnings } = await generateSpeech({ model: openai.speech("gpt-4o-mini-tts"), text, voice: "alloy", ...more });
    errors.push(...warnings.map((warning) => JSON.stringify(warning)));
    if (audio.mediaType !== "audio/mp3" && audio.mediaType !== "audio/mpeg") errors.push(`media type: ${audio.mediaType}`);
    turns.push(await playedMp3(text, audio.uint8Array));
  }
  return turns;
}

async function mastra() {
  const { OpenAIVoice } = await import("@mastra/voice-openai");
  const voice = new OpenAIVoice({
    speechModel: { name: "tts-1", apiKey: KEY, options: { baseURL: `${url}/v1` } },
    listeningModel: { apiKey: KEY },
  });
  const more = mode === "instructions" ? { instructions: INSTRUCTIONS } : {};
  const turns = [];
  for (const text of TURNS) {
    const data = await Buffer.concat(await (await voice.speak(text, more)).toArray());
    turns.push(await playedMp3(text, data));
  }
  return turns;
}

/** Its way without FreeSWITCH, which fetches whole texts. In the place of Redis is a cache that has nothing. */
async function jambonz() {
  const require = createRequire(import.meta.url);
  const synthAudio = require("@jambonz/speech-utils/lib/synth-audio");
  const cache = { get: async () => null, setex: async () => {}, expire: async () => {} };
  const logger = { info() {}, debug() {}, error: (...reasons) => errors.push(reasons.map(String).join(" ")) };
  const stats = { increment() {}, histogram() {} };
  const hash = async () => null;
  const vendors = {
    whisper: { credentials: { api_key: KEY, model_id: "tts-1", baseURL: `${url}/v1` }, voice: "alloy", instructions: INSTRUCTIONS },
    deepgram: { credentials: { api_key: KEY, deepgram_tts_uri: url }, model: "aura-2-asteria-en" },
    elevenlabs: { credentials: { api_key: KEY, model_id: "eleven_flash_v2_5", api_uri: new URL(url).host }, voice: "zoe" },
  };
  const turns = [];
  for (const text of TURNS) {
    const asked = { vendor: mode, language: "en-US", account_sid: "a", text, disableTtsStreaming: true, disableTtsCache: true };
    const { filePath } = await synthAudio(cache, hash, hash, logger, stats, { ...asked, ...vendors[mode] });
    turns.push(await playedMp3(text, require("node:fs").readFileSync(filePath)));
    require("node:fs").unlinkSync(filePath);
  }
  return turns;
}

async function librechat() {
  const requests = {
    openai: (input) => [`${url}/v1/audio/speech`, { input, model: "tts-1", voice: "alloy" }, { Authorization: `Bearer ${KEY}` }],
    localai: (input) => [`${url}/v1/audio/speech`, { input, model: "alloy", backend: "piper" }, { Authorization: `Bearer ${KEY}` }],
    elevenlabs: (text) => [
      `${url}/v1/text-to-speech/zoe/stream`,
      { model_id: "eleven_multilingual_v2", text, voice_settings: { similarity_boost: 0.5, stability: 0.5 } },
      { "xi-api-key": KEY, Accept: "audio/mpeg" },
    ],
  };
  const turns = [];
  for (const text of TURNS) {
    const [address, body, headers] = requests[mode](text);
    const options = { headers: { "Content-Type": "application/json", ...headers }, responseType: "stream" };
    const { data } = await axios.post(address, body, options);
    turns.push(await playedMp3(text, Buffer.concat(await data.toArray())));
  }
  return turns;
}

const turns = await { "ai-sdk": aiSdk, mastra, jambonz, librechat }[service]();
console.log(JSON.stringify({ turns, errors }));
process.exit(0);
