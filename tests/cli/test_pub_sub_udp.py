"""`hedgerow pub` and `hedgerow sub` with `udp://`."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow import cli
from tests.conftest import StartNode
from tests.programs import wait_until
from tests.waiting import PATIENCE_S

HEDGEROW = [sys.executable, "-m", "hedgerow"]


def run(*words: str, data: bytes = b"") -> tuple[int, str]:
    """The status, and what was said about it."""
    done = subprocess.run(
        [*HEDGEROW, *words], input=data, capture_output=True, timeout=PATIENCE_S, check=False
    )
    return done.returncode, done.stderr.decode()


def test_what_is_published_is_printed(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node("--udp", "127.0.0.1:0", "--sensor-topic", "20=farm/soil")
    url = f"{node.urls['udp']}?topics=20=farm/soil"
    output, log = tmp_path / "output", tmp_path / "log"
    with output.open("wb") as stdout, log.open("wb") as stderr:
        words = ["sub", "-d", url, "farm/soil", "-v", "-C", "4"]
        subscriber = subprocess.Popen([*HEDGEROW, *words], stdout=stdout, stderr=stderr)
    try:
        wait_until(lambda: "asked for farm/soil" in log.read_text(), "the subscription")
        assert run("pub", url, "farm/soil", "wet") == (0, "")
        assert run("pub", f"{node.urls['udp']}/20", "-m", "drier") == (0, "")
        assert run("pub", node.urls["udp"], "20", "-l", data=b"dry\n\xff\n") == (0, "")
        assert subscriber.wait(PATIENCE_S) == 0
    finally:
        subscriber.kill()
        subscriber.wait()
    assert output.read_bytes() == b"farm/soil wet\nfarm/soil drier\nfarm/soil dry\nfarm/soil \xff\n"


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("pub", "URL", "01", "x", "-q", "1"), 1, "01: udp:// has QoS 0 alone"),
        (("pub", "URL", "01", "x", "-r"), 1, "01: udp:// has no retained messages"),
        (("pub", "URL", "soil", "x"), 1, 'there is no topic "soil"; there are 01 temperature, 02'),
        (("pub", "URL", "01", "x", "-u", "me"), 2, "no place for user names and passwords"),
        (("pub", "URL", "01", "x", "--cafile", "ca.pem"), 2, "udp:// is without TLS"),
        (("sub", "URL", "#"), 1, "udp:// has no wildcards"),
        (("sub", "URL", "01", "-q", "2"), 1, "udp:// has QoS 0 alone"),
        (("sub", "URL?colour=red", "01"), 2, '"colour=red" after'),
        (("sub", "URL?topics=1:farm", "01"), 2, '"1:farm" is not NUMBER=TOPIC'),
    ],
)
def test_what_udp_cannot_do_is_said(
    words: tuple[str, ...], status: int, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as broker:
        broker.bind(("127.0.0.1", 0))
        url = f"udp://127.0.0.1:{broker.getsockname()[1]}"
        assert cli.main([word.replace("URL", url) for word in words]) == status
    assert reason in capfd.readouterr().err


def test_nobody_listens() -> None:
    with socket.socket(type=socket.SOCK_DGRAM) as gone:
        gone.bind(("127.0.0.1", 0))
        url = f"udp://127.0.0.1:{gone.getsockname()[1]}"
    assert run("pub", url, "01", "x") == (3, f"hedgerow pub: {url}: nobody listens there\n")
