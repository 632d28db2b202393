/** The page: a session, a form, a card for every reply. */

import { wavFile } from "../audio/wav.js";
import { VoicewireSession } from "../session.js";
import { openAccess } from "./access.js";
import { offer, openComposer, readOrder, wantedDecoder } from "./composer.js";
import { find, make, select } from "./dom.js";
import { EventLog } from "./event_log.js";
import { listenForKeys } from "./keys.js";
import { Meters } from "./meters.js";
import { tell } from "./notices.js";
import { ReplyCard } from "./reply_card.js";
import { checkSound, showPath, watchStatus } from "./status.js";
import { openTheme } from "./theme.js";
import { write } from "./token_writer.js";

const MAX_CARDS = 20;
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
    checkSound(session);
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

/** The loudspeaker is opened by the first touch of the page, so that it is ready by the first click. */
function prepareEarly() {
  const prepare = () => {
    for (const name of ["pointerdown", "keydown"]) removeEventListener(name, prepare, true);
    session.prepare().then(
      () => showPath(session),
      (error) => tell("speak", { text: `No sound: ${error.message}.`, tone: "bad" }),
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
  session.on("ready", offer);
  session.on("error", ({ code, message }) =>
    tell("speak", { text: `${message} (${code})`, tone: "bad", dismiss: true }),
  );
  find("interrupt").addEventListener("click", interrupt);
  select("decoder").addEventListener("change", () => session.useDecoder(wantedDecoder()).then(() => showPath(session)));
  addEventListener("resize", () => cards.forEach((card) => card.redraw()));
  listenForKeys(() => session.active.length > 0, interrupt);
  watchStatus(session);
  prepareEarly();
  meters.show([]);
  session.connect().catch(() => {}); // the status tells
}

start();
Object.assign(globalThis, { voicewire: session }); // for the curious, in the console
