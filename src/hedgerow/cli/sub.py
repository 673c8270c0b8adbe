"""`hedgerow sub`: subscribe and print what arrives, as mosquitto_sub does.

A message of QoS 1 or 2 is acknowledged when it has been printed, and is in the journal if there is one, so
that `-c` and `-C` together lose nothing: what was not printed is there the next time.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import hedgerow
from hedgerow.cli import client_options
from hedgerow.cli.beginnings import add_beginnings
from hedgerow.cli.client_options import Target, write_out
from hedgerow.cli.option_values import positive, topic_filter, whole
from hedgerow.cli.parsing import UsageError
from hedgerow.cli.sub_format import Piece, compile_format, print_payload, print_verbosely
from hedgerow.errors import ConfigError
from hedgerow.message import Message
from hedgerow.mqtt.client.events import MessageReceived
from hedgerow.topics import matches, validate_filter

if TYPE_CHECKING:
    from hedgerow.cli.sub_journal import SubscriberJournal

logger = logging.getLogger(__name__)

EXAMPLES = """\
examples:
  hedgerow sub 'farm/#' -v                             from localhost
  hedgerow sub mqtt://broker.example 'farm/#' 'barn/+'
  hedgerow sub -h broker.example -t 'farm/#' -F '%I %t %p'
  hedgerow sub -t 'farm/#' -C 1 -W 10                  one message, or status 27 after 10 s
  hedgerow sub -t 'farm/#' --json | jq .payload
  hedgerow sub -t 'farm/#' --since 1h -v               what a node with --journal has, and then what comes
  hedgerow sub multicast:// 'home/#' -v                 with no server: whatever is on this network
  hedgerow sub udp://broker.example temperature        from UDP sensors; --ask asks for topics

formats (-F): %t topic, %p payload, %x %X payload in hex, %l its length, %q QoS, %r retain, %m packet id,
  %i id (--origin), %j JSON, %J JSON with a JSON payload inside, %I time (ISO 8601), %U Unix time,
  @X strftime's %X; %C content type, %D correlation data, %E expiry, %F payload format, %P user properties,
  %R response topic, %S subscription identifiers; widths as in %-10.10t; \\n \\t \\0 \\e and %% @@ \\\\
"""

EXIT_TIMED_OUT = 27  # as mosquitto_sub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Subscribe, and print what arrives."
    parser.epilog = EXAMPLES
    parser.usage = "%(prog)s [URL] [TOPIC ...] [OPTIONS]"
    parser.add_argument(
        "words", nargs="*", metavar="URL TOPIC", help="each may be given by an option instead"
    )
    choice = parser.add_argument_group("messages")
    choice.add_argument(
        "-t", "--topic", type=topic_filter, action="append", default=[], help="topic filter; may be repeated"
    )
    choice.add_argument(
        "--ask", action="store_true", help="ask for topics, and go on asking while messages are printed"
    )
    choice.add_argument(
        "-T",
        "--filter-out",
        type=topic_filter,
        action="append",
        default=[],
        metavar="TOPIC",
        help="do not print these topics",
    )
    choice.add_argument(
        "-U",
        "--unsubscribe",
        type=topic_filter,
        action="append",
        default=[],
        metavar="TOPIC",
        help="unsubscribe from this filter",
    )
    choice.add_argument("-q", "--qos", type=int, choices=(0, 1, 2), default=0, help="quality of service (0)")
    add_beginnings(choice, "first what the node has recorded")
    choice.add_argument("-R", dest="no_retained", action="store_true", help="no retained messages")
    choice.add_argument(
        "--retained-only", action="store_true", help="only these; the first other one ends it"
    )
    choice.add_argument(
        "--remove-retained", action="store_true", help="remove from the server what is printed"
    )
    choice.add_argument("--retain-as-published", action="store_true", help="retain as its publisher set it")
    end = parser.add_argument_group("end")
    end.add_argument("-C", dest="count", type=whole(1), metavar="N", help="end after N messages")
    end.add_argument(
        "-W", dest="timeout", type=positive(), metavar="S", help="end after S seconds, with status 27"
    )
    end.add_argument("-E", dest="only_subscribe", action="store_true", help="end when subscribed")
    shape = add_output_arguments(parser)
    shape.add_argument(
        "--journal", metavar="DIR", help="keep what arrives in a journal too, for the pipeline's `quality`"
    )
    client_options.add_arguments(parser)


def add_output_arguments(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """How a `Printer` prints."""
    shape = parser.add_argument_group("output")
    shape.add_argument("-v", "--verbose", action="store_true", help="print the topic too")
    shape.add_argument("-F", dest="format", metavar="FORMAT", help="print in this format; see below")
    shape.add_argument("-o", "--json", action="store_true", help="print one JSON object a line, as -F %%j")
    shape.add_argument("--pretty", action="store_true", help="JSON over several lines")
    shape.add_argument("-N", dest="no_newline", action="store_true", help="no end of line after a message")
    shape.add_argument(
        "--raw", action="store_true", help="on a terminal too, print control characters as they came"
    )
    return shape


def run(arguments: argparse.Namespace) -> int:
    words = list(arguments.words)
    target = Target(arguments, client_options.take_url(words))
    filters = [*arguments.topic, *([target.topic] if target.topic else []), *words]
    if not filters and not arguments.unsubscribe and not arguments.ask:
        raise UsageError("no topic: give it as a word, with -t, or in the URL")
    for each in filters:
        validate_filter(each)
    if arguments.no_retained and arguments.retained_only:
        raise ConfigError("-R and --retained-only leave nothing")
    if arguments.journal is not None:
        from hedgerow.cli.sub_journal import name_subscriber

        name_subscriber(target)
    target.arguments["manual_acknowledgement"] = True
    printer = Printer(arguments)
    return client_options.run(_subscribe(arguments, target, filters, printer))


async def _subscribe(
    arguments: argparse.Namespace, target: Target, filters: list[str], printer: Printer
) -> int:
    try:
        async with asyncio.timeout(arguments.timeout):
            async with (
                hedgerow.connect(target.url, **target.arguments) as bus,
                _journal(arguments, bus, target) as journal,
            ):
                for topic_filter in arguments.unsubscribe:
                    await bus.unsubscribe(topic_filter)
                subscribe = partial(_make_subscription, bus, arguments, target)
                print_messages = partial(print_batches, bus, arguments, printer, journal)
                if arguments.ask:
                    from hedgerow.cli.sub_ask import ask
                    from hedgerow.client.sensor_transport import read_topics

                    await ask(bus, filters, read_topics(target.url), subscribe, print_messages)
                elif filters:
                    async with subscribe(*filters) as messages:
                        # Over UDP nobody answers that it is so.
                        done = "asked for" if target.url.startswith("udp:") else "subscribed to"
                        logger.info("%s %s", done, ", ".join(filters))
                        await print_messages(messages)
        return 0
    except TimeoutError:
        if not arguments.quiet:
            print("hedgerow sub: timed out", file=sys.stderr)
        return EXIT_TIMED_OUT


def _make_subscription(
    bus: hedgerow.Bus, arguments: argparse.Namespace, target: Target, *filters: str
) -> hedgerow.Subscription:
    return bus.subscribe(
        *filters,
        qos=arguments.qos,
        retain_as_published=arguments.retain_as_published,
        properties=target.properties("subscribe"),
        keep=arguments.disable_clean_session,
        since=arguments.since,
    )


class Batches(Protocol):
    """A subscription, or what is left of one to be printed."""

    def batches(self) -> AsyncGenerator[list[Message], None]: ...


@asynccontextmanager
async def _journal(
    arguments: argparse.Namespace, bus: hedgerow.Bus, target: Target
) -> AsyncIterator[SubscriberJournal | None]:
    if arguments.journal is None:
        yield None
        return
    from hedgerow.cli.sub_journal import SubscriberJournal

    with closing(SubscriberJournal(Path(arguments.journal), bus, target)) as journal:
        yield journal


async def print_batches(
    bus: hedgerow.Bus,
    arguments: argparse.Namespace,
    printer: Printer,
    journal: SubscriberJournal | None,
    messages: Batches,
) -> None:
    """Returns when enough was printed, by this subscription or by another that has the same printer."""
    if arguments.only_subscribe:
        return
    async for batch in messages.batches():
        async with printer.turn:
            if printer.done:
                return
            taken = printer.take(batch)
            if journal is not None:
                await journal.keep(taken)
            if printer.output:
                await printer.write(b"".join(printer.output))
            for message in taken:
                if message.qos:
                    bus.acknowledge(message)
            if arguments.remove_retained:
                await _remove_retained(bus, taken, arguments.filter_out)
            if printer.done:
                return


async def _remove_retained(bus: hedgerow.Bus, taken: list[Message], filtered_out: list[str]) -> None:
    for message in taken:
        if (
            message.retain
            and message.payload
            and not any(matches(each, message.topic) for each in filtered_out)
        ):
            await bus.publish(message.topic, b"", qos=1, retain=True)


class Printer:
    """Turns messages into output, and knows when enough have been printed. `write` is where it goes."""

    def __init__(
        self, arguments: argparse.Namespace, write: Callable[[bytes], Awaitable[None]] = write_out
    ) -> None:
        self.write = write
        end = b"" if arguments.no_newline else b"\n"
        is_shown = sys.stdout.isatty() and not arguments.raw
        self._print: Piece
        if arguments.json or arguments.format is not None:
            self._print = compile_format(arguments.format or "%j", end, arguments.pretty, is_shown)
        elif arguments.verbose:
            self._print = print_verbosely(end, is_shown)
        else:
            self._print = print_payload(end, is_shown)
        self._filtered_out: list[str] = arguments.filter_out
        self._no_retained: bool = arguments.no_retained
        self._retained_only: bool = arguments.retained_only
        self._left: float = float("inf") if arguments.count is None else arguments.count
        self.done = False
        self.turn = asyncio.Lock()
        """Whoever takes holds it until what was taken is written and acknowledged: one that sees `done` then
        may end everything."""
        self.output: list[bytes] = []

    def take(self, batch: list[Message]) -> list[Message]:
        """Fill `output`. The messages that are dealt with: all, or those before the end."""
        self.output = []
        now = time.time_ns()
        for number, message in enumerate(batch, 1):
            if not isinstance(message, MessageReceived):  # one that came without a server
                message = _received(message)
            if self._retained_only and not message.retain:
                self.done = True
                return batch[:number]
            if self._is_skipped(message):
                continue
            self.output.append(self._print(message, now))
            self._left -= 1
            if self._left <= 0:
                self.done = True
                return batch[:number]
        return batch

    def _is_skipped(self, message: Message) -> bool:
        if self._no_retained and message.retain:
            return True
        return any(matches(each, message.topic) for each in self._filtered_out)


def _received(message: Message) -> MessageReceived:
    return MessageReceived(
        message.topic, message.payload, message.qos, message.retain, message.properties, message.id
    )
