"""State in containers that speech is synthetic, in a term of IPTC's vocabulary of digital source types."""

from __future__ import annotations

import struct

SOURCE_TYPE = "trainedAlgorithmicMedia"
SOURCE_TYPE_URL = f"http://cv.iptc.org/newscodes/digitalsourcetype/{SOURCE_TYPE}"
SOURCE_TYPE_FIELD = "DigitalSourceType"
COMMENT = "AI-generated speech"
SOFTWARE = "voicewire"
UTF_8 = b"\x03"


def vorbis_comments() -> bytes:
    """Vendor and comments, as in Ogg Opus and FLAC."""
    comments = (f"COMMENT={COMMENT}", f"{SOURCE_TYPE_FIELD.upper()}={SOURCE_TYPE_URL}")
    return _counted(SOFTWARE) + struct.pack("<I", len(comments)) + b"".join(map(_counted, comments))


def _counted(text: str) -> bytes:
    return struct.pack("<I", len(text)) + text.encode("ascii")


def wav_info_chunk() -> bytes:
    """A LIST chunk of the kind INFO."""
    body = b"INFO" + _info(b"ICMT", f"{COMMENT}; {SOURCE_TYPE_URL}") + _info(b"ISFT", SOFTWARE)
    return b"LIST" + struct.pack("<I", len(body)) + body


def _info(name: bytes, text: str) -> bytes:
    """A text with its final zero; chunks have an even length."""
    data = text.encode("ascii") + b"\0"
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)


def id3_tag() -> bytes:
    """An ID3v2.4 tag, for the start of an MP3 stream."""
    frames = [
        _id3_frame(b"COMM", UTF_8 + b"eng\0" + COMMENT.encode()),
        _id3_frame(b"TXXX", UTF_8 + f"{SOURCE_TYPE_FIELD}\0{SOURCE_TYPE_URL}".encode()),
    ]
    body = b"".join(frames)
    return b"ID3\x04\x00\x00" + _synchsafe(len(body)) + body


def _id3_frame(name: bytes, data: bytes) -> bytes:
    return name + _synchsafe(len(data)) + bytes(2) + data


def _synchsafe(number: int) -> bytes:
    """Four bytes of seven bits: none of them can be mistaken for the start of a frame of sound."""
    return bytes(number >> shift & 0x7F for shift in (21, 14, 7, 0))
