"""Answer a telephone number: Twilio's webhook, and an agent that controls its calls through voicewire.

    pip install voicewire
    TWILIO_AUTH_TOKEN=... PUBLIC_URL=https://voice.example.com python examples/twilio.py

Twilio requests ``POST /voice`` for each call. The answer connects the call's media stream to voicewire, which runs
beside this program with ``calls.twilio_auth_token`` and ``calls.public_url`` set (docs/guides/calls.md). A proxy serves
both at the public URL: ``/voice`` leads here, ``/v1/`` to voicewire. VOICEWIRE_URL and VOICEWIRE_API_KEY hold the URL
and key of voicewire.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from xml.sax.saxutils import quoteattr

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from realtime.protocol.telephony.twilio import is_signed

TOKEN = os.environ.get("TWILIO_AUTH_TOKEN", "")
PUBLIC_URL = os.environ.get("PUBLIC_URL", "https://voice.example.com")
VOICEWIRE = os.environ.get("VOICEWIRE_URL", "ws://127.0.0.1:8765")
KEY = os.environ.get("VOICEWIRE_API_KEY", "")
GREETING = "Hello, and thank you for calling. Press any key, and I will read it back to you. Press hash to hang up."


async def voice(request: Request) -> Response:
    """Return the TwiML of a call."""
    fields = {name: str(value) for name, value in (await request.form()).items()}
    if not is_signed(TOKEN, PUBLIC_URL + request.url.path, request.headers.get("x-twilio-signature", ""), fields):
        return Response(status_code=403)
    return Response(twiml(fields.get("From", "")), media_type="application/xml")


def twiml(caller: str) -> str:
    line = PUBLIC_URL.replace("https://", "wss://", 1) + "/v1/calls/twilio"
    parameter = f'<Parameter name="from" value={quoteattr(caller)}/>'
    return f"<Response><Connect><Stream url={quoteattr(line)}>{parameter}</Stream></Connect></Response>"


async def answer_calls(url: str, key: str) -> None:
    """Control every call; reconnect if the server restarts."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async for agent in connect(f"{url}/v1/calls", additional_headers=headers):
        with suppress(ConnectionClosed):
            async for message in agent:
                await attend(agent, json.loads(message))


async def attend(agent: ClientConnection, event: dict[str, Any]) -> None:
    async def tell(**command: Any) -> None:
        await agent.send(json.dumps({"call_id": event["call_id"], **command}))

    match event["type"]:
        case "call.connected":
            await tell(type="say", text=GREETING)
        case "call.dtmf" if event["digit"] == "#":
            await tell(type="interrupt")
            await tell(type="say", text="Goodbye.")
            await tell(type="hang_up", after_speech=True)
        case "call.dtmf":
            await tell(type="interrupt")
            await tell(type="say", text=f"You pressed {event['digit'].replace('*', 'star')}.")
        case "reply.interrupted" if event["cause"] == "caller":
            print("interrupted after:", event["heard"]["text"])


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    agent = asyncio.create_task(answer_calls(VOICEWIRE, KEY))
    yield
    agent.cancel()


app = Starlette(routes=[Route("/voice", voice, methods=["POST"])], lifespan=lifespan)

if __name__ == "__main__":
    if not TOKEN:
        raise SystemExit("TWILIO_AUTH_TOKEN must be set")
    uvicorn.run(app, port=8080)
