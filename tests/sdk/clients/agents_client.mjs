/**
 * Speaks through OpenAI's agents package for JavaScript over WebSocket: `node agents_client.mjs realtime HTTP_URL MODE`
 * prints JSON. Modes: `items`, each turn a user message; `interrupt`, the first turn is broken off. What the package
 * writes to the console as a warning or an error is an error of the run.
 */
import { OpenAIRealtimeWebSocket, RealtimeAgent, RealtimeSession } from "@openai/agents-realtime";
import { KEY, LONG, TURNS, TURN_TIMEOUT_MS, isEnough, keepCut, played } from "./turns.mjs";

const RATE = 24_000;
const [, url, mode] = process.argv.slice(2);
const errors = [];
for (const kind of ["warn", "error"]) console[kind] = (...words) => errors.push(words.map(String).join(" "));

const agent = new RealtimeAgent({ name: "Reader", instructions: "Read the text." });
const session = new RealtimeSession(agent, { transport: new OpenAIRealtimeWebSocket(), tracingDisabled: true });
session.on("error", ({ error }) => errors.push(JSON.stringify(error)));

/** The turn's audio. `take` gets it as it comes. */
function turn(text, take = () => {}) {
  const pcm = [];
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("no end of the turn")), TURN_TIMEOUT_MS);
    const onAudio = ({ data }) => {
      pcm.push(Buffer.from(data));
      take(pcm);
    };
    session.on("audio", onAudio);
    session.once("agent_end", () => {
      clearTimeout(timer);
      session.off("audio", onAudio);
      resolve(pcm);
    });
    session.sendMessage(text);
  });
}

async function interrupt() {
  let cut = null;
  await turn(LONG, (pcm) => {
    if (cut || !isEnough(pcm, RATE)) return;
    cut = [...pcm];
    session.interrupt();
  });
  keepCut(cut, RATE);
}

await session.connect({ apiKey: KEY, url: `${url.replace("http", "ws")}/v1/realtime?model=gpt-realtime` });
if (mode === "interrupt") await interrupt();
const turns = [];
for (const text of TURNS) turns.push(played(text, await turn(text), RATE));
session.close();
console.log(JSON.stringify({ turns, errors }));
process.exit(0);
