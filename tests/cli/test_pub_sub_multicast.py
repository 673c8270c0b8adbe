"""`hedgerow pub` and `hedgerow sub` with `multicast://`: the flags, and what is said when it cannot be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hedgerow import cli
from hedgerow_workshop.programs import free_udp_port
from tests.programs import wait_until
from tests.waiting import PATIENCE_S

HEDGEROW = [sys.executable, "-m", "hedgerow"]


def run(*words: str, data: bytes = b"") -> tuple[int, str]:
    """The status, and what was said about it."""
    done = subprocess.run(
        [*HEDGEROW, *words], input=data, capture_output=True, timeout=PATIENCE_S, check=False
    )
    return done.returncode, done.stderr.decode()


def test_what_is_published_is_printed(tmp_path: Path) -> None:
    port = free_udp_port()
    keys = tmp_path / "keys"
    keys.write_text(f"7 {'ab' * 32}\n")
    keys.chmod(0o600)
    flags = ["--interface", "lo", "--ip", "4", "--multicast-key", str(keys)]
    output, log = tmp_path / "output", tmp_path / "log"
    with output.open("wb") as stdout, log.open("wb") as stderr:
        words = ["sub", "-d", f"multicast://:{port}", "home/#", "--json", "-q", "1", "-C", "6", *flags]
        subscriber = subprocess.Popen([*HEDGEROW, *words], stdout=stdout, stderr=stderr)
    try:
        wait_until(lambda: "subscribed to home/#" in log.read_text(), "the subscription")
        long_flags = [
            f"--multicast-{flag[2:]}" if flag in ("--interface", "--ip") else flag for flag in flags
        ]
        assert run("pub", f"multicast://:{port}", "home/vacuum", "done", *long_flags) == (0, "")
        assert run("pub", "-L", f"multicast://:{port}/home/mop", "-m", "wait", "-q", "1", *flags) == (0, "")
        url = f"multicast://lo:{port}?ip=4&key={keys}"
        assert run("pub", url, "home/log", "-l", "-q", "1", data=b"one\n\xff\nthree\n") == (0, "")
        property_flags = ["-D", "publish", "content-type", "text/plain"]
        assert run("pub", f"multicast://:{port}", "home/p", "x", *flags, *property_flags) == (0, "")
        assert subscriber.wait(PATIENCE_S) == 0
    finally:
        subscriber.kill()
        subscriber.wait()
    printed = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(each["topic"], each.get("payload"), each["qos"]) for each in printed] == [
        ("home/vacuum", "done", 0),
        ("home/mop", "wait", 1),
        ("home/log", "one", 1),
        ("home/log", None, 1),
        ("home/log", "three", 1),
        ("home/p", "x", 0),
    ]


def test_that_nothing_is_encrypted_is_said_once_unless_quiet() -> None:
    url = f"multicast://lo:{free_udp_port()}?ip=4"
    status, said = run("pub", url, "a", "x", "--repeat", "3")
    assert (status, said.count("in clear")) == (0, 1)
    assert run("pub", url, "a", "x", "--quiet") == (0, "")


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("pub", "URL", "$x", "y"), 1, "$x: topics that begin with $ do not travel by multicast"),
        (("pub", "multicast://nope0", "a", "x"), 2, 'there is no network interface "nope0"; there are '),
        (("pub", "multicast://", "a", "x", "--interface", "nope0"), 2, 'no network interface "nope0"'),
        (("pub", "URL", "a", "x", "--scope", "planet"), 2, 'scope "planet": there are interface, link, site'),
        (("pub", "URL", "a", "x", "--multicast-scope", "planet"), 2, 'scope "planet": there are'),
        (("pub", "URL", "a", "x", "--ip", "5"), 2, '--ip/--multicast-ip: "5" is none of 4, 6'),
        (("pub", "URL", "a", "x", "--naming", "dns"), 2, '"dns" is none of computed, mdns'),
        (("pub", "URL", "a", "x", "--naming", "computed"), 2, "naming computed needs IPv6"),
        (("pub", "URL", "a", "x", "--key", "FILE"), 2, "for multicast it is --multicast-key FILE\n"),
        (("pub", "multicast://10.9.0.1", "a", "x"), 2, "; a machine is named with ?peer=10.9.0.1\n"),
        (("pub", "multicast://[fe80::1]", "a", "x"), 2, "; a machine is named with ?peer=fe80::1\n"),
        (("sub", "multicast:", "home/#"), 2, '"multicast:" looks like a URL: multicast://\n'),
        (("pub", "mqtt:/h", "a", "x"), 2, '"mqtt:/h" looks like a URL: mqtt://h\n'),
        (("pub", "URL", "a", "x", "--peer", "a b"), 2, 'peer "a b" is not HOST[:PORT]'),
        (("pub", "URL", "a", "x", "--multicast-key", "/no/such"), 2, "/no/such: cannot be read"),
        (("pub", "URL", "a", "x", "-u", "me"), 2, "no user names and passwords"),
        (("pub", "URL", "a", "x", "--cafile", "ca.pem"), 2, "multicast:// is without TLS"),
        (("pub", "URL", "a", "x", "--will-topic", "w"), 2, "multicast has no server, and so no wills"),
        (("sub", "URL", "a", "-c", "-i", "me"), 2, "multicast has no server, and so no sessions"),
        (("sub", "URL", "$share/g/a"), 1, "nobody shares messages out by multicast"),
        (("sub", "mqtt://h", "a", "--ip", "4"), 2, "are for multicast://, not for mqtt://"),
        (("sub", "a", "--peer", "h"), 2, "are for multicast://, not for mqtt://"),
    ],
)
def test_what_is_wrong_is_said(
    words: tuple[str, ...], status: int, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"multicast://lo:{free_udp_port()}?ip=4"
    assert cli.main([url if word == "URL" else word for word in words]) == status
    assert reason in capfd.readouterr().err
