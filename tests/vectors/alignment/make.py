"""Makes ``sentence.npz``: a sentence spoken by flite, with the times that flite tells for its words.

python -m tests.vectors.alignment.make
"""

from pathlib import Path

import numpy as np

from benchmarks.word_times import by_teacher, written_words

TEXT = "Before we go on, may I record this conversation?"

if __name__ == "__main__":
    spoken = by_teacher(TEXT, "slt")
    assert spoken is not None
    np.savez_compressed(
        Path(__file__).with_name("sentence.npz"),
        text=TEXT,
        pcm=np.round(spoken.pcm * 32767).astype(np.int16),
        words=np.array(written_words(TEXT)),
        times_ms=1000 * np.array(spoken.times),
    )
