"""The client of ``examples/native.py`` under faults: ``native_client.py native HTTP_URL MODE`` prints JSON.

Modes: ``begins`` (turns are cancelled while they begin), ``refused`` (more turns than a session may have), ``gone``
(the line breaks in every state, the session cannot be resumed, and questions come after it). Then two turns are heard
whole. Runs where aiohttp is.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

from client_turns import KEY, LONG, TURN_TIMEOUT_S, TURNS, played
from native import Sound, Turn, Voicewire, VoicewireError

# Of a session, as the server's settings have it.
MOST_TURNS = 8


async def hear(turn: Turn, text: str) -> dict[str, object]:
    pcm = b"".join([told.pcm async for told in turn if isinstance(told, Sound)])
    return played(text, pcm, turn.sample_rate)


async def speak(client: Voicewire, text: str) -> dict[str, object]:
    turn = await client.begin()
    for token in text.split(" "):
        await turn.push(token + " ")
    await turn.end()
    return await asyncio.wait_for(hear(turn, text), TURN_TIMEOUT_S)


async def begins(client: Voicewire) -> None:
    """Cancelled at each of its steps, with the line open and without: no place stays taken."""
    for connected in (False, True):
        for num_steps in range(2 * MOST_TURNS):
            if connected:
                await client.connect()
            beginning = asyncio.create_task(client.begin())
            for _ in range(num_steps):
                await asyncio.sleep(0)
            if beginning.done():
                await beginning.result().cancel()
            beginning.cancel()
            with suppress(asyncio.CancelledError):
                await beginning


async def refusal(client: Voicewire) -> str | None:
    try:
        await speak(client, TURNS[0])
    except VoicewireError as error:
        return error.code
    return None


async def refused(client: Voicewire) -> None:
    for _ in range(3):
        held = [await client.begin() for _ in range(MOST_TURNS)]
        assert await refusal(client) == "limit_exceeded"
        for turn in held:
            await turn.cancel()
    assert len(client._turns) <= 2 * MOST_TURNS + 1, client._turns


async def gone(client: Voicewire) -> None:
    for state in ("begun", "written", "sounding", "over"):
        turn = await client.begin()
        if state != "begun":
            await turn.push(TURNS[0] if state == "over" else LONG)
        if state == "sounding":
            async for _ in turn:
                break
        if state == "over":
            await turn.end()
            await hear(turn, TURNS[0])
        client._token = "forged"
        client._socket._response.connection.transport.abort()
        following = await speak(client, TURNS[1]) if state == "written" else None
        assert LONG.startswith(await asyncio.wait_for(turn.cancel(0.5), 1.0) or "")
        await turn.push("Nobody hears this.")
        with suppress(VoicewireError):
            await asyncio.wait_for(hear(turn, LONG), TURN_TIMEOUT_S)
        assert following is None or following["duration_s"] > 1.0
        assert turn.over


async def main() -> None:
    _, url, mode = sys.argv[1:4]
    async with Voicewire(url, KEY) as client:
        await {"begins": begins, "refused": refused, "gone": gone}[mode](client)
        turns = [await speak(client, text) for text in TURNS]
    assert not asyncio.all_tasks() - {asyncio.current_task()}
    print(json.dumps({"turns": turns[-2:], "errors": []}))


if __name__ == "__main__":
    asyncio.run(main())
