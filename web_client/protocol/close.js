/** The close codes of the native protocol. */

export const CloseCode = Object.freeze({
  NORMAL: 1000,
  GOING_AWAY: 1001,
  UNSUPPORTED_DATA: 1003,
  INVALID_DATA: 1007,
  POLICY_VIOLATION: 1008,
  MESSAGE_TOO_BIG: 1009,
  INTERNAL_ERROR: 1011,
  SERVICE_RESTART: 1012,
  IDLE_TIMEOUT: 4408,
  REPLACED: 4409,
  SESSION_EXPIRED: 4410,
});

/** @type {Readonly<Record<number, string>>} */
export const MEANINGS = Object.freeze({
  [CloseCode.NORMAL]: "the client asked for it by session.close, or closed the socket itself",
  [CloseCode.GOING_AWAY]: "the client went away",
  [CloseCode.UNSUPPORTED_DATA]: "a binary message, where this wire takes text only",
  [CloseCode.INVALID_DATA]: "a message that is not JSON, or is no event of this wire",
  [CloseCode.POLICY_VIOLATION]: "too many errors on one connection",
  [CloseCode.MESSAGE_TOO_BIG]: "a message above max_message_bytes",
  [CloseCode.INTERNAL_ERROR]: "a fault of the server, or pings that were not answered",
  [CloseCode.SERVICE_RESTART]: "the server is draining or restarting: connect again",
  [CloseCode.IDLE_TIMEOUT]: "no event and no speech for idle_timeout_s",
  [CloseCode.REPLACED]: "another connection resumed the session",
  [CloseCode.SESSION_EXPIRED]: "the session is older than max_session_duration_s",
});

/** Codes after which reconnecting is useless. */
export const FINAL = Object.freeze(
  new Set([
    CloseCode.UNSUPPORTED_DATA,
    CloseCode.INVALID_DATA,
    CloseCode.POLICY_VIOLATION,
    CloseCode.MESSAGE_TOO_BIG,
    CloseCode.REPLACED,
  ]),
);
