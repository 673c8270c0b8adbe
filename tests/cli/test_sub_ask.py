"""`hedgerow sub --ask`: the dialogue, driven through a pipe and through a terminal."""

from __future__ import annotations

import argparse
import asyncio
import os
import pty
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest

from hedgerow import cli
from hedgerow.cli import sub, sub_ask
from hedgerow.message import Message
from tests.conftest import StartNode
from tests.programs import wait_until
from tests.waiting import PATIENCE_S, until

HEDGEROW = [sys.executable, "-m", "hedgerow"]


class Dialogue:
    def __init__(self, process: subprocess.Popen[bytes], typing: int, output: Path, log: Path) -> None:
        self.process = process
        self._typing = typing
        self._output = output
        self._log = log

    def type(self, line: str) -> None:
        os.write(self._typing, line.encode() + b"\n")

    def end_input(self) -> None:
        os.close(self._typing)

    def wait_for(self, words: str, times: int = 1) -> None:
        wait_until(lambda: self.said.count(words) >= times, f"{words!r} in {self.said!r}")

    @property
    def said(self) -> str:
        return self._log.read_text()

    @property
    def printed(self) -> list[str]:
        return self._output.read_text().splitlines()

    def finish(self) -> int:
        return self.process.wait(PATIENCE_S)


@contextmanager
def asking(folder: Path, *words: str, terminal: bool = False) -> Iterator[Dialogue]:
    reading, typing = reversed(pty.openpty()) if terminal else os.pipe()
    output, log = folder / "output", folder / "log"
    with output.open("wb") as stdout, log.open("wb") as stderr:
        process = subprocess.Popen(
            [*HEDGEROW, "sub", *words, "--ask"], stdin=reading, stdout=stdout, stderr=stderr
        )
    os.close(reading)
    try:
        yield Dialogue(process, typing, output, log)
    finally:
        process.kill()
        process.wait()
        with suppress(OSError):  # closed by the test
            os.close(typing)


def send(port: int, packet: bytes) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sensor:
        sensor.sendto(packet, ("127.0.0.1", port))


def test_a_topic_and_another_while_waiting(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node("--udp", "127.0.0.1:0")
    port = node.port("udp")
    with asking(tmp_path, node.urls["udp"], "-v", "-C", "3") as dialogue:
        dialogue.wait_for("Topics: 01 temperature, 02 wind speed, 03 humidity\nWhich topic do you want")
        dialogue.type("temperature")
        dialogue.wait_for("Asked for temperature.\nWaiting for messages. Type another topic")
        send(port, b"1234510121.5")
        wait_until(lambda: dialogue.printed == ["temperature 21.5"], "the first message")
        send(port, b"1234510360 %")  # not subscribed yet; it becomes the last value
        dialogue.type("")
        dialogue.type("03")
        wait_until(lambda: len(dialogue.printed) == 2, "the last value of the new topic")
        send(port, b"1234510122")
        assert dialogue.finish() == 0
        assert dialogue.printed == ["temperature 21.5", "humidity 60 %", "temperature 22"]


def test_on_a_terminal(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node("--udp", "127.0.0.1:0")
    with asking(tmp_path, node.urls["udp"], "-C", "1", terminal=True) as dialogue:
        dialogue.wait_for("Which topic do you want")
        dialogue.type("wind speed")
        dialogue.wait_for("Asked for wind speed.")
        send(node.port("udp"), b"123451024 m/s")
        assert dialogue.finish() == 0
        assert dialogue.printed == ["4 m/s"]


def test_an_unknown_topic_is_told_and_asked_again(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node("--udp", "127.0.0.1:0")
    with asking(tmp_path, node.urls["udp"]) as dialogue:
        dialogue.type("soil")
        dialogue.wait_for(
            'Not subscribed: there is no topic "soil"; there are 01 temperature, 02 wind speed, 03 humidity\n'
            "Which topic do you want to subscribe to?"
        )
        dialogue.type("#")
        dialogue.wait_for("Not subscribed: udp:// has no wildcards")


def test_a_sensor_topic_is_one_however_it_is_written(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node("--udp", "127.0.0.1:0")
    with asking(tmp_path, node.urls["udp"], "-C", "2") as dialogue:
        for times, line in enumerate(("1", "01", "temperature", "1")):
            dialogue.type(line)
            dialogue.wait_for("Asked for temperature.")
            dialogue.wait_for("You are subscribed to temperature already.", times)
        dialogue.type("7")
        dialogue.wait_for("Asked for 07.")
        dialogue.type("07")
        dialogue.wait_for("You are subscribed to 07 already.")
        for packet in (b"1234510121.5", b"1234510122"):
            send(node.port("udp"), packet)
        assert dialogue.finish() == 0
        assert dialogue.printed == ["21.5", "22"]


def test_the_end_of_the_input_ends_the_questions_not_the_waiting(
    hedgerow_node: StartNode, tmp_path: Path
) -> None:
    node = hedgerow_node("--udp", "127.0.0.1:0")
    with asking(tmp_path, node.urls["udp"], "-C", "1") as dialogue:
        dialogue.type("1")
        dialogue.end_input()
        dialogue.wait_for("Asked for temperature.")
        send(node.port("udp"), b"1234510121.5")
        assert dialogue.finish() == 0
        assert dialogue.printed == ["21.5"]


def test_no_topic_at_all(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node("--udp", "127.0.0.1:0")
    with asking(tmp_path, node.urls["udp"]) as dialogue:
        dialogue.end_input()
        assert dialogue.finish() == 2
        assert "hedgerow sub: no topic was chosen" in dialogue.said


def test_a_topic_given_beforehand_and_a_time_limit(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node("--udp", "127.0.0.1:0")
    with asking(tmp_path, node.urls["udp"], "humidity", "-W", "0.5") as dialogue:
        dialogue.wait_for("Asked for humidity.\nWaiting for messages.")
        assert dialogue.finish() == 27


def test_it_works_over_mqtt_too(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node()
    with asking(tmp_path, node.urls["mqtt"], "-C", "1") as dialogue:
        dialogue.type("farm/+/wind")
        dialogue.wait_for("Subscribed to farm/+/wind.")
        publish(node.urls["mqtt"], "farm/1/wind", "5 m/s", "-q", "1")
        assert dialogue.finish() == 0
        assert dialogue.printed == ["5 m/s"]


def publish(url: str, *words: str) -> None:
    assert cli.main(["pub", url, *words]) == 0


@pytest.mark.parametrize("version", ["5", "311"])
def test_a_message_is_printed_once_however_the_choices_overlap(
    hedgerow_node: StartNode, tmp_path: Path, version: str
) -> None:
    url = hedgerow_node().urls["mqtt"]
    with asking(tmp_path, url, "-v", "-q", "1", "-V", version, "-C", "4") as dialogue:
        for topic in ("farm/wind", "farm/+", "+/soil", "#"):
            dialogue.type(topic)
            dialogue.wait_for(f"Subscribed to {topic}.")
        for topic in ("farm/#", "barn"):
            dialogue.type(topic)
            dialogue.wait_for(f"You are subscribed to {topic} already, by #.")
        topics = ["farm/wind", "farm/soil", "barn/soil", "barn"]
        for topic in topics:
            publish(url, topic, "x", "-q", "1")
        assert dialogue.finish() == 0
        assert sorted(dialogue.printed) == sorted(f"{topic} x" for topic in topics)


def test_a_last_value_is_printed_once_too(hedgerow_node: StartNode, tmp_path: Path) -> None:
    url = hedgerow_node().urls["mqtt"]
    publish(url, "farm/wind", "4", "-r", "-q", "1")
    publish(url, "farm/soil", "wet", "-r", "-q", "1")
    with asking(tmp_path, url, "farm/wind", "farm/+", "#", "-v", "-q", "1", "-C", "3") as dialogue:
        dialogue.wait_for("Subscribed to #.")
        wait_until(lambda: len(dialogue.printed) == 2, "the last values")
        publish(url, "barn", "open", "-q", "1")
        assert dialogue.finish() == 0
        assert dialogue.printed == ["farm/wind 4", "farm/soil wet", "barn open"]


@pytest.mark.parametrize(
    ("general", "special", "covered"),
    [
        ("a", "a", True),
        ("#", "a/+/#", True),
        ("#", "$SYS/a", False),
        ("a/#", "a", True),
        ("a/#", "a/#", True),
        ("a/+", "a/b", True),
        ("a/+", "a/+", True),
        ("a/+", "a/#", False),
        ("a/+/#", "a/#", False),  # which matches "a", too
        ("a/b", "a/+", False),
        ("a", "a/b", False),
        ("$share/g/#", "a", False),
        ("$share/g/a", "$share/g/a", True),
        ("#", "$share/g/a", False),
    ],
)
def test_which_filter_covers_another(general: str, special: str, covered: bool) -> None:
    assert sub_ask.covers(general, special) is covered


def test_every_option_of_a_subscription_holds(hedgerow_node: StartNode, tmp_path: Path) -> None:
    """The second message is the removal of the first, which goes to everyone."""
    node = hedgerow_node()
    url = node.urls["mqtt"]
    publish(url, "kept", "21.5", "-q", "1", "-r")
    words = (
        url,
        "-q",
        "1",
        "-F",
        "%q %r %S %t [%p]",
        "-C",
        "2",
        "--retain-as-published",
        "--remove-retained",
    )
    with asking(tmp_path, *words, "-D", "subscribe", "subscription-identifier", "7") as dialogue:
        dialogue.type("kept")
        assert dialogue.finish() == 0
        assert dialogue.printed == ["1 1 7 kept [21.5]", "1 1 7 kept []"]


def test_a_session_keeps_what_was_chosen(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node()
    words = (node.urls["mqtt"], "-q", "1", "-c", "-i", "asker")
    with asking(tmp_path, *words, "-E") as dialogue:
        dialogue.type("a")
        assert dialogue.finish() == 0
        assert "Subscribed to a." in dialogue.said
    for payload in ("1", "2"):
        publish(node.urls["mqtt"], "a", payload, "-q", "1")
    for payload in ("1", "2"):
        with asking(tmp_path, *words, "a", "-C", "1") as dialogue:
            assert dialogue.finish() == 0
            assert dialogue.printed == [payload]


def test_overlapping_choices_lose_nothing_of_a_session(hedgerow_node: StartNode, tmp_path: Path) -> None:
    node = hedgerow_node()
    words = (node.urls["mqtt"], "a", "+", "-q", "1", "-c", "-i", "asker", "-C", "1")
    with asking(tmp_path, *words) as dialogue:
        dialogue.wait_for("Subscribed to +.")
        publish(node.urls["mqtt"], "a", "0", "-q", "1")
        assert dialogue.finish() == 0
        assert dialogue.printed == ["0"]
    for payload in ("1", "2", "3"):
        publish(node.urls["mqtt"], "a", payload, "-q", "1")
    for payload in ("1", "2", "3"):
        with asking(tmp_path, *words) as dialogue:
            assert dialogue.finish() == 0
            assert dialogue.printed == [payload]


class Bus:
    def __init__(self) -> None:
        self.acknowledged: list[Message] = []

    def acknowledge(self, message: Message) -> None:
        self.acknowledged.append(message)


class Messages:
    def __init__(self, *messages: Message) -> None:
        self._messages = messages

    async def batches(self) -> AsyncIterator[list[Message]]:
        for message in self._messages:
            yield [message]


@pytest.mark.parametrize("shared", [True, False], ids=["one message for both", "a copy for each"])
async def test_what_is_left_to_an_earlier_choice_is_acknowledged_after_it_was_printed(shared: bool) -> None:
    bus = Bus()
    message = Message("a", b"1", qos=1)
    copy = message if shared else Message("a", b"1", qos=1)
    first = sub_ask._Choice(cast(Any, bus), "a", cast(Any, Messages(message, Message("a", b"2"))), [])
    second = sub_ask._Choice(cast(Any, bus), "#", cast(Any, Messages(copy)), [first])
    assert [batch async for batch in second.batches()] == []
    assert bus.acknowledged == []
    batches = first.batches()
    assert await anext(batches) == [message]
    assert bus.acknowledged == []
    await anext(batches)  # The first batch is dealt with.
    assert [id(each) for each in bus.acknowledged] == [id(copy)]


async def test_what_a_group_shares_out_is_left_to_nobody() -> None:
    first = sub_ask._Choice(cast(Any, Bus()), "$share/g/a", cast(Any, Messages()), [])
    message = Message("a", b"1")
    second = sub_ask._Choice(cast(Any, Bus()), "a", cast(Any, Messages(message)), [first])
    assert [batch async for batch in second.batches()] == [[message]]


async def test_nobody_ends_it_before_the_last_message_is_written() -> None:
    may_write = asyncio.Event()
    written: list[bytes] = []

    async def write_slowly(data: bytes) -> None:
        await may_write.wait()
        written.append(data)

    parser = argparse.ArgumentParser(add_help=False)
    sub.add_arguments(parser)
    arguments = parser.parse_args(["--ask", "-C", "1"])
    bus, printer = Bus(), sub.Printer(arguments, write_slowly)
    first, second = (Message("a", payload, qos=1) for payload in (b"1", b"2"))
    tasks = [
        asyncio.ensure_future(
            sub.print_batches(cast(Any, bus), arguments, printer, None, cast(Any, Messages(message)))
        )
        for message in (first, second)
    ]
    await until(lambda: printer.done, "the first to be taken")
    ended, _ = await asyncio.wait(tasks, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
    assert not ended
    may_write.set()
    await asyncio.gather(*tasks)
    assert written == [b"1\n"]
    assert bus.acknowledged == [first]
