"""Everything that one stream says, in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.api import Pcm, RequestFinished, SpeechChunk, SpeechEvent, SpeechStream


@dataclass
class RecordedStream:
    events: list[SpeechEvent]

    @property
    def chunks(self) -> list[SpeechChunk]:
        return [event for event in self.events if isinstance(event, SpeechChunk)]

    @property
    def pcm(self) -> Pcm:
        return np.concatenate([np.zeros(0, np.float32), *(chunk.pcm for chunk in self.chunks)])

    @property
    def num_samples(self) -> int:
        return max((chunk.start_sample + len(chunk.pcm) for chunk in self.chunks), default=0)

    @property
    def end(self) -> RequestFinished:
        [end] = [event for event in self.events if isinstance(event, RequestFinished)]
        assert self.events[-1] is end
        return end


async def listen(stream: SpeechStream) -> RecordedStream:
    return RecordedStream([event async for event in stream])
