/** Whose fault a broken conversation is. `code` is stable and machine-readable. */

class ProtocolError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {string | null} [param] where it went wrong
   */
  constructor(code, message, param = null) {
    super(message);
    this.name = new.target.name;
    this.code = code;
    this.param = param;
  }
}

/** The peer sent what it must not. */
export class RemoteProtocolError extends ProtocolError {}

/** Our own code tried to send what it must not. */
export class LocalProtocolError extends ProtocolError {
  /** @param {string} message */
  constructor(message) {
    super("internal_error", message);
  }
}
