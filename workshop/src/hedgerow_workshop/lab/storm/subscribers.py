"""Subscribers of one kind, in a process of their own.

    python -m hedgerow_workshop.lab.storm.subscribers KIND URL FILE TOPIC…

One for each TOPIC. It says `ready` when all are subscribed, and from then on `have N M` whenever that has
changed: N publications have come, M of them different ones. On SIGUSR1 it writes what they received to FILE.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import uvloop

from hedgerow_workshop.lab.storm.record import SubscriberKind, Tally, write_tallies

TELL_S = 0.1
AT_ONCE = 10  # that connect at the same time

MODULES = {
    SubscriberKind.EXTENSION: "hedgerow_workshop.lab.storm.extension_subscriber",
    SubscriberKind.PAHO_5: "hedgerow_workshop.lab.storm.paho_subscriber",
    SubscriberKind.GMQTT_5: "hedgerow_workshop.lab.storm.gmqtt_subscriber",
    SubscriberKind.PAHO_3: "hedgerow_workshop.lab.storm.paho_subscriber",
}
PACKAGES = {SubscriberKind.PAHO_5: "paho", SubscriberKind.GMQTT_5: "gmqtt", SubscriberKind.PAHO_3: "paho"}


def is_installed(kind: SubscriberKind) -> bool:
    return kind not in PACKAGES or find_spec(PACKAGES[kind]) is not None


async def serve(kind: SubscriberKind, url: str, file: Path, topics: list[str]) -> None:
    tallies = [Tally(f"{kind}-{number}", kind, topic) for number, topic in enumerate(topics)]
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, write_tallies, file, tallies)
    module = import_module(MODULES[kind])
    subscribers = []
    for first in range(0, len(tallies), AT_ONCE):
        opening = [module.open_subscriber(tally, url) for tally in tallies[first : first + AT_ONCE]]
        subscribers += await asyncio.gather(*opening)
    say("ready")
    told = ""
    while True:
        await asyncio.sleep(TELL_S)
        arrived = sum(len(tally.numbers) for tally in tallies)
        text = f"have {arrived} {sum(tally.distinct for tally in tallies)}"
        if text != told:
            say(text)
            told = text


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(words: list[str]) -> None:
    kind, url, file, *topics = words
    logging.basicConfig(level=logging.CRITICAL)  # What a client says of connections that it lost is no news.
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(SubscriberKind(kind), url, Path(file), topics))


if __name__ == "__main__":
    main(sys.argv[1:])
