"""`hedgerow pub` and `hedgerow sub` as programs, beside mosquitto_pub and mosquitto_sub."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hedgerow import cli
from hedgerow_workshop.programs import free_port
from tests.conftest import StartMosquitto
from tests.node.certificates import Authority
from tests.programs import need_program, wait_until
from tests.waiting import PATIENCE_S

HEDGEROW = [sys.executable, "-m", "hedgerow"]


def run(*words: str, data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*HEDGEROW, *words], input=data, capture_output=True, timeout=PATIENCE_S, check=False
    )


def publish(*words: str, data: bytes = b"") -> None:
    """By a program of its own."""
    done = run("pub", *words, data=data)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def send(*words: str) -> None:
    """The same in this process, where what is published is there for somebody else's sake."""
    assert cli.main(["pub", *words]) == 0


class Listener:
    """A `hedgerow sub` that is subscribed; `finish` waits for its end."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, log: Path) -> None:
        self.process = process
        self._output = output
        self._log = log

    def finish(self, status: int = 0) -> bytes:
        assert self.process.wait(PATIENCE_S) == status, self.log
        return self.output

    @property
    def output(self) -> bytes:
        return self._output.read_bytes()

    @property
    def log(self) -> str:
        return self._log.read_text()


@contextmanager
def listening(folder: Path, *words: str) -> Iterator[Listener]:
    number = len(list(folder.glob("out-*")))
    output, log = folder / f"out-{number}", folder / f"log-{number}"
    with output.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen([*HEDGEROW, "sub", "-d", *words], stdout=stdout, stderr=stderr)
    listener = Listener(process, output, log)
    try:
        wait_until(lambda: "subscribed" in listener.log or process.poll() is not None, "the subscription")
        yield listener
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def url(mosquitto: StartMosquitto) -> str:
    # However slowly a subscriber reads on a busy machine: by itself Mosquitto drops what is beyond 1,000.
    return f"mqtt://127.0.0.1:{mosquitto('max_queued_messages 0')}"


@contextmanager
def stranger(folder: Path, url: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A mosquitto_sub that is subscribed, which the server's log tells."""
    log = folder / "mosquitto-1/mosquitto.log"
    name = f"stranger-{log.read_bytes().count(b'Sending SUBACK')}"
    command = [need_program("mosquitto_sub"), "-p", url.rsplit(":", 1)[1], "-i", name, "-W", "20", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        wait_until(lambda: f"Sending SUBACK to {name}" in log.read_text(), "mosquitto_sub to be subscribed")
        yield process


# Publishing.


def test_every_way_to_give_a_message(url: str, tmp_path: Path) -> None:
    file = tmp_path / "message"
    file.write_bytes(b"from\0a file")
    port = url.rsplit(":", 1)[1]
    with listening(tmp_path, url, "t/#", "-F", "%t %q %r %p", "-q", "2", "-C", "10") as listener:
        publish(url, "t/words", "hello")
        publish(url, "t/flag", "-m", "hello", "-q", "1")
        publish("-h", "127.0.0.1", "-p", port, "-t", "t/flags", "-m", "grüße", "-q", "2")
        publish("-L", f"{url}/t/url", "-m", "-5")
        publish(url, "-t", "t/file", "-f", str(file))
        publish(url, "t/stdin", "-s", data=b"all\nof it\n")
        publish(url, "t/null", "-n")
        publish(url, "t/lines", "-l", "-q", "1", data=b"one\n\nthree")
        received = listener.finish()
    expected = [
        "t/words 0 0 hello", "t/flag 1 0 hello", "t/flags 2 0 grüße", "t/url 0 0 -5",
        "t/file 0 0 from\0a file", "t/stdin 0 0 all\nof it\n", "t/null 0 0 ",
        "t/lines 1 0 one", "t/lines 1 0 ", "t/lines 1 0 three",
    ]  # fmt: skip
    assert received == "".join(f"{line}\n" for line in expected).encode()


def test_retained_and_repeated(url: str, tmp_path: Path) -> None:
    with listening(tmp_path, url, "a", "-C", "3", "-F", "%p %r") as listener:
        send(url, "a", "x", "-r", "-q", "1", "--repeat", "3", "--repeat-delay", "0.01")
        assert listener.finish() == b"x 0\n" * 3
    assert run("sub", url, "a", "-C", "1", "-F", "%p %r").stdout == b"x 1\n"


@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_many_lines_arrive_in_order(url: str, tmp_path: Path, qos: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(3_000))
    with listening(tmp_path, url, "a", "-q", qos, "-C", "3000") as listener:
        publish(url, "a", "-l", "-q", qos, data=lines)
        assert listener.finish() == lines


def test_properties_reach_mosquitto(url: str, tmp_path: Path) -> None:
    with stranger(tmp_path, url, "-V", "5", "-t", "a", "-F", "%t|%p|%C|%R|%E|%P", "-C", "1") as process:
        words = ["-D", "publish", "user-property", "k", "v", "-D", "publish", "user-property", "k", "w"]
        words += ["-D", "PUBLISH", "content-type", "text/plain", "-D", "publish", "response-topic", "r"]
        words += ["-D", "publish", "message-expiry-interval", "99", "-D", "connect", "receive-maximum", "5"]
        send(url, "a", "x", *words)
        output, _ = process.communicate(timeout=PATIENCE_S)
    assert output == b"a|x|text/plain|r|99|k:v k:w\n"


@pytest.mark.parametrize("version", ["31", "mqttv311", "5"])
def test_versions(url: str, tmp_path: Path, version: str) -> None:
    with listening(tmp_path, url, "a", "-V", version, "-C", "1", "-q", "1") as listener:
        send(url, "a", "x", "-V", version, "-q", "1")
        assert listener.finish() == b"x\n"


# Subscribing.


@pytest.mark.parametrize(
    "shape",
    [
        ["-F", r"%t|%p|%x|%X|%l|%q|%r|%m|%P|%C|%D|%E|%F|%R|%10t|%-10t|%.2t|%5l|%05l|%%|@@|\t\\|@Y"],
        ["-v"],
        [],
        ["-N"],
    ],
)
def test_output_is_that_of_mosquitto_sub(url: str, tmp_path: Path, shape: list[str]) -> None:
    options = ["-V", "5", "-q", "1", "-t", "a/#", "-T", "a/skip", "-C", "3", *shape]
    with listening(tmp_path, url, *options) as ours, stranger(tmp_path, url, *options) as process:
        send(url, "a/b", "x y", "-q", "1", "-D", "publish", "user-property", "k", "v")
        send(url, "a/skip", "unseen", "-q", "1")
        send(url, "a/empty", "-n", "-q", "1")
        send(url, "a/b/c", "2", "-q", "0")
        theirs, _ = process.communicate(timeout=PATIENCE_S)
        assert ours.finish() == theirs


def test_retained_messages_are_chosen_and_removed(url: str) -> None:
    for topic in ("a/1", "a/2", "a/keep"):
        send(url, topic, topic, "-r", "-q", "1")
    assert run("sub", url, "a/#", "-R", "-W", "0.5").stdout == b""
    listed = run("sub", url, "a/#", "--retained-only", "-W", "1")
    assert (sorted(listed.stdout.split()), listed.returncode) == ([b"a/1", b"a/2", b"a/keep"], 27)
    run("sub", url, "a/#", "--remove-retained", "-T", "a/keep", "-C", "2")
    assert run("sub", url, "a/#", "-C", "1", "-v").stdout == b"a/keep a/keep\n"


def test_retained_only_ends_with_the_first_other_message(url: str, tmp_path: Path) -> None:
    send(url, "a", "kept", "-r", "-q", "1")
    with listening(tmp_path, url, "a", "--retained-only") as listener:
        send(url, "a", "new")
        assert listener.finish() == b"kept\n"


def test_a_session_keeps_what_was_not_printed(url: str) -> None:
    session = ("-c", "-i", "recorder", "-q", "1")
    assert run("sub", url, "a", *session, "-E").returncode == 0
    publish(url, "a", "-l", "-q", "1", data=b"1\n2\n3\n4\n5\n")
    assert run("sub", url, "a", *session, "-C", "2", "-W", "20").stdout == b"1\n2\n"
    assert run("sub", url, "a", *session, "-C", "3", "-W", "20").stdout == b"3\n4\n5\n"
    assert run("sub", url, *session, "-U", "a").returncode == 0
    send(url, "a", "unheard", "-q", "1")
    assert run("sub", url, "b", *session, "-W", "0.5").stdout == b""


def test_json(url: str, tmp_path: Path) -> None:
    with listening(tmp_path, url, "a", "b", "--json", "-C", "2") as listener:
        send(url, "b", "x")
        send(url, "a", "-f", sys.executable, "--repeat", "1")
        first, second = map(json.loads, listener.finish().splitlines())
    assert (first["topic"], first["payload"]) == ("b", "x")
    assert second["payloadlen"] == Path(sys.executable).stat().st_size


def test_tls_and_websocket(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    secure, web = free_port(), free_port()
    mosquitto(
        f"listener {secure} 127.0.0.1", f"certfile {certificate}", f"keyfile {key}",
        f"listener {web} 127.0.0.1", "protocol websockets",
    )  # fmt: skip
    files = ["--cafile", str(authority.certificate)]
    with listening(tmp_path, f"ws://127.0.0.1:{web}", "a", "-C", "2") as listener:
        publish(f"mqtts://localhost:{secure}", "a", "1", *files, "-q", "1")
        publish("-h", "localhost", "-p", str(secure), "-t", "a", "-m", "2", *files)
        assert listener.finish() == b"1\n2\n"


# Ends.


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(url: str, tmp_path: Path, number: signal.Signals) -> None:
    with listening(tmp_path, url, "will") as watcher:
        with listening(tmp_path, url, "a", "--will-topic", "will", "--will-payload", "gone") as listener:
            send(url, "a", "x", "-q", "1")
            wait_until(lambda: listener.output == b"x\n", "the message")
            listener.process.send_signal(number)
            assert listener.finish() == b"x\n"
            assert "Traceback" not in listener.log
        with listening(tmp_path, url, "a", "--will-topic", "will", "--will-payload", "killed") as listener:
            listener.process.kill()
        wait_until(lambda: watcher.output == b"killed\n", "the will of the killed, and no other")


def test_a_publisher_that_reads_a_terminal_can_be_interrupted(url: str) -> None:
    command = [*HEDGEROW, "pub", url, "a", "-l", "-d"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        while b"connected to" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0


def test_time_is_up(url: str) -> None:
    began_at = time.monotonic()
    done = run("sub", url, "a", "-W", "0.3")
    assert (done.returncode, done.stdout, done.stderr) == (27, b"", b"hedgerow sub: timed out\n")
    assert time.monotonic() - began_at < PATIENCE_S / 2


def test_whoever_reads_may_leave(url: str, tmp_path: Path) -> None:
    command = [*HEDGEROW, "sub", url, "a", "-d"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while b"subscribed" not in process.stderr.readline():
            pass
        process.stdout.close()
        send(url, "a", "x")
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == b""


def test_whoever_reads_may_stop_reading_for_longer_than_the_keep_alive(url: str) -> None:
    """As `hedgerow sub … | less` does."""
    total = 3_000
    command = [*HEDGEROW, "sub", url, "a", "-d", "-k", "1", "-q", "1", "-C", str(total)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while b"subscribed" not in process.stderr.readline():
            pass
        publish(url, "a", "-l", data=b"".join(b"%099d\n" % number for number in range(total)))
        time.sleep(3.5)  # The point is that this time passes with nobody reading.
        output, log = process.communicate(timeout=PATIENCE_S)
    assert output.splitlines() == [b"%099d" % number for number in range(total)]
    assert (process.returncode, log) == (0, b"")


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (
            ["sub", "mqtt://127.0.0.1:PORT", "a"],
            3,
            "cannot connect to mqtt://127.0.0.1:PORT: connection refused; does a node run there",
        ),
        (["pub", "-h", "127.0.0.1", "-p", "PORT", "-t", "a", "-n"], 3, "connection refused"),
        (["pub", "mqtt://no-such-host.invalid", "a", "x"], 3, "no such host"),
        (["pub", "gopher://h", "a", "x"], 2, 'no transport "gopher://"; there are mqtt://'),
        (["pub", "mqtt://h"], 2, "no topic"),
        (["pub", "mqtt://h", "a"], 2, "no message"),
        (["pub", "a", "x", "y"], 2, 'what is "y"?'),
        (["pub", "mqtt://h", "a", "x", "-h", "h"], 2, "-h and -p go without one"),
        (["pub", "mqtt://h", "a", "x", "--cafile", "ca.pem"], 2, "mqtt:// is without TLS; write mqtts://"),
        (["pub", "a", "x", "-V", "6"], 2, "is none of mqttv5, mqttv311, mqttv31"),
        (["pub", "a", "x", "-x", "soon"], 2, '-x/--session-expiry-interval: "soon" is not seconds'),
        (["pub", "a", "-f", "/no/such/file"], 1, "/no/such/file: No such file"),
        (["pub", "a", "x", "--repeat", "0"], 2, "from 1 on"),
        (["pub", "a", "x", "-D", "publish", "colour", "red"], 2, "publish has payload-format-indicator"),
        (["pub", "a", "x", "-D", "puback", "reason-string", "x"], 2, "there are connect, publish"),
        (["pub", "a", "x", "-D", "publish", "user-property", "k"], 2, "takes a name and a value"),
        (["pub", "a", "x", "-D", "publish", "message-expiry-interval", "x"], 2, '"x" is not a number'),
        (
            ["pub", "a", "x", "-D", "publish", "payload-format-indicator", "7"],
            2,
            "payload_format_indicator is 7",
        ),
        (["sub"], 2, "no topic"),
        (["sub", "a/#/b"], 2, "'#' is not alone"),
        (["sub", "a", "-c"], 2, "give it with -i"),
        (["sub", "a", "-C", "0"], 2, "from 1 on"),
        (["sub", "a", "-F", "%Z"], 2, "no sequence %Z"),
        (["sub", "a", "-R", "--retained-only"], 2, "leave nothing"),
    ],
)
def test_what_goes_wrong_is_one_line(
    words: list[str], status: int, reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    port = str(free_port())
    assert cli.main([word.replace("PORT", port) for word in words]) == status
    output, errors = capfd.readouterr()
    assert output == ""
    line, *example = errors.splitlines()
    assert line.startswith(f"hedgerow {words[0]}: ")
    assert not example or example[0].startswith(f"for example: hedgerow {words[0]} ")
    assert reason.replace("PORT", port) in line


def test_a_refusal_names_the_topic(mosquitto: StartMosquitto, tmp_path: Path) -> None:
    rules = tmp_path / "acl"
    rules.write_text("topic read secret\ntopic readwrite open\n")
    rules.chmod(0o600)
    url = f"mqtt://127.0.0.1:{mosquitto(f'acl_file {rules}')}"
    done = run("pub", url, "secret", "-l", "-q", "1", data=b"1\n2\n")
    assert done.returncode == 1
    lines = done.stderr.decode().splitlines()
    assert lines == ["hedgerow pub: secret: the server refused: not authorized"] * 2
    assert run("pub", url, "open", "x", "-q", "1").returncode == 0


@pytest.mark.parametrize("command", ["pub", "sub"])
def test_help(command: str) -> None:
    done = run(command, "--help")
    assert done.returncode == 0
    assert b"-h HOST" in done.stdout
    assert b"examples:" in done.stdout
