"""One connection for many publications, and another when it is gone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from hedgerow.errors import ConnectError
from hedgerow.message import Message
from hedgerow.pipeline.kept_connection import KeptConnection
from tests.conftest import StartNode
from tests.programs import Node, wait_until


@contextmanager
def kept(url: str) -> Iterator[KeptConnection]:
    connection = KeptConnection(url)
    try:
        yield connection
    finally:
        connection.close()


def connects(node: Node) -> int:
    return node.log.count(" connected from")


def message(payload: bytes) -> Message:
    return Message("told", payload, qos=1, retain=True)


def test_many_publications_go_over_one_connection_and_it_says_good_bye(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    with kept(node.urls["mqtt"]) as publish:
        for number in range(5):
            publish([message(b"%d" % number)] * 2)
        assert connects(node) == 1
    wait_until(lambda: " disconnected" in node.log, "its leave")


def test_a_connection_that_is_gone_is_made_again(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    with kept(node.urls["mqtt"]) as publish:
        publish([message(b"1")])
        node.kill9()
        with pytest.raises((ConnectError, OSError)):
            publish([message(b"2")])
        node.start()
        publish([message(b"3")])
        publish([message(b"4")])
        assert connects(node) == 1
        node.kill9()
        node.start()
        publish([message(b"5")])
        assert connects(node) == 1


def test_a_broker_that_does_not_answer_is_not_waited_for(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    with kept(node.urls["mqtt"]) as publish:
        publish([message(b"1")])
        patience_s, publish.patience_s = publish.patience_s, 0.2
        assert node.process is not None
        os.kill(node.process.pid, signal.SIGSTOP)
        with pytest.raises(ConnectError, match="has not taken them within 0.2 s"):
            publish([message(b"2")])
        publish.patience_s = patience_s
        os.kill(node.process.pid, signal.SIGCONT)
        publish([message(b"3")])
        assert connects(node) == 2


def test_close_ends_it_and_a_later_call_begins_anew(hedgerow_node: StartNode) -> None:
    node = hedgerow_node()
    with kept(node.urls["mqtt"]) as publish:
        publish.close()
        publish([message(b"1")])
        publish.close()
        publish([message(b"2")])
        assert connects(node) == 2
