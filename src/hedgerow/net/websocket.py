"""MQTT over WebSocket (MQTT 5 §6), on the sans-IO half of the `websockets` library.

The stream of MQTT packets is the concatenation of the binary frames, wherever their borders fall
(MQTT-6.0.0-2); a text frame ends the connection (MQTT-6.0.0-1). What the machine has to say leaves as
one binary frame per flush. The machine's connection begins with the TCP connection, so that its time
to CONNECT and its count of connections bound the opening handshake too.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from http import HTTPStatus
from urllib.parse import urlsplit

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from hedgerow.net.eventlog import TransportFailed
from hedgerow.net.link import FULL_READ, Link

SUBPROTOCOLS = [Subprotocol("mqtt"), Subprotocol("mqttv3.1")]  # MQTT-6.0.0-3, -4; the second is that of 3.1

# One frame may carry a largest packet and a chunk of its neighbours; beyond it the close code is 1009.
MAX_FRAME_EXTRA = 64 * 1024

# Peers could fill the log through the library's own lines; what matters is logged by this module.
_library_logger = logging.getLogger("hedgerow.net.websocket.library")
_library_logger.disabled = True


class WebSocketLink(Link):
    __slots__ = ("congested", "websocket")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.congested = False
        self.websocket = ServerProtocol(
            subprotocols=SUBPROTOCOLS,
            max_size=self.server.limits.packet_bytes + MAX_FRAME_EXTRA,
            logger=_library_logger,
        )
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        websocket = self.websocket
        websocket.receive_data(data)
        chunks: list[bytes | bytearray | memoryview] = []
        for event in websocket.events_received():
            if isinstance(event, Request):
                websocket.send_response(self._answer(event))
            elif isinstance(event, Frame):
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    chunks.append(event.data)
                elif event.opcode is Opcode.TEXT:
                    self._report("a text frame [MQTT-6.0.0-1]")
                    websocket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT takes binary frames")
                    break
        if chunks:
            self.connection.receive_data(b"".join(chunks), self.server.clock())
        self._send_frames()
        self.server.flush()
        if len(data) >= FULL_READ:
            self.rest()

    def _answer(self, request: Request) -> Response:
        """The opening handshake; every path is taken, `/mqtt` being the usual one."""
        websocket = self.websocket
        origins = request.headers.get_all("Origin")
        if self.listener.loopback and not all(map(is_loopback_origin, origins)):
            # A listener on loopback is open to this machine alone, but a browser on this machine
            # runs pages of strangers, and the same-origin policy does not cover WebSocket.
            self._report(f"a page of {', '.join(origins)!r} asked for a listener on loopback")
            return websocket.reject(HTTPStatus.FORBIDDEN, "Pages of other hosts may not connect here.\n")
        response = websocket.accept(request)
        if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
            self._report(f"the opening handshake failed: {websocket.handshake_exc}")
        return response

    def _send_frames(self) -> None:
        """Write what the WebSocket layer itself has to say: the handshake, PONG, CLOSE."""
        websocket = self.websocket
        frames = websocket.data_to_send()
        if not frames:
            return
        if websocket.state is State.CONNECTING and frames == [SEND_EOF]:
            # Not an HTTP request at all: the library hangs up without a word.
            self._report(f"the opening handshake failed: {websocket.handshake_exc}")
            text = "This port speaks MQTT over WebSocket.\n"
            frames.insert(0, websocket.reject(HTTPStatus.BAD_REQUEST, text).serialize())
        # PONGs for a peer that sends PINGs and reads nothing would grow without bound. RFC 6455 §5.5.3
        # lets us answer the latest PING alone, so those of a congested link are dropped.
        if not (self.congested and websocket.state is State.OPEN):
            self.transport.write(b"".join(frames))
        if SEND_EOF in frames:
            super().close()

    def transmit(self) -> None:
        connection = self.connection
        data = connection.take_output()
        if data and self.websocket.state is State.OPEN:
            self.websocket.send_binary(data)
            self.transport.write(b"".join(self.websocket.data_to_send()))
        self.follow(connection)

    def pause_writing(self) -> None:
        self.congested = True
        super().pause_writing()

    def resume_writing(self) -> None:
        self.congested = False
        super().resume_writing()

    def close(self) -> None:
        if self.websocket.state is State.OPEN:
            stopping = self.server.stopping
            self.websocket.send_close(CloseCode.GOING_AWAY if stopping else CloseCode.NORMAL_CLOSURE)
            self.transport.write(b"".join(self.websocket.data_to_send()))
        super().close()

    def _report(self, reason: str) -> None:
        failed = TransportFailed(self.address, self.listener.scheme, reason)
        self.server.event_log.write(failed, self.server.clock())


def is_loopback_origin(origin: str) -> bool:
    """Was the page served from this machine? `null` (a local file, or a sandbox) is not known to be."""
    try:
        host = urlsplit(origin).hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
