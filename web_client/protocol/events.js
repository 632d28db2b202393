/**
 * Every event of `voicewire.v1`, with fields in the order of the messages and the names of
 * realtime/protocol/events.py. Client events reject unknown fields, server events ignore them.
 */

import {
  flag,
  integer,
  listOf,
  mapOf,
  matching,
  number,
  oneOf,
  optional,
  orNull,
  required,
  struct,
  text,
} from "./schema.js";

export const MAX_ID_CHARS = 64;

const STRICT = { strict: true };
const LENIENT = { strict: false };

const id = matching(new RegExp(`^[A-Za-z0-9_.:-]{1,${MAX_ID_CHARS}}$`));
const label = orNull(text);
const count = orNull(integer);

/**
 * @typedef {object} Format
 * @property {string} [encoding] `opus`, `pcm_s16le`, `mulaw` or `alaw`
 * @property {number} [sample_rate]
 * @property {number} [bitrate] bits a second
 * @property {number} [complexity]
 * @property {boolean} [fec]
 * @property {number} [packet_loss_percent]
 * @property {boolean} [dtx]
 */
const format = struct(
  {
    encoding: optional(label),
    sample_rate: optional(count),
    bitrate: optional(count),
    complexity: optional(count),
    fec: optional(orNull(flag)),
    packet_loss_percent: optional(count),
    dtx: optional(orNull(flag)),
  },
  STRICT,
);

/**
 * @typedef {object} Sampling
 * @property {number} [temperature]
 * @property {number} [top_k]
 * @property {number} [top_p]
 * @property {number} [repetition_penalty]
 * @property {boolean} [do_sample]
 * @property {number} [repetition_window]
 * @property {boolean} [predictor_do_sample]
 * @property {number} [predictor_temperature]
 * @property {number} [predictor_top_k]
 * @property {number} [predictor_top_p]
 * @property {number} [min_new_tokens]
 */
const sampling = struct(
  {
    do_sample: optional(orNull(flag)),
    temperature: optional(orNull(number)),
    top_k: optional(count),
    top_p: optional(orNull(number)),
    repetition_penalty: optional(orNull(number)),
    repetition_window: optional(count),
    predictor_do_sample: optional(orNull(flag)),
    predictor_temperature: optional(orNull(number)),
    predictor_top_k: optional(count),
    predictor_top_p: optional(orNull(number)),
    min_new_tokens: optional(count),
  },
  STRICT,
);

/**
 * @typedef {object} Settings
 * @property {string} [voice]
 * @property {string} [language]
 * @property {string} [instruct]
 * @property {number} [seed]
 * @property {Format} [format]
 * @property {"lead" | "burst"} [pace]
 * @property {number} [lead_ms]
 * @property {boolean} [word_times] send `response.words`
 * @property {boolean} [checkpoints] send `response.checkpoint`
 * @property {number} [speed]
 * @property {"none" | "ssml"} [markup]
 * @property {Record<string, string>} [speakers] voices by the labels of lines
 * @property {string[]} [lexicons]
 * @property {"auto" | "streaming" | "full"} [text_layout]
 * @property {number} [max_frames]
 * @property {number[]} [chunk_frames]
 * @property {Sampling} [sampling]
 */
const settingFields = {
  voice: optional(label),
  language: optional(label),
  instruct: optional(label),
  seed: optional(count),
  format: optional(orNull(format)),
  pace: optional(orNull(oneOf("lead", "burst"))),
  lead_ms: optional(count),
  word_times: optional(orNull(flag)),
  checkpoints: optional(orNull(flag)),
  speed: optional(orNull(number)),
  markup: optional(orNull(oneOf("none", "ssml"))),
  speakers: optional(orNull(mapOf(text))),
  lexicons: optional(orNull(listOf(text))),
  text_layout: optional(orNull(oneOf("auto", "streaming", "full"))),
  max_frames: optional(count),
  chunk_frames: optional(orNull(listOf(integer))),
  sampling: optional(orNull(sampling)),
};
const settings = struct(settingFields, STRICT);
/** Server events may contain settings that are newer than this file. */
const settingsTold = struct(settingFields, LENIENT);

/**
 * @typedef {{type: "session.update", settings: Settings}} SessionUpdate
 * @typedef {{response_id: string, received_samples?: number, played_ms?: number | null}} ResumePosition
 * @typedef {{type: "session.resume", session_id: string, token: string, responses?: ResumePosition[]}} SessionResume
 * @typedef {{type: "session.close"}} SessionClose
 * @typedef {{checkpoints?: string[], received_samples?: number, played_ms?: number | null, received_flushes?: number,
 *   received_words?: number}} Resync
 * @typedef {{type: "response.create", response_id?: string, settings?: Settings, text?: string, end?: boolean,
 *   resync?: Resync | null}} ResponseCreate
 * @typedef {{type: "text.append", response_id: string, text: string, at?: number | null}} TextAppend
 * @typedef {{type: "text.flush", response_id: string}} TextFlush
 * @typedef {{type: "text.end", response_id: string}} TextEnd
 * @typedef {{type: "response.cancel", response_id: string, played_ms?: number}} ResponseCancel
 * @typedef {{type: "playback.report", response_id: string, played_ms: number}} PlaybackReport
 * @typedef {SessionUpdate | SessionResume | SessionClose | ResponseCreate | TextAppend | TextFlush | TextEnd
 *   | ResponseCancel | PlaybackReport} ClientEvent
 */

const resumePosition = struct(
  { response_id: required(id), received_samples: optional(integer), played_ms: optional(orNull(number)) },
  STRICT,
);

const resync = struct(
  {
    checkpoints: optional(listOf(text)),
    received_samples: optional(integer),
    played_ms: optional(orNull(number)),
    received_flushes: optional(integer),
    received_words: optional(integer),
  },
  STRICT,
);

/** @type {Record<string, import("./schema.js").Fields>} */
export const CLIENT_EVENTS = {
  "session.update": { settings: required(settings) },
  "session.resume": {
    session_id: required(text),
    token: required(text),
    responses: optional(listOf(resumePosition)),
  },
  "session.close": {},
  "response.create": {
    response_id: optional(orNull(id)),
    settings: optional(settings),
    text: optional(text),
    end: optional(flag),
    resync: optional(orNull(resync)),
  },
  "text.append": { response_id: required(id), text: required(text), at: optional(orNull(integer)) },
  "text.flush": { response_id: required(id) },
  "text.end": { response_id: required(id) },
  "response.cancel": { response_id: required(id), played_ms: optional(orNull(number)) },
  "playback.report": { response_id: required(id), played_ms: required(number) },
};

/**
 * @typedef {object} Limits
 * @property {number} max_message_bytes
 * @property {number} max_response_chars
 * @property {number} max_active_responses
 * @property {number} idle_timeout_s
 * @property {number} max_session_s
 */
const limits = struct(
  {
    max_message_bytes: required(integer),
    max_response_chars: required(integer),
    max_active_responses: required(integer),
    idle_timeout_s: required(number),
    max_session_s: required(number),
  },
  LENIENT,
);

/** @typedef {{encoding: string, sample_rate: number, pre_skip_samples: number}} ActualFormat */
const actualFormat = struct(
  { encoding: required(text), sample_rate: required(integer), pre_skip_samples: optional(integer, 0) },
  LENIENT,
);

/**
 * @typedef {object} ErrorBody
 * @property {string} code
 * @property {string} message
 * @property {string | null} param
 * @property {boolean} retryable
 * @property {number | null} retry_after_ms
 */
const errorFields = {
  code: required(text),
  message: required(text),
  param: optional(orNull(text), null),
  retryable: optional(flag, false),
  retry_after_ms: optional(count, null),
};

/** @typedef {{text: string, remaining: string, played_ms: number}} HeardBody */
const heard = struct({ text: required(text), remaining: required(text), played_ms: required(number) }, LENIENT);

const word = struct(
  {
    text: required(text),
    raw_start: required(integer),
    raw_end: required(integer),
    start_ms: required(number),
    end_ms: required(number),
    segment: optional(integer, 0),
    speaker: optional(text),
  },
  LENIENT,
);

/**
 * @typedef {{type: "session.created", session_id: string, resume_token: string, protocol: string,
 *   server_version: string, model: string, voices: string[], languages: string[], settings: Settings, limits: Limits,
 *   resume_grace_s: number, resume_window_s: number, digital_source_type: string, watermark: boolean}} SessionCreated
 * @typedef {{response_id: string, state: string, response: number | null, format: ActualFormat | null,
 *   settings: Settings | null, received_chars: number, received_flushes: number, next_sample: number, discard_samples: number}} ResumedResponse
 * @typedef {{type: "session.resumed", session_id: string, token: string, grace_s: number, settings: Settings,
 *   responses: ResumedResponse[]}} SessionResumed
 * @typedef {{type: "session.updated", settings: Settings}} SessionUpdated
 * @typedef {{type: "response.created", response_id: string, response: number, format: ActualFormat,
 *   settings: Settings, next_sample?: number, discard_samples?: number}} ResponseCreated
 * @typedef {{type: "response.checkpoint", response_id: string, index: number, data: string}} ResponseCheckpoint
 * @typedef {{text: string, raw_start: number, raw_end: number, start_ms: number, end_ms: number, segment: number,
 *   speaker?: string}} Word
 * @typedef {{type: "response.words", response_id: string, words: Word[]}} ResponseWords
 * @typedef {{type: "response.mark", response_id: string, name: string, sample: number, time_ms: number}} ResponseMark
 * @typedef {{type: "response.warning", response_id: string, code: string, element: string, raw_start: number}
 *   } ResponseWarning
 * @typedef {{type: "text.flushed", response_id: string, flush: number, end_sample: number}} TextFlushed
 * @typedef {{type: "response.done", response_id: string, response: number,
 *   status: "completed" | "cancelled" | "failed", audio_samples: number, audio_ms: number, nothing_spoken: boolean,
 *   first_audio_ms: number | null, heard: HeardBody | null, error: ErrorBody | null}} ResponseDone
 * @typedef {{type: "response.heard", response_id: string, heard: HeardBody}} ResponseHeard
 * @typedef {ErrorBody & {type: "error", response_id: string | null}} ErrorEvent
 * @typedef {SessionCreated | SessionUpdated | SessionResumed | ResponseCreated | ResponseCheckpoint | ResponseWords |
 *   ResponseMark | ResponseWarning | TextFlushed | ResponseDone | ResponseHeard | ErrorEvent} ServerEvent
 */

const resumedResponse = struct(
  {
    response_id: required(text),
    state: required(text),
    response: optional(orNull(integer), null),
    format: optional(orNull(actualFormat), null),
    settings: optional(orNull(settingsTold), null),
    received_chars: optional(integer, 0),
    received_flushes: optional(integer, 0),
    next_sample: optional(integer, 0),
    discard_samples: optional(integer, 0),
  },
  LENIENT,
);

/** @type {Record<string, import("./schema.js").Fields>} */
export const SERVER_EVENTS = {
  "session.created": {
    session_id: required(text),
    resume_token: required(text),
    protocol: required(text),
    server_version: required(text),
    model: required(text),
    voices: required(listOf(text)),
    languages: required(listOf(text)),
    settings: required(settingsTold),
    limits: required(limits),
    resume_grace_s: optional(number, 0),
    resume_window_s: optional(number, 0),
    digital_source_type: optional(text, ""),
    watermark: optional(flag, false),
  },
  "session.resumed": {
    session_id: required(text),
    token: required(text),
    grace_s: required(number),
    settings: required(settingsTold),
    responses: required(listOf(resumedResponse)),
  },
  "session.updated": { settings: required(settingsTold) },
  "response.created": {
    response_id: required(text),
    response: required(integer),
    format: required(actualFormat),
    settings: required(settingsTold),
    next_sample: optional(integer),
    discard_samples: optional(integer),
  },
  "response.checkpoint": { response_id: required(text), index: required(integer), data: required(text) },
  "response.words": { response_id: required(text), words: required(listOf(word)) },
  "response.mark": {
    response_id: required(text),
    name: required(text),
    sample: required(integer),
    time_ms: required(number),
  },
  "response.warning": {
    response_id: required(text),
    code: required(text),
    element: required(text),
    raw_start: required(integer),
  },
  "text.flushed": { response_id: required(text), flush: required(integer), end_sample: required(integer) },
  "response.done": {
    response_id: required(text),
    response: required(integer),
    status: required(oneOf("completed", "cancelled", "failed")),
    audio_samples: required(integer),
    audio_ms: required(number),
    nothing_spoken: optional(flag, false),
    first_audio_ms: optional(orNull(number), null),
    heard: optional(orNull(heard), null),
    error: optional(orNull(struct(errorFields, LENIENT)), null),
  },
  "response.heard": { response_id: required(text), heard: required(heard) },
  error: { ...errorFields, response_id: optional(orNull(text), null) },
};

/** The encoding of the packets of an audio message. */
export const AudioKind = Object.freeze({ OPUS: 1, PCM_S16LE: 2, MULAW: 3, ALAW: 4 });

/**
 * A run of packets of one response, in order.
 *
 * @typedef {object} AudioMessage
 * @property {number} kind an `AudioKind`
 * @property {number} response
 * @property {number} sequence 0, 1, 2 ... over the audio messages of the response
 * @property {number} sample_time position of the first sample in the response, as a decoder puts samples out
 * @property {Uint8Array[]} packets Opus: one packet of 20 ms each; other encodings: runs of whole samples
 */
