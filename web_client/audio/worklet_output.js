/** Voices that play through an audio worklet. */

import { Emitter } from "../emitter.js";

/**
 * @typedef {{happened: import("./mixer.js").VoiceEvent, level: import("./mixer.js").VoiceLevel}} OutputEvents
 * @extends {Emitter<OutputEvents>}
 */
export class WorkletOutput extends Emitter {
  kind = "worklet";

  /** @param {AudioContext} context */
  static async open(context) {
    await context.audioWorklet.addModule(new URL("./worklet.js", import.meta.url));
    return new WorkletOutput(context);
  }

  /** @param {AudioContext} context */
  constructor(context) {
    super();
    this.node = new AudioWorkletNode(context, "voicewire", { numberOfInputs: 0, outputChannelCount: [1] });
    this.node.connect(context.destination);
    this.node.port.onmessage = ({ data }) => {
      for (const event of data.happened ?? []) this.emit("happened", event);
      for (const level of data.levels ?? []) this.emit("level", level);
    };
  }

  /** Send a command; the buffer of a push is transferred. @param {import("./mixer.js").MixerCommand} command */
  handleCommand(command) {
    this.node.port.postMessage(command, command.type === "push" ? [command.pcm.buffer] : []);
  }

  close() {
    this.node.port.postMessage({ type: "close" });
    this.node.disconnect();
  }
}
