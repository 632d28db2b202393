from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.realtime.dialects.vendor_clients import KEY
from tests.realtime.live_server import LiveServer, live_server


@pytest.fixture
async def live() -> AsyncIterator[LiveServer]:
    """A server that wants a key; after the test nothing may be left behind."""
    async with live_server(auth__api_keys=f"agent:{KEY}") as server:
        yield server
