"""`hedgerow pub`: publish messages, as mosquitto_pub does."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import hedgerow
from hedgerow.cli import client_options
from hedgerow.cli.client_options import Target, in_thread
from hedgerow.cli.option_values import real, topic_name, whole
from hedgerow.cli.parsing import UsageError
from hedgerow.errors import RefusedError, escape_controls

EXAMPLES = """\
examples:
  hedgerow pub farm/barn/temperature 21.5          to localhost
  hedgerow pub mqtt://broker.example farm/barn/temperature 21.5
  hedgerow pub -h broker.example -t farm/barn/temperature -m 21.5 -q 1 -r
  hedgerow pub multicast:// home/vacuum/status done -q 1   with no server, to all on this network
  sensor | hedgerow pub -t farm/barn/temperature -l
"""

_READ_BYTES = 64 * 1024

# Lines on their way at QoS 1 and 2; reading stops beyond it.
MAX_WAITING = 4_096


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Publish messages."
    parser.epilog = EXAMPLES
    parser.usage = "%(prog)s [URL] [TOPIC] [MESSAGE] [OPTIONS]"
    parser.add_argument(
        "words", nargs="*", metavar="URL TOPIC MESSAGE", help="each may be given by an option instead"
    )
    message = parser.add_argument_group("message")
    message.add_argument("-t", "--topic", type=topic_name, help="topic to publish to")
    content = add_content_arguments(message)
    content.add_argument("-l", "--stdin-line", action="store_true", help="each line of standard input is one")
    message.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="quality of service (0)")
    message.add_argument("-r", "--retain", action="store_true", help="keep the message for later subscribers")
    message.add_argument("--repeat", type=whole(1), default=1, metavar="N", help="publish N times")
    message.add_argument("--repeat-delay", type=real(0), default=0.0, metavar="S", help="seconds in between")
    message.add_argument(
        "-M",
        "--max-inflight",
        type=whole(1),
        default=65_535,
        metavar="N",
        help="QoS 1 and 2 on their way at once",
    )
    client_options.add_arguments(parser)


def add_content_arguments(group: argparse._ArgumentGroup) -> argparse._MutuallyExclusiveGroup:
    """What `read_payload` reads; one of them."""
    content = group.add_mutually_exclusive_group()
    content.add_argument("-m", "--message", help="the message")
    content.add_argument("-f", "--file", help="a file is the message")
    content.add_argument(
        "-s", "--stdin-file", action="store_true", help="all of standard input is the message"
    )
    content.add_argument("-n", "--null-message", action="store_true", help="an empty message")
    return content


def run(arguments: argparse.Namespace) -> int:
    words = list(arguments.words)
    target = Target(arguments, client_options.take_url(words))
    topic = arguments.topic or target.topic or (words.pop(0) if words else None)
    if topic is None:
        raise UsageError("no topic: give it as a word, with -t, or in the URL")
    if _content_is_missing(arguments) and words:
        arguments.message = words.pop(0)
    if words:
        raise UsageError(f'what is "{words[0]}"? There are a topic, "{topic}", and a message already')
    if _content_is_missing(arguments):
        raise UsageError("no message: give it as a word, or with -m, -f, -l, -s or -n")
    target.arguments["max_in_flight"] = arguments.max_inflight
    if not arguments.stdin_line:
        # One message that fails is told to whoever gave it, at once.
        target.arguments["reconnect"] = False
    return client_options.run(_publish(arguments, target, topic))


def _content_is_missing(arguments: argparse.Namespace) -> bool:
    given = (arguments.stdin_line, arguments.stdin_file, arguments.null_message)
    return arguments.message is None and arguments.file is None and not any(given)


async def _publish(arguments: argparse.Namespace, target: Target, topic: str) -> int:
    payload = None if arguments.stdin_line else await read_payload(arguments)
    async with hedgerow.connect(target.url, **target.arguments) as bus:
        publisher = _Publisher(bus, arguments, target, topic)
        if payload is None:
            async for line in _read_lines():
                await publisher.publish(line)
        else:
            for number in range(arguments.repeat):
                if number:
                    await asyncio.sleep(arguments.repeat_delay)
                await publisher.publish(payload)
        return await publisher.finish()


async def read_payload(arguments: argparse.Namespace) -> bytes:
    if arguments.message is not None:
        return os.fsencode(arguments.message)
    if arguments.file is not None:
        return await in_thread(Path(arguments.file).read_bytes)
    if arguments.stdin_file:
        return await in_thread(sys.stdin.buffer.read)
    return b""


async def _read_lines() -> AsyncIterator[bytes]:
    """The lines of standard input, without their ends; a last one may have none."""
    rest = b""
    while data := await in_thread(lambda: os.read(sys.stdin.fileno(), _READ_BYTES)):
        *lines, rest = (rest + data).split(b"\n") if b"\n" in data else [rest + data]
        for line in lines:
            yield line
    if rest:
        yield rest


class _Publisher:
    """Publishes without waiting for each acknowledgement, and counts what was refused."""

    def __init__(self, bus: hedgerow.Bus, arguments: argparse.Namespace, target: Target, topic: str) -> None:
        self._bus = bus
        self._topic = topic
        self._qos = arguments.qos
        self._retain = arguments.retain
        self._properties = target.properties("publish")
        self._quiet = arguments.quiet
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._refused = 0

    async def publish(self, payload: bytes) -> None:
        message = hedgerow.Message(self._topic, payload, self._qos, self._retain, self._properties)
        if self._qos == 0:
            await self._note(self._bus.send(message))
            return
        while len(self._waiting) >= MAX_WAITING or (self._waiting and self._waiting[0].done()):
            await self._note(self._waiting.popleft())
        try:
            self._waiting.append(self._bus.send_nowait(message))
        except RefusedError as error:
            self._complain(error)

    async def finish(self) -> int:
        """The exit status, once everything is acknowledged or refused."""
        while self._waiting:
            await self._note(self._waiting.popleft())
        return 1 if self._refused else 0

    async def _note(self, result: Awaitable[None]) -> None:
        try:
            await result
        except RefusedError as error:
            self._complain(error)

    def _complain(self, error: RefusedError) -> None:
        self._refused += 1
        if not self._quiet:
            print(escape_controls(f"hedgerow pub: {self._topic}: {error}"), file=sys.stderr)
