/** The page: a session, a form, a card for every reply. */

import { wavFile } from "../audio/wav.js";
import { VoicewireSession } from "../session.js";
import { askForKey, openAccess } from "./access.js";
import { offer, openComposer, readOrder, wantedDecoder } from "./composer.js";
import { find, make, select } from "./dom.js";
import { EventLog } from "./event_log.js";
import { Meters } from "./meters.js";
import { tell } from "./notices.js";
import { ReplyCard } from "./reply_card.js";
import { openTheme } from "./theme.js";
import { write } from "./token_writer.js";

const MAX_CARDS = 20;
const BLOCKED_AFTER_MS = 400;
const PICTURE_EVERY_MS = 40;

/** @type {ReplyCard[]} newest first */
const cards = [];
let count = 0;
let quiet = true;
let drawn_ms = 0;

const session = new VoicewireSession({ decoder: wantedDecoder() });
const meters = new Meters();
const log = new EventLog();

/** @param {Event} event */
async function speak(event) {
  const { text, settings, tokens, copies, how } = readOrder();
  if (!text.trim()) return find("text").focus();
  try {
    for (let copy = 0; copy < copies; copy += 1) {
      const whole = tokens === null ? { text, end: true } : {};
      const response = await session.speak({ ...whole, settings, at_ms: event.timeStamp });
      addCard(response, how);
      if (tokens !== null) write(response, tokens);
    }
    checkSound();
  } catch (error) {
    tell("speak", {
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
  find("empty").hidden = true;
  find("replies").prepend(card.element);
  response.on("heard", ({ text, remaining }) =>
    announce(`Reply ${number} interrupted. Heard: ${text}. Not heard: ${remaining}`),
  );
  for (const event of /** @type {const} */ (["heard", "done", "over"])) response.on(event, wake);
  response.on("over", (status) => status === "completed" && announce(`Reply ${number} was heard to its end`));
  tell("speak", null);
  wake();
}

/** Draw while anything sounds. */
function wake() {
  if (quiet) requestAnimationFrame(picture);
  quiet = false;
}

/** @param {number} now_ms */
function picture(now_ms) {
  if (now_ms - drawn_ms < PICTURE_EVERY_MS) {
    requestAnimationFrame(picture);
    return;
  }
  drawn_ms = now_ms;
  for (const card of cards) card.refresh();
  meters.show(cards);
  const active = session.active.length > 0;
  find("interrupt").setAttribute("aria-disabled", String(!active));
  quiet = !active;
  if (active) requestAnimationFrame(picture);
}

/** @param {import("../response.js").SpokenResponse} response @param {number} number */
async function save(response, number) {
  const pcm = await session.record(response);
  const file = new Blob([wavFile(pcm, response.voice.player.context.sampleRate)], { type: "audio/wav" });
  const link = make("a", { href: URL.createObjectURL(file), download: `voicewire-reply-${number}.wav` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function interrupt() {
  await session.interrupt();
  wake();
}

/** @param {string} text */
function announce(text) {
  find("announcer").textContent = text;
}

/** @param {KeyboardEvent} event whether the key is meant for a field */
const isTyping = ({ target }) =>
  target instanceof Element &&
  target.closest("textarea, select, input:not([type=radio], [type=checkbox], [type=range])") !== null;

/** While something sounds, the space bar interrupts wherever nobody types in, and Escape everywhere. */
function listenForKeys() {
  let swallow = false;
  addEventListener(
    "keydown",
    (event) => {
      if (event.isComposing || event.ctrlKey || event.altKey || event.metaKey) return;
      const wanted = event.key === "Escape" || (event.key === " " && !isTyping(event));
      if (!wanted || session.active.length === 0) return;
      event.preventDefault();
      swallow = event.key === " "; // a button would be clicked when the key goes up
      interrupt();
    },
    { capture: true },
  );
  addEventListener(
    "keyup",
    (event) => {
      if (swallow && event.key === " ") event.preventDefault();
      swallow = false;
    },
    { capture: true },
  );
}

/** A browser that holds sound back says so by doing nothing. */
function checkSound() {
  setTimeout(() => {
    const blocked = session.player !== null && !session.player.running;
    const unblock = () => session.player?.resume();
    tell(
      "sound",
      blocked
        ? {
            text: "Your browser keeps this page silent until you click.",
            tone: "warn",
            action: "Turn the sound on",
            onAction: unblock,
          }
        : null,
    );
  }, BLOCKED_AFTER_MS);
}

/** @param {import("../connection.js").ConnectionEvents["state"]} change */
function showConnection({ state, reason }) {
  find("connection").dataset.state = state;
  const { info } = session;
  const words = {
    connecting: "connecting",
    open: info ? `connected · ${info.model}` : "connected",
    waiting: "reconnecting",
    refused: "refused",
    closed: "closed",
  };
  find("connection-text").textContent = words[state];
  if (state === "connecting") return;
  tell("connection", reason === null ? null : noticeOf(reason));
}

/** @param {import("../connection.js").Reason} reason @returns {import("./notices.js").Notice} */
function noticeOf({ code, message, retry_ms }) {
  const again = { action: "Try now", onAction: () => session.connection.open() };
  if (code === "unauthorized")
    return { text: "This server asks for an API key.", tone: "warn", action: "Enter the key", onAction: askForKey };
  if (retry_ms === null) return { text: `The server refuses this page: ${message}.`, tone: "bad", ...again };
  return { text: `There is no connection: ${message}. Trying again by itself.`, tone: "warn", ...again };
}

function tellOfPlainHttp() {
  if (isSecureContext) return;
  tell("plain", {
    text:
      "This page came over plain http from another machine, so it decodes with WebAssembly and schedules short " +
      "buffers. Over https sound starts a little sooner.",
    dismiss: true,
  });
}

async function showPath() {
  const opus = { webcodecs: "WebCodecs", wasm: "WebAssembly" }[await session.decoder];
  find("path").textContent = [`Opus by ${opus}`, ...(session.player === null ? [] : pathOf(session.player))].join(
    " · ",
  );
}

/** @param {import("../audio/player.js").Player} player */
function pathOf({ output, context, output_latency_s }) {
  const how = output.kind === "worklet" ? "audio worklet" : "scheduled buffers";
  return [how, `${context.sampleRate / 1000} kHz`, `output latency ${Math.round(1000 * output_latency_s)} ms`];
}

/** The loudspeaker is opened by the first touch of the page, so that it is ready by the first click. */
function prepareEarly() {
  const prepare = () => {
    for (const name of ["pointerdown", "keydown"]) removeEventListener(name, prepare, true);
    session.prepare().then(showPath, (error) => tell("speak", { text: `No sound: ${error.message}.`, tone: "bad" }));
  };
  for (const name of ["pointerdown", "keydown"]) addEventListener(name, prepare, true);
}

function connect() {
  session.connect().catch(() => {}); // showConnection tells
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
  session.on("state", showConnection);
  session.on("ready", offer);
  session.on("ready", () => showConnection({ state: "open", reason: null }));
  session.on("error", ({ code, message }) =>
    tell("speak", { text: `${message} (${code})`, tone: "bad", dismiss: true }),
  );
  session.on("sound", checkSound);
  find("interrupt").addEventListener("click", interrupt);
  select("decoder").addEventListener("change", () => session.useDecoder(wantedDecoder()).then(showPath));
  addEventListener("resize", () => cards.forEach((card) => card.redraw()));
  listenForKeys();
  prepareEarly();
  tellOfPlainHttp();
  meters.show([]);
  showPath();
  connect();
}

start();
Object.assign(globalThis, { voicewire: session }); // for the curious, in the console
