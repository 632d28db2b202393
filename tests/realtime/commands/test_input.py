from __future__ import annotations

import asyncio
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from realtime.commands.input import arriving_text


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)


async def test_text_comes_before_the_stream_ends(pipe):
    reading, writing = pipe
    texts = arriving_text(reading)
    for word in ("Hello ", "there"):
        os.write(writing, word.encode())
        assert await anext(texts) == word
    os.close(writing)
    assert [text async for text in texts] == []


async def gathered(pieces: list[bytes]) -> str:
    reading, writing = os.pipe()
    collecting = asyncio.create_task(collect(reading))
    for piece in pieces:
        os.write(writing, piece)
        await asyncio.sleep(0)
    os.close(writing)
    text = await collecting
    os.close(reading)
    return text


async def collect(descriptor: int) -> str:
    return "".join([text async for text in arriving_text(descriptor)])


@given(raw=st.text().map(str.encode) | st.binary(), cuts=st.lists(st.integers(0, 100), max_size=5).map(sorted))
def test_any_cut_of_the_bytes_gives_the_same_text(raw, cuts):
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, None], strict=True)]
    assert asyncio.run(gathered(pieces)) == raw.decode("utf-8", errors="replace")


async def test_nothing_waits_for_input_that_never_comes(pipe):
    reading, writing = pipe
    waiting = asyncio.create_task(collect(reading))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    os.close(writing)
