"""What a link knows of its socket."""

from __future__ import annotations

import math
import socket
from types import SimpleNamespace
from typing import Any

from hedgerow.node.link import Link


def test_bytes_that_nobody_has_read_are_a_sign_of_life() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        far = socket.create_connection(server.getsockname())
        near, _ = server.accept()
    nothing: Any = None
    link = Link(nothing, nothing, "")
    transport: Any = SimpleNamespace(get_extra_info=lambda name: near)
    link.transport = transport
    with near, far:
        far.sendall(b"unread")
        assert near.recv(6, socket.MSG_PEEK) == b"unread"
        assert link.silent_s() < 1
    assert link.silent_s() == math.inf
