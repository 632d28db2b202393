"""Utterances on disk as plain growing files, so that training can read while synthesis still writes.

A folder holds one shard per writer: ``NN.pcm`` (int16, at the writer's rate), ``NN.text`` (UTF-8), ``NN.labels`` and
``NN.index``.
Nothing is ever rewritten; an utterance exists once its index record does, and that is written last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from training.flite import Speech

INDEX_RECORD = np.dtype(
    [
        ("number", "<i8"),  # which sentence of the stream of texts
        ("pcm_start", "<i8"),
        ("text_start", "<i8"),
        ("label_start", "<i8"),
        ("num_samples", "<i4"),
        ("text_bytes", "<i4"),
        ("num_labels", "<i4"),
        ("voice", "<i4"),
    ]
)
LABEL_RECORD = np.dtype([("end_sample", "<i4"), ("phoneme", "<u1")])


class ShardWriter:
    """Appends utterances to one shard of ``folder``."""

    def __init__(self, folder: Path, shard: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._files = {kind: (folder / f"{shard:02}.{kind}").open("wb") for kind in ("pcm", "text", "labels", "index")}
        self._record = np.zeros(1, INDEX_RECORD)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()

    def append(self, number: int, voice: int, text: str, speech: Speech) -> None:
        encoded = text.encode()
        labels = np.empty(len(speech.phonemes), LABEL_RECORD)
        labels["end_sample"], labels["phoneme"] = speech.end_samples, speech.phonemes
        for kind, data in (("pcm", speech.pcm.tobytes()), ("text", encoded), ("labels", labels.tobytes())):
            self._files[kind].write(data)
            self._files[kind].flush()
        record = self._record
        record["number"], record["voice"] = number, voice
        record["num_samples"], record["text_bytes"], record["num_labels"] = len(speech.pcm), len(encoded), len(labels)
        self._files["index"].write(record.tobytes())
        self._files["index"].flush()
        record["pcm_start"] += len(speech.pcm)
        record["text_start"] += len(encoded)
        record["label_start"] += len(labels)


@dataclass(frozen=True)
class Utterance:
    number: int
    voice: int
    text: str
    speech: Speech


class SpeechStore:
    """Every utterance finished so far; ``refresh`` takes in what was written since, and positions never change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # One record per utterance.
        self.records = np.zeros(0, INDEX_RECORD)
        # The shard of each utterance.
        self.shards = np.zeros(0, np.int32)
        self._taken: dict[int, int] = {}
        self._maps: dict[tuple[int, str], npt.NDArray[np.generic]] = {}
        self.refresh()

    def refresh(self) -> int:
        """Take in new utterances and return how many there are now."""
        for path in sorted(self.folder.glob("*.index")):
            shard = int(path.stem)
            taken = self._taken.get(shard, 0)
            count = path.stat().st_size // INDEX_RECORD.itemsize - taken
            if count <= 0:
                continue
            new = np.fromfile(path, INDEX_RECORD, count, offset=taken * INDEX_RECORD.itemsize)
            self._taken[shard] = taken + len(new)
            self.records = np.concatenate([self.records, new])
            self.shards = np.concatenate([self.shards, np.full(len(new), shard, np.int32)])
        self._maps.clear()
        return len(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def num_samples(self) -> int:
        return int(self.records["num_samples"].sum())

    def pcm(self, position: int) -> npt.NDArray[np.int16]:
        """int16 [num_samples], a view of the file."""
        return self._slice(position, "pcm", np.dtype(np.int16), "pcm_start", "num_samples")

    def text(self, position: int) -> str:
        return self._slice(position, "text", np.dtype(np.uint8), "text_start", "text_bytes").tobytes().decode()

    def texts(self) -> Sequence[str]:
        return [self.text(position) for position in range(len(self))]

    def labels(self, position: int) -> npt.NDArray[np.void]:
        """Records of LABEL_RECORD: each phoneme and the sample at which it ends."""
        return self._slice(position, "labels", LABEL_RECORD, "label_start", "num_labels")

    def __getitem__(self, position: int) -> Utterance:
        record, labels = self.records[position], self.labels(position)
        speech = Speech(self.pcm(position), labels["phoneme"], labels["end_sample"])
        return Utterance(int(record["number"]), int(record["voice"]), self.text(position), speech)

    def _slice(self, position: int, kind: str, dtype: np.dtype, start: str, count: str) -> npt.NDArray[Any]:
        shard = int(self.shards[position])
        if (shard, kind) not in self._maps:
            self._maps[shard, kind] = np.memmap(self.folder / f"{shard:02}.{kind}", dtype, mode="r")
        begin = int(self.records[position][start])
        return self._maps[shard, kind][begin : begin + int(self.records[position][count])]


def frame_phonemes(
    labels: npt.NDArray[np.void], offset_samples: int, num_frames: int, frame_samples: float
) -> npt.NDArray[np.uint8]:
    """The phoneme at the middle of each frame, uint8 [num_frames], for audio that starts ``offset_samples`` later.

    ``offset_samples`` is the silence put in front; past the end the last phoneme (silence) holds.
    """
    middles = (np.arange(num_frames) + 0.5) * frame_samples - offset_samples
    which = np.searchsorted(labels["end_sample"], middles, side="right")
    return labels["phoneme"][np.minimum(which, len(labels) - 1)]
