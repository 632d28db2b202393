from __future__ import annotations

from dataclasses import replace

from realtime.protocol.dialects.openai_beta import is_beta
from tests.realtime.dialects.dialect_harness import handshake


def test_browsers_ask_for_it_in_a_sub_protocol() -> None:
    offered = ("realtime", "openai-insecure-api-key.KEY", "openai-beta.realtime-v1")
    assert is_beta(replace(handshake(), subprotocols=offered))
    assert not is_beta(replace(handshake(), subprotocols=offered[:2]))
