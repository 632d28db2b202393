"""A form with a recording in it (multipart), read no further than the limits allow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass

from python_multipart.multipart import parse_options_header
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from realtime.errors import RequestRefused
from realtime.transports.disconnect import client_disconnected

MAX_FIELDS = 16
# An embedding of 2,048 numbers takes some 50,000.
MAX_FIELD_BYTES = 262_144


@dataclass(frozen=True, slots=True)
class UploadForm:
    fields: dict[str, str]
    files: dict[str, bytes]

    def text(self, *names: str) -> str:
        """Of the first of these fields that is there."""
        return next((self.fields[name].strip() for name in names if name in self.fields), "")

    def file(self, *names: str) -> bytes | None:
        return next((self.files[name] for name in names if name in self.files), None)


async def read_form(request: Request, max_file_bytes: int, timeout_s: float) -> UploadForm:
    """Raises ``RequestRefused``, at once where a header tells that it must."""
    limit = max_file_bytes + MAX_FIELD_BYTES
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or b"boundary" not in options:
        raise RequestRefused("invalid_request", "the body must be multipart/form-data, with its boundary in the header")
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length) > limit:
        raise _too_big(max_file_bytes)
    stream = _limited(request, limit, max_file_bytes)
    parser = MultiPartParser(request.headers, stream, max_files=1, max_fields=MAX_FIELDS, max_part_size=MAX_FIELD_BYTES)
    try:
        async with asyncio.timeout(timeout_s):
            form = await parser.parse()
            return await _taken(form, max_file_bytes)
    except ClientDisconnect:
        raise client_disconnected() from None
    except TimeoutError:
        raise RequestRefused("body_timeout", "the body did not arrive in time") from None
    except (MultiPartException, UnicodeError) as error:
        raise RequestRefused("invalid_request", f"the form cannot be read: {_why(error)}") from None


async def _limited(request: Request, limit: int, max_file_bytes: int) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for piece in request.stream():
        num_bytes += len(piece)
        if num_bytes > limit:
            raise _too_big(max_file_bytes)
        yield piece


async def _taken(form: FormData, max_file_bytes: int) -> UploadForm:
    """What the form holds, its temporary files closed."""
    taken = UploadForm({}, {})
    try:
        for name, value in form.multi_items():
            if isinstance(value, UploadFile):
                if (value.size or 0) > max_file_bytes:
                    raise _too_big(max_file_bytes)
                taken.files[name] = await value.read()
            else:
                taken.fields[name] = value
    finally:
        await form.close()
    return taken


def _too_big(max_file_bytes: int) -> RequestRefused:
    return RequestRefused(
        "message_too_big", f"a recording has at most max_upload_bytes, {max_file_bytes}", "audio_sample"
    )


def _why(error: Exception) -> str:
    return error.message if isinstance(error, MultiPartException) else type(error).__name__
