from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.realtime.live import Live, live_server


@pytest.fixture
async def live() -> AsyncIterator[Live]:
    """A server with default settings; after the test nothing may be left behind."""
    async with live_server() as server:
        yield server
        await server.freed()
