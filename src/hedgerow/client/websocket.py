"""A client's link over WebSocket (MQTT 5 §6), on the sans-IO half of the `websockets` library.

The MQTT bytes are the concatenation of the binary frames, wherever their borders fall (MQTT-6.0.0-2).
The link is open when the server has agreed to the sub-protocol `mqtt`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidStatus
from websockets.frames import CloseCode, Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from hedgerow.client.link import ClientLink
from hedgerow.client.urls import BusUrl
from hedgerow.errors import ConnectError

SUBPROTOCOL = Subprotocol("mqtt")  # MQTT-6.0.0-3

# A server could fill the log through the library's own lines; what matters reaches the caller.
_library_logger = logging.getLogger("hedgerow.client.websocket.library")
_library_logger.disabled = True


class WebSocketClientLink(ClientLink):
    def __init__(self, address: BusUrl, on_data: Callable[[bytes], None]) -> None:
        super().__init__(on_data)
        # The user of the URL is MQTT's, not HTTP's.
        url = str(replace(address, username=None, password=None))
        self._websocket = ClientProtocol(
            parse_uri(url), subprotocols=[SUBPROTOCOL], max_size=None, logger=_library_logger
        )

    def begin(self) -> None:
        self._websocket.send_request(self._websocket.connect())
        self._send_frames()

    def data_received(self, data: bytes) -> None:
        websocket = self._websocket
        websocket.receive_data(data)
        chunks: list[bytes] = []
        for event in websocket.events_received():
            if isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
                chunks.append(bytes(event.data))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                websocket.fail(CloseCode.UNSUPPORTED_DATA, "MQTT takes binary frames")  # MQTT-6.0.0-1
        if not self.opened.done():
            self._check_handshake()
        if chunks:
            self._on_data(b"".join(chunks))
        self._send_frames()

    def eof_received(self) -> None:
        self._websocket.receive_eof()
        if not self.opened.done():
            self._check_handshake()

    def _check_handshake(self) -> None:
        websocket = self._websocket
        error = websocket.handshake_exc
        if isinstance(error, InvalidStatus):
            self._refuse(f"the server answered HTTP {error.response.status_code}, not WebSocket")
        elif error is not None:
            self._refuse(f"the WebSocket handshake failed: {error}")
        elif websocket.state is State.OPEN and websocket.subprotocol != SUBPROTOCOL:
            self._refuse("the server speaks WebSocket, but not MQTT over it")
        elif websocket.state is State.OPEN:
            self.opened.set_result(None)

    def _refuse(self, reason: str) -> None:
        self.opened.set_exception(ConnectError(reason))
        self.opened.exception()  # seen: the one who waits for it may have given up

    def write(self, data: bytes) -> None:
        if self._websocket.state is State.OPEN:
            self._websocket.send_binary(data)
            self._send_frames()

    def close(self) -> None:
        if self._websocket.state is State.OPEN:
            self._websocket.send_close(CloseCode.NORMAL_CLOSURE)
            self._send_frames()
        super().close()

    def _send_frames(self) -> None:
        data = b"".join(self._websocket.data_to_send())  # b"" in it: the library wants the end
        if data:
            super().write(data)
        if self._websocket.close_expected() and self.opened.done():
            super().close()
