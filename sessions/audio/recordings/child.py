"""The child process of ``sandbox``: it imports the decoder and little else, as it starts for each recording."""

from __future__ import annotations

import resource
import sys
from contextlib import suppress

from sessions.audio.recordings.decode import InvalidRecording, decode_recording

# Exit status of a child that refuses; why is on its standard error.
BAD_RECORDING = 3


def main(arguments: list[str]) -> int:
    """Decode standard input under limits of the system; samples, float32, go to standard output."""
    sample_rate, max_s, cpu_s, memory_bytes = arguments
    for limit, value in (
        (resource.RLIMIT_CPU, int(cpu_s)),
        (resource.RLIMIT_AS, int(memory_bytes)),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(ValueError, OSError):  # a system that has no such limit
            resource.setrlimit(limit, (value, value))
    try:
        pcm = decode_recording(sys.stdin.buffer.read(), int(sample_rate), float(max_s))
    except InvalidRecording as error:
        print(error, file=sys.stderr)
        return BAD_RECORDING
    sys.stdout.buffer.write(pcm.tobytes())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
