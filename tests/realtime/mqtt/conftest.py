from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.realtime.live_server import LiveServer
from tests.realtime.mqtt.mqtt_client import Mosquitto, bridged, running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running(tmp_path_factory.mktemp("mosquitto")) as started:
        yield started


@pytest.fixture
async def live(broker: Mosquitto) -> AsyncIterator[LiveServer]:
    async with bridged(broker) as server:
        yield server
