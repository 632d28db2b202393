/** A protocol error. `code` is stable and machine-readable. */

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

/** The peer violated the protocol. */
export class RemoteProtocolError extends ProtocolError {}

/** The local code violated the protocol. */
export class LocalProtocolError extends ProtocolError {
  /** @param {string} message */
  constructor(message) {
    super("internal_error", message);
  }
}
