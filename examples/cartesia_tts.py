"""Use Cartesia's own package with voicewire: text token by token in, audio and word times out.

pip install "cartesia[websockets]"
CARTESIA_API_KEY=any python cartesia_tts.py http://127.0.0.1:8765 hello.wav
"""

from __future__ import annotations

import base64
import sys
import wave

from cartesia import Cartesia

RATE = 24_000
FORMAT = {"container": "raw", "encoding": "pcm_s16le", "sample_rate": RATE}
VOICE = {"mode": "id", "id": "clara"}


def main() -> None:
    url, path = sys.argv[1:3]
    client = Cartesia(base_url=url, websocket_base_url=url.replace("http", "ws", 1))
    pcm = b""
    with client.tts.websocket_connect() as connection:
        context = connection.context(model_id="sonic-3", voice=VOICE, output_format=FORMAT, add_timestamps=True)
        for word in "This text uses the protocol of another vendor.".split():
            context.push(f"{word} ")
        context.no_more_inputs()
        for event in context.receive():
            match event.type:
                case "chunk":
                    pcm += base64.b64decode(event.data)
                case "timestamps":
                    times = event.word_timestamps
                    for word, start, end in zip(times.words, times.start, times.end, strict=True):
                        print(f"{start:6.2f} {end:6.2f}  {word}")
                case "error":
                    raise SystemExit(str(event))
                case "done":
                    break
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(pcm)


if __name__ == "__main__":
    main()
