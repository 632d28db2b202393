/** The HTTP API of a server, as far as the page uses it. */

/**
 * @typedef {object} ModelInfo what the loaded model supports
 * @property {string} id
 * @property {"custom_voice" | "voice_design" | "base"} task
 * @property {string[]} supported_parameters
 * @property {Record<string, [number, number]>} parameter_ranges
 * @property {("audio" | "embedding")[]} voice_sources
 * @property {number} embedding_size
 * @property {number} min_sample_s
 * @property {number} max_sample_s
 * @property {"none" | "text" | "audio"} agent what turns the built-in agent answers
 *
 * @typedef {object} StoredVoice
 * @property {string} name
 * @property {string} source `audio`, `embedding` or `blend`
 * @property {boolean} in_context
 * @property {boolean} shared stored by the operator
 * @property {number} [sample_s]
 * @property {string} [speaker_description]
 * @property {string} [ref_text]
 * @property {string} [consent]
 *
 * @typedef {object} VoiceList
 * @property {string[]} voices
 * @property {StoredVoice[]} uploaded_voices
 * @property {boolean} can_change whether this key can store, rename and delete voices
 *
 * @typedef {object} NewVoice
 * @property {string} name
 * @property {string} consent
 * @property {Blob} [audio_sample]
 * @property {string} [ref_text]
 * @property {string} [speaker_embedding] a JSON list
 * @property {string} [speaker_description]
 */

export class HttpError extends Error {
  /** @param {{message: string, code: string, param: string | null}} error @param {number} status */
  constructor({ message, code, param }, status) {
    super(message);
    this.code = code;
    this.param = param;
    this.status = status;
  }
}

const VOICES = "/v1/audio/voices";

export class SpeechApi {
  #access;

  /** @param {{url: URL, api_key?: string}} access address and key, which may change */
  constructor(access) {
    this.#access = access;
  }

  /** @returns {Promise<ModelInfo>} */
  async model() {
    const { data } = await this.#json("/v1/models");
    return data[0];
  }

  /** @returns {Promise<VoiceList>} */
  voices() {
    return this.#json(VOICES);
  }

  /** @returns {Promise<string[]>} names */
  async lexicons() {
    const { lexicons } = await this.#json("/v1/lexicons");
    return lexicons.map((/** @type {{name: string}} */ lexicon) => lexicon.name);
  }

  /** @param {NewVoice} voice @returns {Promise<StoredVoice>} */
  async addVoice(voice) {
    const form = new FormData();
    for (const [name, value] of Object.entries(voice)) if (value) form.append(name, value);
    return (await this.#json(VOICES, { method: "POST", body: form })).voice;
  }

  /** @param {string} name @param {string} new_name @returns {Promise<StoredVoice>} */
  async renameVoice(name, new_name) {
    const body = JSON.stringify({ name: new_name });
    return (await this.#json(addressOf(name), { method: "PATCH", body })).voice;
  }

  /** @param {string} name */
  async deleteVoice(name) {
    await this.#json(addressOf(name), { method: "DELETE" });
  }

  /** @param {string} name @returns {Promise<number[]>} */
  async embedding(name) {
    return (await this.#json(`${addressOf(name)}/embedding`)).embedding;
  }

  /** Synthesize a text. @param {Record<string, unknown>} fields of the speech API @returns {Promise<ArrayBuffer>} WAV */
  async speech(fields) {
    const body = JSON.stringify({ response_format: "wav", stream: false, ...fields });
    return (await this.#request("/v1/audio/speech", { method: "POST", body })).arrayBuffer();
  }

  /** @param {string} path @param {RequestInit} [init] */
  async #json(path, init) {
    return (await this.#request(path, init)).json();
  }

  /**
   * Throws `HttpError` with the server's message.
   *
   * @param {string} path
   * @param {RequestInit} [init]
   */
  async #request(path, init = {}) {
    const { url, api_key } = this.#access;
    const address = new URL(path, url);
    address.protocol = address.protocol.replace("ws", "http");
    const headers = api_key === undefined ? undefined : { Authorization: `Bearer ${api_key}` };
    const answer = await fetch(address, { ...init, headers, cache: "no-store" }).catch(() => {
      throw new HttpError({ message: "no server answers at this address", code: "unreachable", param: null }, 0);
    });
    if (answer.ok) return answer;
    const text = await answer.text();
    throw new HttpError(errorOf(text, answer.status), answer.status);
  }
}

/** @param {string} text of the answer @param {number} status */
function errorOf(text, status) {
  try {
    const { message, code, param = null } = JSON.parse(text).error;
    return { message: String(message), code: String(code), param };
  } catch {
    return { message: `the server answered with status ${status}`, code: `http_${status}`, param: null };
  }
}

/** @param {string} name */
const addressOf = (name) => `${VOICES}/${encodeURIComponent(name)}`;
