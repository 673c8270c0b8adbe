"""`hedgerow rr`: a request, and the response to it alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from paho.mqtt.packettypes import PacketTypes

from hedgerow import cli
from tests.conftest import StartMosquitto
from tests.interop.conftest import Reach
from tests.interop.paho_peer import Paho, paho, properties
from tests.programs import wait_until
from tests.waiting import PATIENCE_S

HEDGEROW = [sys.executable, "-m", "hedgerow"]
ASK = ("rr", "-t", "gate/open", "-e", "gate/answer")


@contextmanager
def responder(port: int) -> Iterator[Paho]:
    with paho(Reach("mqtt", port, Path()), "5", "responder") as peer:
        peer.subscribe("gate/open", 1)
        yield peer


def answer(peer: Paho, payload: str, **given: Any) -> None:
    peer.publish_and_wait("gate/answer", payload, properties=properties(PacketTypes.PUBLISH, **given))


def test_the_response_with_our_correlation_data_is_printed(mosquitto: StartMosquitto) -> None:
    port = mosquitto()
    with responder(port) as peer:
        command = [*HEDGEROW, *ASK, "-p", str(port), "-m", "now", "-q", "1", "-v"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as asking:
            wait_until(lambda: bool(peer.inbox), "the request")
            (request,) = peer.inbox
            given: Any = request.properties
            assert (request.payload, given.ResponseTopic) == (b"now", "gate/answer")
            answer(peer, "another's", CorrelationData=b"another")
            answer(peer, "open", CorrelationData=given.CorrelationData)
            assert asking.communicate(timeout=PATIENCE_S)[0] == b"gate/answer open\n"
            assert asking.returncode == 0


def test_a_response_without_correlation_data_will_do(mosquitto: StartMosquitto) -> None:
    port = mosquitto()
    with responder(port) as peer:
        peer.publish_and_wait("gate/answer", "of yesterday", retain=True)
        command = [*HEDGEROW, *ASK, "-p", str(port), "-n"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as asking:
            wait_until(lambda: bool(peer.inbox), "the request")
            answer(peer, "open")
            assert asking.communicate(timeout=PATIENCE_S)[0] == b"open\n"


def test_nobody_answers(mosquitto: StartMosquitto, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*ASK, "-p", str(mosquitto()), "-m", "now", "-W", "0.1"]) == 27
    assert capsys.readouterr().err == "hedgerow rr: no response in time\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-m", "now", "-t", "a"], "one for its response, -e"),
        (["-t", "a", "-e", "b"], "no request"),
        (["-t", "a", "-e", "b", "-n", "-V", "311"], "by MQTT 5"),
        (["-t", "a", "-e", "b", "-n", "word"], 'what is "word"'),
    ],
)
def test_what_cannot_be_asked(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rr", *words]) == 2
    assert reason in capsys.readouterr().err
