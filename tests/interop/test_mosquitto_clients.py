"""mosquitto_pub, mosquitto_sub and mosquitto_rr, as people use them in shells and scripts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.conftest import StartNode
from tests.interop.conftest import Reach
from tests.node.certificates import Authority
from tests.programs import Node, need_program, wait_until

PATIENCE_S = 20.0
VERSIONS = {"3.1": "31", "3.1.1": "311", "5": "5"}

every_version = pytest.mark.parametrize("version", VERSIONS.values(), ids=list(VERSIONS))
# They speak no WebSocket.
without_websocket = pytest.mark.parametrize("reach", ["mqtt", "mqtts"], indirect=True, ids=["tcp", "tls"])

Subscribe = Callable[..., "Subscriber"]


def arguments(program: str, reach: Reach, version: str) -> list[str]:
    common = [need_program(program), "-h", "127.0.0.1", "-p", str(reach.port), "-V", version]
    return [*common, "--cafile", str(reach.authority)] if reach.is_tls else common


def run(program: str, reach: Reach, version: str, *words: str, given: str = "") -> str:
    command = [*arguments(program, reach, version), *words]
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert not done.stderr
    return done.stdout


class Subscriber:
    """A mosquitto_sub that runs beside the test. `lines` are what it has printed."""

    def __init__(self, command: list[str], output: Path) -> None:
        self._output = output
        with output.open("wb") as file:
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    @property
    def lines(self) -> list[str]:
        return self._output.read_text().splitlines()

    def expect(self, *lines: str) -> None:
        wait_until(lambda: len(self.lines) >= len(lines), f"{len(lines)} lines", PATIENCE_S)
        assert self.lines == list(lines)


@pytest.fixture
def subscribe(tmp_path: Path) -> Iterator[Subscribe]:
    """`subscribe(reach, version, "-t", "#")` returns when mosquitto_sub has its subscription."""
    with ExitStack() as running:

        def start(reach: Reach, version: str, topic: str, *words: str) -> Subscriber:
            # It prints the messages that it gets and not that it is subscribed, so one waits for it.
            run(
                "mosquitto_pub",
                reach,
                version,
                "-i",
                f"{topic}-r",
                "-t",
                f"{topic}/ready",
                "-m",
                "ready",
                "-r",
            )
            command = [*arguments("mosquitto_sub", reach, version), "-t", f"{topic}/#", *words]
            output = tmp_path / f"subscriber-{sum(1 for _ in tmp_path.glob('subscriber-*'))}"
            subscriber = running.enter_context(_running(Subscriber(command, output)))
            wait_until(
                lambda: any("ready" in line for line in subscriber.lines), "the subscription", PATIENCE_S
            )
            return subscriber

        yield start


@contextmanager
def _running(subscriber: Subscriber) -> Iterator[Subscriber]:
    try:
        yield subscriber
    finally:
        subscriber.process.kill()
        subscriber.process.wait()


@every_version
@without_websocket
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_lines_arrive_in_order(reach: Reach, version: str, qos: str, name: str, subscribe: Subscribe) -> None:
    lines = [f"line {number}" for number in range(100)]
    subscriber = subscribe(reach, version, name, "-i", f"{name}-s", "-q", qos, "-F", "%t %q %p")
    publish = ["-i", f"{name}-p", "-q", qos, "-t", f"{name}/x", "-l"]
    run("mosquitto_pub", reach, version, *publish, given="\n".join(lines) + "\n")
    subscriber.expect(f"{name}/ready 0 ready", *[f"{name}/x {qos} {line}" for line in lines])


@every_version
def test_a_session_is_resumed(tcp: Reach, version: str, name: str) -> None:
    # Before MQTT 5 the session stays because of -c; in it, because of its expiry interval.
    session = ["-i", f"{name}-s", "-c", "-q", "1", "-t", f"{name}/x"]
    session += ["-x", "60"] if version == "5" else []
    run("mosquitto_sub", tcp, version, *session, "-E")
    for number in range(3):
        run("mosquitto_pub", tcp, version, "-i", f"{name}-p", "-q", "1", "-t", f"{name}/x", "-m", f"{number}")
    assert run("mosquitto_sub", tcp, version, *session, "-C", "3") == "0\n1\n2\n"


@every_version
def test_a_will_of_a_killed_client(tcp: Reach, version: str, name: str, subscribe: Subscribe) -> None:
    watcher = subscribe(tcp, version, name, "-i", f"{name}-w", "-q", "1", "-F", "%t %p %r")
    will = ["--will-topic", f"{name}/will", "--will-payload", "gone", "--will-qos", "1", "--will-retain"]
    victim = subscribe(tcp, version, name, "-i", f"{name}-v", *will)
    victim.process.kill()
    victim.process.wait()
    # The second "ready" is what the victim's own readiness was told with.
    watcher.expect(f"{name}/ready ready 1", f"{name}/ready ready 0", f"{name}/will gone 0")


@every_version
def test_retained_messages_are_read_and_removed(tcp: Reach, version: str, name: str) -> None:
    for topic in ("a", "b"):
        run("mosquitto_pub", tcp, version, "-i", f"{name}-p", "-t", f"{name}/{topic}", "-m", topic, "-r")
    reader = ["-i", f"{name}-s", "-t", f"{name}/#", "-v", "-C", "2"]
    assert sorted(run("mosquitto_sub", tcp, version, *reader).split("\n")) == [
        "",
        f"{name}/a a",
        f"{name}/b b",
    ]
    for topic in ("a", "b"):
        run("mosquitto_pub", tcp, version, "-i", f"{name}-p", "-t", f"{name}/{topic}", "-n", "-r")
    run("mosquitto_pub", tcp, version, "-i", f"{name}-p", "-t", f"{name}/c", "-m", "c", "-r")
    assert run("mosquitto_sub", tcp, version, *reader[:-1], "1") == f"{name}/c c\n"


def test_properties(tcp: Reach, name: str, subscribe: Subscribe) -> None:
    subscriber = subscribe(tcp, "5", name, "-F", "%j")
    sent = ["content-type", "text/plain"], ["user-property", "a", "1"], ["message-expiry-interval", "60"]
    words = [word for found in sent for word in ("-D", "publish", *found)]
    run("mosquitto_pub", tcp, "5", "-t", f"{name}/x", "-m", "value", *words)
    wait_until(lambda: len(subscriber.lines) >= 2, "the message", PATIENCE_S)
    found = json.loads(subscriber.lines[1])
    assert found["payload"] == "value"
    assert found["properties"]["content-type"] == "text/plain"
    assert found["properties"]["user-properties"] in ({"a": "1"}, [{"a": "1"}])


def test_a_request_and_its_response(tcp: Reach, name: str, subscribe: Subscribe) -> None:
    # mosquitto_rr sends its request and waits; the subscriber shows it, and the test answers.
    subscriber = subscribe(tcp, "5", name, "-F", "%p %R")
    ask = ["-i", f"{name}-rr", "-t", f"{name}/ask", "-e", f"{name}-answer", "-m", "question", "-W", "15"]
    with subprocess.Popen(
        [*arguments("mosquitto_rr", tcp, "5"), *ask], stdout=subprocess.PIPE, text=True
    ) as asking:
        wait_until(lambda: len(subscriber.lines) >= 2, "the request", PATIENCE_S)
        assert subscriber.lines[1] == f"question {name}-answer"
        run("mosquitto_pub", tcp, "5", "-t", f"{name}-answer", "-m", "answer")
        output, _ = asking.communicate(timeout=PATIENCE_S)
    assert output == "answer\n"


def test_a_client_certificate_is_a_name(
    hedgerow_node: StartNode, authority: Authority, tmp_path: Path, name: str
) -> None:
    certificate, key = authority.issue("server")
    acl = tmp_path / "acl"
    acl.write_text("user alice\ntopic readwrite alice/#\n")
    node = hedgerow_node(
        "--mqtt", "off", "--mqtts", "127.0.0.1:0", "--certificate", str(certificate), "--key", str(key),
        "--client-ca", str(authority.certificate), "--require-client-certificate",
        "--use-identity-as-username", "--acl", str(acl),
    )  # fmt: skip
    reach = Reach("mqtts", node.port("mqtts"), authority.certificate)
    own, own_key = authority.issue("alice")
    shown = ["--cert", str(own), "--key", str(own_key)]
    run("mosquitto_pub", reach, "5", *shown, "-q", "1", "-r", "-t", "alice/x", "-m", "mine")
    assert run("mosquitto_sub", reach, "5", *shown, "-t", "alice/#", "-C", "1") == "mine\n"

    denied = _publish(reach, *shown, "-q", "1", "-t", "bob/x", "-m", "not mine")
    assert "Not authorized" in denied.stderr
    assert _publish(reach, "-t", "alice/x", "-m", "nobody").returncode != 0
    _wait_for_log(node, "mqtts connection from 127.0.0.1 closed: peer did not return a certificate")


def _publish(reach: Reach, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*arguments("mosquitto_pub", reach, "5"), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def _wait_for_log(node: Node, text: str) -> None:
    wait_until(lambda: text in node.log, f"{text!r} in the log", PATIENCE_S)


def test_a_password_is_asked_for(hedgerow_node: StartNode, tmp_path: Path, authority: Authority) -> None:
    # The file is written by mosquitto_passwd, and read by us.
    passwords = tmp_path / "passwords"
    subprocess.run(
        [need_program("mosquitto_passwd"), "-b", "-c", str(passwords), "alice", "secret"], check=True
    )
    node = hedgerow_node("--passwords", str(passwords))
    reach = Reach("mqtt", node.port(), authority.certificate)
    run("mosquitto_pub", reach, "5", "-u", "alice", "-P", "secret", "-t", "x", "-m", "1")
    for wrong in (["-u", "alice", "-P", "wrong"], ["-u", "bob", "-P", "secret"], []):
        refused = _publish(reach, *wrong, "-t", "x", "-m", "1")
        assert refused.returncode != 0
        assert "Connection error" in refused.stderr or "not authorised" in refused.stderr.lower()
