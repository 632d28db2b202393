"""Speak through litellm: ``litellm_client.py PROVIDER HTTP_URL MODE`` prints JSON.

Providers as litellm names them. Modes: ``speech`` and ``aspeech``, in the format that the provider's class asks for by
itself; ``instructions``, as in OpenAI's own first example.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys

from client_turns import KEY, TURNS, Warnings, decoded, played

# Before the import: otherwise litellm fetches a price list.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

MODELS = {"openai": "openai/gpt-4o-mini-tts", "elevenlabs": "elevenlabs/eleven_multilingual_v2"}


async def audio(provider: str, url: str, mode: str, text: str) -> bytes:
    import litellm

    api_base = f"{url}/v1" if provider == "openai" else url
    request = {"model": MODELS[provider], "voice": "alloy", "input": text, "api_base": api_base, "api_key": KEY}
    if mode == "instructions":
        request["instructions"] = "Speak in a cheerful and positive tone."
    answer = await litellm.aspeech(**request) if mode == "aspeech" else litellm.speech(**request)
    return bytes(answer.content)


async def main() -> None:
    provider, url, mode = sys.argv[1:4]
    logged = Warnings()
    logging.getLogger("LiteLLM").addHandler(logged)
    turns = [played(text, *decoded(await audio(provider, url, mode, text))) for text in TURNS]
    print(json.dumps({"turns": turns, "errors": logged.messages}))


if __name__ == "__main__":
    asyncio.run(main())
