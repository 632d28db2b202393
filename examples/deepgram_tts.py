"""Use Deepgram's own package with voicewire: text token by token in, audio out.

pip install deepgram-sdk
DEEPGRAM_API_KEY=any python deepgram_tts.py http://127.0.0.1:8765 hello.wav
"""

from __future__ import annotations

import sys
import wave

from deepgram import DeepgramClient
from deepgram.environment import DeepgramClientEnvironment
from deepgram.speak.v1.types import SpeakV1Text

RATE = 24_000


def main() -> None:
    url, path = sys.argv[1:3]
    socket = url.replace("http", "ws", 1)
    environment = DeepgramClientEnvironment(base=url, production=socket, agent=socket, agent_rest=url)
    client = DeepgramClient(environment=environment)
    pcm = b""
    with client.speak.v1.connect(model="aura-2-clara-en", encoding="linear16", sample_rate=RATE) as connection:
        for word in "This text uses the protocol of another vendor.".split():
            connection.send_text(SpeakV1Text(text=f"{word} "))
        connection.send_flush()
        for message in connection:
            if isinstance(message, bytes):
                pcm += message
            elif message.type == "Flushed":
                break
        connection.send_close()
    with wave.open(path, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(pcm)


if __name__ == "__main__":
    main()
