from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.realtime.live_server import LiveServer, live_server


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    """A server with default settings; after the test nothing may be left behind."""
    async with live_server() as server:
        yield server
