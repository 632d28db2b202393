"""Speak through RealtimeTTS and its OpenAI engine: ``realtimetts_client.py openai HTTP_URL MODE`` prints JSON.

The engine has no parameter for the address: OpenAI's package reads ``OPENAI_BASE_URL``. Modes: ``mp3``, the engine's
default; ``pcm``; ``instructions``. Text is fed word by word. Nothing is played: what the player would get is kept.
NLTK's sentences need a download, so the package's own rules split the text.
"""

from __future__ import annotations

import json
import logging
import os
import sys

from client_turns import KEY, TURNS, Warnings, played

# What the server sends. The engine states 22,050 Hz, which is not what OpenAI's PCM has either.
RATE = 24_000


def speak(mode: str) -> list[dict[str, object]]:
    from RealtimeTTS import OpenAIEngine, TextToAudioStream

    instructions = "Speak in a cheerful and positive tone." if mode == "instructions" else None
    form = "pcm" if mode == "pcm" else "mp3"
    engine = OpenAIEngine(
        model="gpt-4o-mini-tts", voice="nova", response_format=form, instructions=instructions, api_key=KEY
    )
    stream = TextToAudioStream(engine, muted=True, tokenizer="rule-based")
    turns = []
    for text in TURNS:
        chunks: list[bytes] = []
        stream.feed(word + " " for word in text.split(" "))
        stream.play(on_audio_chunk=chunks.append, muted=True)
        turns.append(played(text, b"".join(chunks), RATE))
    engine.shutdown()
    return turns


def main() -> None:
    _, url, mode = sys.argv[1:4]
    os.environ["OPENAI_BASE_URL"] = f"{url}/v1"
    logged = Warnings()
    logging.getLogger().addHandler(logged)
    print(json.dumps({"turns": speak(mode), "errors": logged.messages}))
    sys.stdout.flush()
    os._exit(0)  # its player's threads are not daemons


if __name__ == "__main__":
    main()
