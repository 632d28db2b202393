/** Schemas of JSON values, and their validation. */

import { RemoteProtocolError } from "./errors.js";

/**
 * @typedef {(value: unknown, path: string) => unknown} Check returns the value, or throws; `path` is its position
 * @typedef {{check: Check, required: boolean, default?: unknown}} Field
 * @typedef {Record<string, Field>} Fields
 */

/**
 * @param {string} what
 * @param {string} path
 * @returns {never}
 */
function refuse(what, path) {
  throw new RemoteProtocolError("invalid_event", `${path || "the event"}: ${what}`, path || null);
}

/**
 * @param {string} what
 * @param {(value: any) => boolean} holds
 * @returns {Check}
 */
const that = (what, holds) => (value, path) => (holds(value) ? value : refuse(`expected ${what}`, path));

export const text = that("text", (value) => typeof value === "string");
export const flag = that("true or false", (value) => typeof value === "boolean");
export const number = that("a number", Number.isFinite);
export const integer = that("a whole number", Number.isInteger);

/** @param {RegExp} pattern */
export const matching = (pattern) =>
  that(`text like ${pattern.source}`, (value) => typeof value === "string" && pattern.test(value));

/** @param {...string} values */
export const oneOf = (...values) => that(`one of ${values.join(", ")}`, (value) => values.includes(value));

/** @param {Check} check @returns {Check} */
export const orNull = (check) => (value, path) => (value === null ? null : check(value, path));

/** @param {Check} check @returns {Check} */
export const listOf = (check) => (value, path) => {
  if (!Array.isArray(value)) return refuse("expected a list", path);
  return value.map((item) => check(item, `${path}[...]`));
};

/** @param {Check} check @returns {Check} */
export const mapOf = (check) => (value, path) => {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return refuse("expected an object", path);
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, check(item, `${path}[...]`)]));
};

/** @param {Check} check @returns {Field} a field that must be there */
export const required = (check) => ({ check, required: true });

/** @param {Check} check @param {unknown} [fallback] @returns {Field} one that may be left out */
export const optional = (check, fallback = undefined) => ({ check, required: false, default: fallback });

/**
 * An object. The fields come out in the order of the table; those left out take their default, or stay out.
 *
 * @param {Fields} fields
 * @param {{strict: boolean}} options strict: an unknown field is an error; else it is ignored
 * @returns {Check}
 */
export function struct(fields, { strict }) {
  return (value, path) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) refuse("expected an object", path);
    const given = /** @type {Record<string, unknown>} */ (value);
    /** @type {Record<string, unknown>} */
    const found = {};
    for (const [key, field] of Object.entries(fields)) {
      if (Object.hasOwn(given, key)) found[key] = field.check(given[key], join(path, key));
      else if (field.required) refuse("is missing", join(path, key));
      else if (field.default !== undefined) found[key] = field.default;
    }
    const unknown = strict ? Object.keys(given).find((key) => !Object.hasOwn(fields, key)) : undefined;
    return unknown === undefined ? found : refuse("is unknown", join(path, unknown));
  };
}

/** @param {string} path @param {string} key */
const join = (path, key) => (path ? `${path}.${key}` : key);
