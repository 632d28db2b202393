"""Graphs are recorded while no recording of a voice is encoded in the same process, and the other way round. No torch.

What one thread asks of the device's memory while another records can break the recording.
"""

from __future__ import annotations

import threading

CAPTURE_LOCK = threading.Lock()
