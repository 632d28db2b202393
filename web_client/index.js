/** The public API of this folder; see docs/guides/web-client.md. */

export { Player } from "./audio/player.js";
export { wavFile } from "./audio/wav.js";
export { CloseCode } from "./protocol/close.js";
export { AudioKind } from "./protocol/events.js";
export * as native from "./protocol/native.js";
export { SpokenResponse } from "./response.js";
export { VoicewireSession } from "./session.js";
