"""Use ElevenLabs' own package with voicewire: streamed MP3 and character times.

pip install elevenlabs
ELEVENLABS_API_KEY=any python elevenlabs_tts.py http://127.0.0.1:8765 hello.mp3

Its ``convert_realtime`` takes text by the token; it needs TLS (docs/dialects/elevenlabs.md).
"""

from __future__ import annotations

import base64
import sys
from pathlib import Path

from elevenlabs.client import ElevenLabs

TEXT = "This text uses the protocol of another vendor."


def main() -> None:
    url, path = sys.argv[1:3]
    speech = ElevenLabs(base_url=url).text_to_speech
    with Path(path).open("wb") as file:
        for chunk in speech.stream_with_timestamps("clara", text=TEXT, output_format="mp3_44100_128"):
            file.write(base64.b64decode(chunk.audio_base_64 or ""))
            if chunk.alignment:
                for character, start in zip(
                    chunk.alignment.characters, chunk.alignment.character_start_times_seconds, strict=True
                ):
                    print(f"{start:6.2f}  {character}")


if __name__ == "__main__":
    main()
