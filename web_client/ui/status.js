/** Notices about the connection, the audio and the browser. */

import { askForKey } from "./api_key.js";
import { getById } from "./dom.js";
import { showNotice } from "./notices.js";

/** @typedef {import("../session.js").VoicewireSession} Session */

const BLOCKED_AFTER_MS = 400;

/** @param {Session} session */
export function watchStatus(session) {
  session.on("state", (change) => showConnection(session, change));
  session.on("ready", () => showConnection(session, { state: "open", reason: null }));
  session.on("sound", () => checkSound(session));
  if (!isSecureContext) warnInsecureOrigin();
  showAudioPath(session);
}

/** Show a notice if the browser blocks audio, which it does not report. @param {Session} session */
export function checkSound(session) {
  const notice = {
    text: "Your browser mutes this page until you click.",
    tone: /** @type {const} */ ("warn"),
    action: "Turn audio on",
    onAction: () => session.player?.resume(),
  };
  setTimeout(() => {
    const blocked = session.player !== null && !session.player.running;
    showNotice("sound", blocked ? notice : null);
  }, BLOCKED_AFTER_MS);
}

/** @param {Session} session */
export async function showAudioPath(session) {
  const opus = { webcodecs: "WebCodecs", wasm: "WebAssembly" }[await session.decoder];
  const path = session.player === null ? [] : pathOf(session.player);
  getById("path").textContent = [`Opus by ${opus}`, ...path].join(" · ");
}

/** @param {import("../audio/player.js").Player} player */
function pathOf({ output, context, output_latency_s }) {
  const how = output.kind === "worklet" ? "audio worklet" : "scheduled buffers";
  return [how, `${context.sampleRate / 1000} kHz`, `output latency ${Math.round(1000 * output_latency_s)} ms`];
}

/** @param {Session} session @param {import("../connection.js").ConnectionEvents["state"]} change */
function showConnection(session, { state, reason }) {
  const words = {
    connecting: "connecting",
    open: `connected · ${session.info?.model ?? ""}`,
    waiting: "reconnecting",
    refused: "rejected",
    closed: "closed",
  };
  getById("connection").dataset.state = state;
  getById("connection-text").textContent = words[state];
  if (state !== "connecting") showNotice("connection", reason === null ? null : noticeOf(session, reason));
}

/** @param {Session} session @param {import("../connection.js").Reason} reason @returns {import("./notices.js").Notice} */
function noticeOf(session, { code, message, retry_ms }) {
  if (code === "unauthorized") {
    return { text: "This server asks for an API key.", tone: "warn", action: "Enter the key", onAction: askForKey };
  }
  const again = { action: "Try now", onAction: () => session.connection.open() };
  if (retry_ms === null) return { text: `The server rejects this page: ${message}.`, tone: "bad", ...again };
  return { text: `There is no connection: ${message}. Reconnecting.`, tone: "warn", ...again };
}

function warnInsecureOrigin() {
  showNotice("plain", {
    text:
      "This page came over plain http from another machine, so it decodes with WebAssembly and schedules short " +
      "buffers. Over https audio starts a little sooner.",
    dismiss: true,
  });
}
