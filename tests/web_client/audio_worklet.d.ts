/** What is there in an audio worklet, and not in TypeScript's own library. */

declare const currentFrame: number;
declare const sampleRate: number;

declare class AudioWorkletProcessor {
  readonly port: MessagePort;
}

declare function registerProcessor(name: string, processor: new () => AudioWorkletProcessor): void;
