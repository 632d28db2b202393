from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from realtime.errors import LocalProtocolError
from realtime.mqtt.call_bridge import MqttCallBridge
from realtime.mqtt.connection import Publication
from realtime.protocol import model
from realtime.protocol.mqtt.topics import Topics


async def test_call_event_above_broker_limit_affects_nothing_else() -> None:
    refused: list[str] = []
    said: list[Publication] = []
    metrics = SimpleNamespace(refused=refused.append)
    server = SimpleNamespace(config=SimpleNamespace(mqtt=SimpleNamespace(max_queued_per_session=1)), metrics=metrics)

    async def publish(publication: Publication) -> None:
        said.append(publication)
        raise LocalProtocolError("the broker takes 100 bytes in a message, this one has 101")

    line = cast(Any, SimpleNamespace(publish=publish))
    desk = MqttCallBridge(
        cast(Any, server), cast(Any, None), cast(Any, None), line, Topics("voicewire", "servers"), "worker"
    )
    await asyncio.wait_for(desk._publish("call", model.CallDtmf(call_id="call", digit="1")), 1)
    assert said
    assert refused == ["internal_error"]
