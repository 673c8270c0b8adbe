"""`hedgerow top`: watch a fabric in a terminal, for people on SSH.

It subscribes to what nodes tell of themselves, at any one of them, and shows nodes, links, hot topics and
events, each second, on the terminal's other screen. Without a terminal, and with `--once`, it prints what it
has heard after a moment, and ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import hedgerow
from hedgerow.cli import client_options
from hedgerow.cli.client_options import Target, write_out
from hedgerow.cli.parsing import UsageError
from hedgerow.cli.terminal import Screen, can_draw
from hedgerow.cli.top_view import (
    BAD,
    QUIET,
    SORTS,
    TITLE,
    VIEWS,
    ScreenLine,
    TopSnapshot,
    cut,
    render,
    take_snapshot,
)
from hedgerow.errors import ConfigError, HedgerowError, RefusedError, printable
from hedgerow.topics import STATUS_FILTER, STATUS_PREFIX
from hedgerow.web.fabric import SILENT_S, Fabric

VERSION_TOPIC = "$SYS/broker/version"
FIRST_S = 5.0
GATHER_S = 2.5  # from the first status on: two of each node make a rate, and a mobile broker tells each 2 s
REFRESH_S = 1.0
WIDTH = 200  # of what is printed where there is no terminal

EXAMPLES = """\
keys: q ends it, s sorts nodes by another column, v shows one part alone, which up and down scroll,
  space holds it

examples:
  hedgerow top                                 of the node on this machine, and all that it is linked with
  hedgerow top mqtt://10.0.0.7 -u anna -P secret
  hedgerow top --once
  hedgerow top --json | jq '.links[] | select(.state != "up")'
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Watch a fabric: nodes, links, hot topics and events, each second."
    parser.epilog = EXAMPLES
    parser.usage = "%(prog)s [URL] [OPTIONS]"
    parser.add_argument(
        "words", nargs="*", metavar="URL", help="of any node of the fabric (mqtt://localhost)"
    )
    shape = parser.add_argument_group("output")
    shape.add_argument("--once", action="store_true", help="print what is heard in a few seconds, and end")
    shape.add_argument("--json", action="store_true", help="the same, as one JSON object")
    shape.add_argument("--sort", choices=SORTS, default="name", help="the nodes' order (name)")
    client_options.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    words = list(arguments.words)
    url = client_options.take_url(words)
    if words:
        hint = f"; as a URL it is mqtt://{words[0]}" if url is None else ""
        raise UsageError(f'what is "{words[0]}"? There are a URL and options alone{hint}')
    target = Target(arguments, url)
    if not target.url.startswith(("mqtt", "ws")) or target.topic is not None:
        raise ConfigError(f"{target.url}: a fabric is watched over MQTT, by a URL without a topic")
    watch = FabricWatch(target)
    if arguments.json or arguments.once or not can_draw():
        return client_options.run(print_once(watch, arguments))
    return client_options.run(show(watch, arguments))


class FabricWatch:
    """A subscription to the statuses of a fabric, and what they say."""

    def __init__(self, target: Target) -> None:
        self.fabric = Fabric()
        self.url = target.url
        self._arguments = target.arguments
        self._version: str | None = None
        self._heard = asyncio.Event()
        self._heard_at = 0.0

    async def run(self, show: Callable[[], Awaitable[None]]) -> None:
        """Listen, and call `show` when there is something to see; returns when that does."""
        async with hedgerow.connect(self.url, **self._arguments) as bus:
            listening = asyncio.create_task(self._listen(bus))
            showing: asyncio.Task[None] | None = None
            try:
                await self._first_status(listening)
                showing = asyncio.ensure_future(show())
                await asyncio.wait({listening, showing}, return_when=asyncio.FIRST_COMPLETED)
                if listening.done():
                    listening.result()
                    raise HedgerowError(f"{self.url} closed the connection")
                showing.result()
            finally:
                for task in filter(None, (listening, showing)):
                    task.cancel()
                    with suppress(asyncio.CancelledError, Exception):
                        await task

    async def _first_status(self, listening: asyncio.Task[None]) -> None:
        heard = asyncio.ensure_future(self._heard.wait())
        try:
            await asyncio.wait({listening, heard}, timeout=FIRST_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            heard.cancel()
        if listening.done():
            listening.result()
            raise HedgerowError(f"{self.url} closed the connection")
        if not self._heard.is_set():
            raise HedgerowError(self._why_nothing())

    async def _listen(self, bus: hedgerow.Bus) -> None:
        # The version with a wildcard, since a filter without one is refused to whom an ACL does not grant it.
        filters = (STATUS_FILTER, f"{VERSION_TOPIC}/#")
        try:
            async with bus.subscribe(*filters) as messages:
                async for message in messages:
                    self._receive(message)
        except RefusedError as error:
            raise HedgerowError(f"{self.url}: {error}. {self._needed_right()}") from None

    def _receive(self, message: hedgerow.Message) -> None:
        if message.topic == VERSION_TOPIC:
            self._version = message.payload.decode(errors="replace")
        elif message.topic.startswith(STATUS_PREFIX):
            now = time.time()
            if now - self._heard_at > SILENT_S:
                # The connection was lost: what was told meanwhile was not for us.
                self.fabric.begin_counting()
            self._heard_at = now
            self.fabric.receive(message.topic, message.payload, now)
            if self.fabric.nodes:
                self._heard.set()

    def _why_nothing(self) -> str:
        nothing = f"{self.url} told nothing of itself in {FIRST_S:g} s"
        if self.fabric.ignored:
            return f"{nothing} that this version of hedgerow understands"
        if self._version is None:
            return f"{nothing}: either it is no Hedgerow node, or it may not. {self._needed_right()}"
        if not self._version.startswith("hedgerow"):
            return (
                f'{self.url} is no Hedgerow node, but "{printable(self._version)}"; if a federator stands '
                f"beside it, hedgerow dash {self.url} shows the fabric"
            )
        return f"{nothing}. {self._needed_right()}"

    def _needed_right(self) -> str:
        user = self._arguments["username"]
        who = f"user {printable(user)}" if user else "whoever connects without a name"
        return f"In the node's ACL, {who} needs: topic read {STATUS_FILTER}"


async def print_once(watch: FabricWatch, arguments: argparse.Namespace) -> int:
    await watch.run(lambda: asyncio.sleep(GATHER_S))
    snapshot = take_snapshot(watch.fabric, time.time(), arguments.sort)
    text = json.dumps(snapshot.to_dict()) if arguments.json else plain_text(snapshot)
    await write_out(f"{text}\n".encode())
    return 0


def plain_text(snapshot: TopSnapshot) -> str:
    return "\n".join(line.text for line in render(snapshot, WIDTH, None))


async def show(watch: FabricWatch, arguments: argparse.Namespace) -> int:
    viewer = TopViewer(watch, arguments.sort)
    await watch.run(viewer.run)
    return 0


# On a terminal

COLOURS = {TITLE: "\x1b[1m", BAD: "\x1b[31m", QUIET: "\x1b[2m"}

KEYS: dict[str, str] = {
    "q": "quit",
    "\x04": "quit",  # Ctrl-D
    "s": "sort",
    "v": "view",
    "\t": "view",
    " ": "hold",
    "\x1b[A": "up",
    "\x1bOA": "up",
    "k": "up",
    "\x1b[B": "down",
    "\x1bOB": "down",
    "j": "down",
}


def read_keys(text: str) -> list[str]:
    """What the keys that were typed ask for."""
    asked = []
    while text:
        key = next((each for each in KEYS if text.startswith(each)), None)
        if key is not None:
            asked.append(KEYS[key])
        text = text[len(key or text[0]) :]
    return asked


class TopViewer:
    """What is seen, and in which order, until `q`."""

    def __init__(self, watch: FabricWatch, sort: str) -> None:
        self.sort = sort
        self.view = VIEWS[0]
        self.offset = 0
        self.held: TopSnapshot | None = None
        self.has_ended = False
        self._watch = watch
        self._news = asyncio.Event()
        self._log = LastLine()

    async def run(self) -> None:
        with Screen(self._news.set, self.take_keys) as screen, self._log:
            while not self.has_ended:
                width, height = screen.size()
                lines = self.lines(width, height)
                await screen.draw([(line.text, COLOURS.get(line.style, "")) for line in lines])
                self._news.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_S):
                        await self._news.wait()

    def lines(self, width: int, height: int) -> list[ScreenLine]:
        snapshot = self.held or take_snapshot(self._watch.fabric, time.time(), self.sort)
        note = self._log.text(time.time())
        body = render(snapshot, width, height - 1, view=self.view, offset=self.offset, note=note)
        state = "held" if self.held else f"sorted by {self.sort}"
        help_line = f"{self._watch.url}  {state}, {self.view}   q quit  s sort  v view  ↑↓ scroll  space hold"
        blank = [ScreenLine("")] * (height - 1 - len(body))
        return [*body, *blank, ScreenLine(cut(printable(help_line), width), QUIET)]

    def take_keys(self, text: str) -> None:
        for asked in read_keys(text):
            match asked:
                case "quit":
                    self.has_ended = True
                case "sort":
                    self.sort = _next(self.sort, list(SORTS))
                    self.held = None
                case "view":
                    self.view, self.offset = _next(self.view, VIEWS), 0
                case "hold":
                    is_held = self.held is not None
                    self.held = None if is_held else take_snapshot(self._watch.fabric, time.time(), self.sort)
                case "up":
                    self.offset = max(0, self.offset - 1)
                case "down":
                    self.offset = min(self.offset + 1, self._last_offset())
        self._news.set()

    def _last_offset(self) -> int:
        snapshot = self.held or take_snapshot(self._watch.fabric, time.time(), self.sort)
        return 0 if self.view == "all" else max(0, len(getattr(snapshot, self.view)) - 1)


def _next(current: str, names: list[str] | tuple[str, ...]) -> str:
    return names[(names.index(current) + 1) % len(names)]


class LastLine(logging.Handler):
    """What would be logged over the screen becomes a line of it, for a while."""

    SHOWN_S = 10.0

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._last: tuple[float, str] | None = None
        self._before: list[logging.Handler] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._last = (record.created, printable(record.getMessage()))

    def text(self, now: float) -> str:
        return self._last[1] if self._last and now - self._last[0] < self.SHOWN_S else ""

    def __enter__(self) -> LastLine:
        self._before = logging.root.handlers[:]
        logging.root.handlers[:] = [self]
        return self

    def __exit__(self, *_: object) -> None:
        logging.root.handlers[:] = self._before
