/** The page: a session, a form, and a card for each reply. */

import { wavFile } from "../audio/wav.js";
import { SpeechApi } from "../http_api.js";
import { VoicewireSession } from "../session.js";
import { openAccess } from "./api_key.js";
import { setOptions, setVoices, openComposer, readForm, wantedDecoder } from "./compose_form.js";
import { getById, select } from "./dom.js";
import { EventLog } from "./event_log.js";
import { saveFile } from "./files.js";
import { listenForKeys } from "./shortcuts.js";
import { Meters } from "./meters.js";
import { showLexicons, showModelFields } from "./model_fields.js";
import { showNotice } from "./notices.js";
import { ReplyCard } from "./reply_card.js";
import { checkSound, showAudioPath, watchStatus } from "./status.js";
import { openTheme } from "./theme.js";
import { streamTokens } from "./token_stream.js";
import { openViews } from "./views.js";

const MAX_CARDS = 20;
const PICTURE_EVERY_MS = 40;

/** @type {ReplyCard[]} newest first */
const cards = [];
let count = 0;
let quiet = true;
let drawn_ms = 0;

const session = new VoicewireSession({ decoder: wantedDecoder() });
const api = new SpeechApi(session.connection);
const meters = new Meters();
const log = new EventLog();

/** @param {Event} event */
async function speak(event) {
  const { text, settings, tokens, copies, how } = readForm();
  if (!text.trim()) return getById("text").focus();
  try {
    for (let copy = 0; copy < copies; copy += 1) {
      const whole = tokens === null ? { text, end: true } : {};
      const response = await session.speak({ ...whole, settings, at_ms: event.timeStamp });
      addCard(response, how);
      if (tokens !== null) streamTokens(response, tokens);
    }
    checkSound(session);
  } catch (error) {
    showNotice("speak", {
      text: `This could not be said: ${/** @type {Error} */ (error).message}.`,
      tone: "bad",
      dismiss: true,
    });
  }
}

/** @param {import("../response.js").SpokenResponse} response @param {string} how */
function addCard(response, how) {
  count += 1;
  const number = count;
  const card = new ReplyCard(response, number, how, {
    onStop: () => response.interrupt(),
    onSave: () => save(response, number),
  });
  cards.unshift(card);
  cards.splice(MAX_CARDS).forEach(({ element }) => element.remove());
  getById("empty").hidden = true;
  getById("replies").prepend(card.element);
  response.on("heard", ({ text, remaining }) =>
    announce(`Reply ${number} interrupted. Heard: ${text}. Not heard: ${remaining}`),
  );
  for (const event of /** @type {const} */ (["heard", "done", "over"])) response.on(event, resumeAudio);
  response.on("over", (status) => status === "completed" && announce(`Reply ${number} was heard to its end`));
  showNotice("speak", null);
  resumeAudio();
}

/** Draw during playback. */
function resumeAudio() {
  if (quiet) requestAnimationFrame(renderFrame);
  quiet = false;
}

/** @param {number} now_ms */
function renderFrame(now_ms) {
  if (now_ms - drawn_ms < PICTURE_EVERY_MS) {
    requestAnimationFrame(renderFrame);
    return;
  }
  drawn_ms = now_ms;
  for (const card of cards) card.refresh();
  meters.show(cards);
  const active = session.active.length > 0;
  getById("interrupt").setAttribute("aria-disabled", String(!active));
  quiet = !active;
  if (active) requestAnimationFrame(renderFrame);
}

/** @param {import("../response.js").SpokenResponse} response @param {number} number */
async function save(response, number) {
  const pcm = await session.record(response);
  const file = new Blob([wavFile(pcm, response.voice.player.context.sampleRate)], { type: "audio/wav" });
  saveFile(file, `voicewire-reply-${number}.wav`);
}

async function interrupt() {
  await session.interrupt();
  resumeAudio();
}

/** @param {string} text */
function announce(text) {
  getById("announcer").textContent = text;
}

/** Show what the server can do with the key of the page. */
async function showAbilities() {
  try {
    const [model, { voices, can_change }] = await Promise.all([api.model(), api.voices()]);
    showModelFields(model);
    setVoices(voices);
    getById("to-talk").hidden = model.agent === "none";
    showLexicons(can_change ? await api.lexicons() : null);
  } catch (error) {
    showNotice("abilities", {
      text: `The abilities of the model are unknown: ${/** @type {Error} */ (error).message}.`,
      tone: "warn",
      action: "Try again",
      onAction: showAbilities,
    });
    return;
  }
  showNotice("abilities", null);
}

/** Load a view when it is shown first. */
function openOtherViews() {
  /** @type {Promise<() => Promise<void>> | undefined} */
  let voices;
  const refresh = async () => {
    voices ??= import("./voices/voices_view.js").then((view) => view.openVoices({ session, api, onVoices: setVoices }));
    await (await voices)();
  };
  /** @type {Promise<import("./talk/talk_view.js").TalkView> | undefined} */
  let talk;
  const showTalk = async () => {
    talk ??= import("./talk/talk_view.js").then(({ TalkView }) => new TalkView(session, api, announce));
    await (await talk).show();
  };
  const loaders = { say: () => {}, talk: showTalk, voices: refresh };
  const isShown = openViews((name) => {
    if (session.state === "open") loaders[name]();
    if (name !== "talk") talk?.then((view) => view.leave());
  });
  session.on("ready", () => {
    for (const name of /** @type {const} */ (["talk", "voices"])) if (isShown(name)) loaders[name]();
  });
}

/** Open the audio device at the first touch of the page, so that it is ready at the first click. */
function prepareOnGesture() {
  const prepare = () => {
    for (const name of ["pointerdown", "keydown"]) removeEventListener(name, prepare, true);
    session.prepare().then(
      () => showAudioPath(session),
      (error) => showNotice("speak", { text: `No sound: ${error.message}.`, tone: "bad" }),
    );
  };
  for (const name of ["pointerdown", "keydown"]) addEventListener(name, prepare, true);
}

function start() {
  openTheme(() => cards.forEach((card) => card.redraw()));
  openComposer(speak);
  session.setKey(
    openAccess((key) => {
      session.setKey(key);
      session.connection.open();
    }),
  );
  session.on("wire", (message) => log.add(message));
  session.on("ready", setOptions);
  session.on("ready", showAbilities);
  session.on("error", ({ code, message }) =>
    showNotice("speak", { text: `${message} (${code})`, tone: "bad", dismiss: true }),
  );
  getById("interrupt").addEventListener("click", interrupt);
  select("decoder").addEventListener("change", () => session.useDecoder(wantedDecoder()).then(() => showAudioPath(session)));
  addEventListener("resize", () => cards.forEach((card) => card.redraw()));
  listenForKeys(() => session.active.length > 0, interrupt);
  watchStatus(session);
  prepareOnGesture();
  openOtherViews();
  meters.show([]);
  session.connect().catch(() => {}); // the status tells
}

start();
Object.assign(globalThis, { voicewire: session }); // for the curious, in the console
