from __future__ import annotations

import pytest

from realtime.errors import RULES, http_status
from realtime.protocol.dialects.http_status import status_of
from realtime.protocol.events import ErrorBody
from sessions.errors import ErrorInfo


@pytest.mark.parametrize("code", RULES)
@pytest.mark.parametrize("retryable", [True, False])
def test_statuses_inside_messages_are_those_of_http(code: str, retryable: bool) -> None:
    body = ErrorBody(code=code, message="", retryable=retryable)
    assert status_of(body) == http_status(ErrorInfo(code, "", retryable=retryable))
