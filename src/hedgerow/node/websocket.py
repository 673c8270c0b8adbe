"""MQTT over WebSocket (MQTT 5 §6), on the sans-IO half of the `websockets` library.

The stream of MQTT packets is the concatenation of the binary frames, wherever their borders fall
(MQTT-6.0.0-2); a text frame ends the connection (MQTT-6.0.0-1). What the machine has to say leaves as
one binary frame per flush. The machine's connection begins with the TCP connection, so that its time
to CONNECT and its count of connections bound the opening handshake too.

A stranger's bytes pass through the library before the machine's limits can see them, so this module
has its own: how much may come before the machine knows the client, and how much is handled in one turn
of the loop. Whatever the library raises over such bytes ends their connection, and no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from hedgerow.broker.connection import Connection
from hedgerow.broker.owners import MAX_CONNECT_BYTES
from hedgerow.node.browsers import objection_to_page
from hedgerow.node.events import TransportFailed
from hedgerow.node.link import Entrance, Link

if TYPE_CHECKING:
    from hedgerow.node.part import NodeContext

SUBPROTOCOLS = [Subprotocol("mqtt"), Subprotocol("mqttv3.1")]  # MQTT-6.0.0-3, -4; the second is that of 3.1

# One frame may carry a largest packet and a chunk of its neighbours; beyond it the close code is 1009.
MAX_FRAME_EXTRA = 64 * 1024

# The handshake, frames of any kind, and the largest CONNECT. Fifty strangers that each held back the
# last byte of an 8 MiB frame took 400 MB.
MAX_BYTES_BEFORE_CONNECT = MAX_CONNECT_BYTES + MAX_FRAME_EXTRA

# A frame may have no payload and six bytes in all. A full read of such frames, or of PINGs, occupied
# the loop for 160 ms; this much of them does for 10 ms.
TURN_BYTES = 16 * 1024

MAX_ORIGIN_LENGTH = 80  # in the log
MAX_REASON_LENGTH = 200  # in the log: a request may have 1 MiB of headers, which the reason quotes

# Peers could fill the log through the library's own lines; what matters is logged by this module.
_library_logger = logging.getLogger("hedgerow.node.websocket.library")
_library_logger.disabled = True


class WebSocketLink(Link):
    __slots__ = ("bytes_before_connect", "congested", "in_frame", "make_protocol", "unhandled", "websocket")

    def __init__(
        self,
        node: NodeContext,
        listener: Entrance,
        address: str,
        make_protocol: Callable[..., ServerProtocol] = ServerProtocol,
    ) -> None:
        super().__init__(node, listener, address)
        self.make_protocol = make_protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.bytes_before_connect = 0
        self.congested = False
        self.in_frame = 0  # bytes since a frame was last whole
        self.unhandled = b""  # read, and left for the next turns
        self.websocket = self.make_protocol(
            subprotocols=SUBPROTOCOLS,
            max_size=self.node.config.limits.packet_bytes + MAX_FRAME_EXTRA,
            logger=_library_logger,
        )
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self.unhandled:  # TLS may have decrypted more before reading was paused
            self.unhandled += data
        else:
            self._handle(data)

    def go_on(self) -> None:
        self.resting = False
        if self.unhandled and not self.paused and not self.transport.is_closing():
            self._handle(self.unhandled)
        if not self.unhandled:
            super().go_on()

    def follow(self, connection: Connection) -> None:
        super().follow(connection)
        if self.unhandled:
            self.rest()

    def _handle(self, data: bytes) -> None:
        """Handle as much of `data` as one turn allows, and rest if there is more."""
        data, self.unhandled = data[:TURN_BYTES], data[TURN_BYTES:]
        try:
            payload = self._receive_frames(data)
        except Exception as error:  # a mistake of the library's, and a stranger chose the bytes
            self._report(f"the WebSocket layer failed: {error!r}")
            super().close()
            self.node.flush_soon()
            return
        if payload:
            try:
                self.connection.receive_data(payload, self.node.clock())
            except Exception as error:  # as in `Link`
                self.connection.fail(error)
        self._send_frames()
        self.node.flush_soon()
        self._limit_stranger(len(data))
        if self.in_frame:
            self.connection.hold_partly(self.in_frame + len(self.connection.partial or b""))
            self.node.flush_soon()
        if self.unhandled:
            self.rest()

    def _receive_frames(self, data: bytes) -> bytes:
        """The bytes for the machine. What the frames mean to the WebSocket itself is done here."""
        websocket = self.websocket
        websocket.receive_data(data)
        chunks: list[bytes | bytearray | memoryview] = []
        events = websocket.events_received()
        self.in_frame = 0 if events else self.in_frame + len(data)
        for event in events:
            if isinstance(event, Request):
                websocket.send_response(self._answer(event))
            elif isinstance(event, Frame):
                if event.opcode in (Opcode.BINARY, Opcode.CONT):
                    chunks.append(event.data)
                elif event.opcode is Opcode.TEXT:
                    self._report("a text frame [MQTT-6.0.0-1]")
                    websocket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT takes binary frames")
                    break
        return b"".join(chunks)

    def _limit_stranger(self, size: int) -> None:
        if self.connection.is_connected or self.connection.closing:
            return
        self.bytes_before_connect += size
        if self.bytes_before_connect > MAX_BYTES_BEFORE_CONNECT:
            self._report(f"more than {MAX_BYTES_BEFORE_CONNECT} bytes before CONNECT")
            if self.websocket.state is State.OPEN:
                self.websocket.send_close(CloseCode.MESSAGE_TOO_BIG)
                self.transport.write(b"".join(self.websocket.data_to_send()))
            super().close()
            self.node.flush_soon()

    def _answer(self, request: Request) -> Response:
        """The opening handshake; every path is taken, `/mqtt` being the usual one."""
        websocket = self.websocket
        if not all(value.isascii() for _, value in request.headers.raw_items()):
            # The library quotes what it refuses, and cannot encode what it decoded of such a value.
            self._report("the opening handshake failed: a header that is not ASCII")
            return websocket.reject(HTTPStatus.BAD_REQUEST, "Headers must be ASCII.\n")
        origins, hosts = request.headers.get_all("Origin"), request.headers.get_all("Host")
        why = objection_to_page(self.node, origins, hosts, is_tls=self.listener.scheme == "wss")
        if why is not None:
            self._report(f"a page of {', '.join(origins)[:MAX_ORIGIN_LENGTH]!r} was refused: {why}")
            return websocket.reject(HTTPStatus.FORBIDDEN, f"Pages of other sites may not connect: {why}.\n")
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
            stopping = self.node.stopping
            self.websocket.send_close(CloseCode.GOING_AWAY if stopping else CloseCode.NORMAL_CLOSURE)
            self.transport.write(b"".join(self.websocket.data_to_send()))
        super().close()

    def detach(self, was_closed: bool = False) -> None:
        self.unhandled = b""
        super().detach(was_closed)

    def _report(self, reason: str) -> None:
        failed = TransportFailed(self.address, self.listener.scheme, reason[:MAX_REASON_LENGTH])
        self.node.event_log.write(failed, self.node.clock())
