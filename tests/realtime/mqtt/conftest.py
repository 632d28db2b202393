from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.realtime.live import Live
from tests.realtime.mqtt.agents import bridged
from tests.realtime.mqtt.mosquitto import Mosquitto, running


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with running(tmp_path_factory.mktemp("mosquitto")) as started:
        yield started


@pytest.fixture
async def live(broker: Mosquitto) -> AsyncIterator[Live]:
    async with bridged(broker) as server:
        yield server
