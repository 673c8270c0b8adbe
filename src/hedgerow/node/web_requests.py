"""Questions to services over HTTP, by h11 on the event loop: nobody waits for them but whoever asked.
 The whole of a question, from looking up the host to the last byte of the answer, has `timeout_s`; an answer
has `MAX_ANSWER_BYTES`. Redirections are not followed: what was asked there was asked of the host that was
configured.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

from hedgerow.errors import ConnectError, reason_of
from hedgerow.node.authority import authority

MAX_ANSWER_BYTES = 256 * 1024
READ_BYTES = 16 * 1024


class WebAnswer(NamedTuple):
    status: int
    body: bytes


async def ask_web(
    url: str,
    timeout_s: float,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> WebAnswer:
    """Raises ConnectError when there is no answer, or none that can be read."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _ask(url, method, headers or {}, body)
    except TimeoutError:
        raise ConnectError(f"{url}: no answer in {timeout_s:g} s") from None
    except (OSError, ssl.SSLError) as error:
        raise ConnectError(f"{url}: {reason_of(error)}") from None
    except (h11.RemoteProtocolError, h11.LocalProtocolError) as error:
        raise ConnectError(f"{url}: {error}") from None


async def _ask(url: str, method: str, headers: Mapping[str, str], body: bytes) -> WebAnswer:
    parts = urlsplit(url)
    is_tls, host = parts.scheme == "https", parts.hostname or ""
    context = ssl.create_default_context() if is_tls else None
    port = parts.port or (443 if is_tls else 80)
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    try:
        http = h11.Connection(h11.CLIENT)
        target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        fields = {
            "Host": authority(host, parts.port),
            "Connection": "close",
            "Content-Length": str(len(body)),
        }
        head = h11.Request(method=method, target=target, headers=list({**fields, **headers}.items()))
        writer.write((http.send(head) or b"") + (http.send(h11.Data(body)) or b""))
        writer.write(http.send(h11.EndOfMessage()) or b"")
        return await _read(http, reader, url)
    finally:
        writer.close()
        with suppress(OSError, ssl.SSLError, asyncio.CancelledError):
            await writer.wait_closed()


async def _read(http: h11.Connection, reader: asyncio.StreamReader, url: str) -> WebAnswer:
    status, body = 0, bytearray()
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            http.receive_data(await reader.read(READ_BYTES))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_ANSWER_BYTES:
                raise ConnectError(f"{url}: an answer of more than {MAX_ANSWER_BYTES} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return WebAnswer(status, bytes(body))
        elif not isinstance(event, h11.InformationalResponse):
            raise ConnectError(f"{url}: the connection was closed before the answer")
