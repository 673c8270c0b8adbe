"""`hedgerow record`: keep what a broker publishes in a journal, for the pipeline to read.

On a terminal one line tells how it goes; otherwise the log does, once a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from contextlib import suppress
from pathlib import Path

from hedgerow.cli import client_options
from hedgerow.cli.option_values import broker_url, by, whole
from hedgerow.cli.progress_line import ProgressLine
from hedgerow.client.options import TlsOptions
from hedgerow.client.urls import BROKER_SCHEMES, BusUrl, parse_url
from hedgerow.errors import ConfigError
from hedgerow.journal.config import JournalConfig, read_filter, read_filters, read_max_age, read_max_bytes
from hedgerow.journal.io.recorder import Recorder, RecorderOptions
from hedgerow.mqtt.packets import NEVER_EXPIRES
from hedgerow.node import logs
from hedgerow.node.values import read_directory_path

logger = logging.getLogger(__name__)

EXAMPLES = """\
examples:
  hedgerow record --broker mqtt://localhost --filter '#' --journal /var/lib/hedgerow/journal
  hedgerow record --broker mqtts://broker.example --cafile ca.pem -u recorder -P secret \\
                  --filter 'farm/#' --filter 'barn/+' --journal farm --max-bytes '10 GB' --max-age '30 d'

Messages of QoS 1 and 2 are acknowledged when they are durable in the journal. Stopped, or killed, it goes on
where it was: the broker keeps its session.
"""

LINE_EVERY_S = 1.0
LOG_EVERY_S = 60.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Keep what a broker publishes in a journal."
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    add = parser.add_argument_group("what to record, and where").add_argument
    add(
        "--broker",
        required=True,
        type=broker_url,
        metavar="URL",
        help="mqtt(s)://[USER[:PASSWORD]@]HOST[:PORT], or ws(s)://…",
    )
    add(
        "--filter",
        action="append",
        required=True,
        dest="filters",
        type=read_filter,
        help="topic filter; may be repeated",
    )
    add(
        "--journal",
        required=True,
        type=by(read_directory_path),
        metavar="DIR",
        help="the journal's directory, made when there is none",
    )
    add("--name", help="the recorder's name in the ids that it gives (one made of the journal's id)")
    add("--broker-name", metavar="NAME", help="the broker in the journal, if it tells no name (HOST:PORT)")
    add = parser.add_argument_group("how much is kept (everything)").add_argument
    add(
        "--max-bytes",
        type=by(read_max_bytes),
        metavar="SIZE",
        help="remove the oldest of the journal beyond so many bytes",
    )
    add("--max-age", type=by(read_max_age), metavar="DURATION", help="remove what was recorded longer ago")
    add("--drop-committed", action="store_true", help="remove what every reader of the journal has taken")
    add = parser.add_argument_group("connection").add_argument
    client_options.add_login_arguments(add)
    add("-i", "--id", help="client id (one made of the journal's id)")
    add(
        "-k", "--keepalive", type=whole(0, 65_535), default=60, metavar="S", help="keep-alive in seconds (60)"
    )
    add(
        "-x",
        "--session-expiry-interval",
        type=client_options.read_expiry,
        default=NEVER_EXPIRES,
        metavar="S",
        help="seconds to keep the session (for ever)",
    )
    add(
        "-V",
        "--version",
        "--protocol-version",
        dest="protocol_version",
        type=client_options.read_version,
        metavar="VERSION",
        help="5, 311 or 31 (5, or 311 if that is refused)",
    )
    add = parser.add_argument_group("about this program").add_argument
    add("--log-format", choices=("text", "json"), default="text", help="of the log (text)")
    add("--log-level", choices=tuple(logs.LEVELS), default="info", help="what is logged (info)")


def run(arguments: argparse.Namespace) -> int:
    options = _read_options(arguments)
    terminal = ProgressLine(sys.stderr) if sys.stderr.isatty() and arguments.log_format == "text" else None
    logs.set_up(arguments.log_format, arguments.log_level, terminal)  # type: ignore[arg-type]
    return client_options.run(_record(options, terminal))


def _read_options(arguments: argparse.Namespace) -> RecorderOptions:
    address = _read_address(arguments)
    password = address.password if arguments.password is None else arguments.password
    journal = JournalConfig(
        topics=read_filters(arguments.filters, Path()),
        directory=arguments.journal,
        max_bytes=arguments.max_bytes,
        max_age_s=arguments.max_age,
        drop_committed=arguments.drop_committed,
    )
    return RecorderOptions(
        address,
        journal,
        name=arguments.name,
        broker_name=arguments.broker_name,
        client_id=arguments.id,
        username=address.username if arguments.username is None else arguments.username,
        password=None if password is None else password.encode(),
        version=arguments.protocol_version,
        keep_alive_s=arguments.keepalive,
        session_expiry_s=arguments.session_expiry_interval,
        tls=TlsOptions(arguments.cafile, arguments.cert, arguments.key, arguments.insecure),
    )


def _read_address(arguments: argparse.Namespace) -> BusUrl:
    address = parse_url(arguments.broker)
    if address.scheme.name not in BROKER_SCHEMES:
        known = ", ".join(f"{name}://" for name in BROKER_SCHEMES)
        raise ConfigError(f"--broker {address}: a recorder has a session at a broker; there are {known}")
    if address.rest not in ("", "/") and not address.scheme.websocket:
        raise ConfigError(f'--broker {address}: what is "{address.rest}"? Topics go with --filter')
    if (arguments.cafile or arguments.cert or arguments.key) and not address.scheme.tls:
        raise ConfigError(f"{address.scheme.name}:// is without TLS; write {address.scheme.name}s://")
    return address


async def _record(options: RecorderOptions, terminal: ProgressLine | None) -> int:
    recorder = Recorder(options)
    telling = asyncio.ensure_future(_tell(recorder, terminal))
    try:
        await recorder.run()
    finally:
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
        if terminal is not None:
            terminal.show("")
        logger.info("recorded %s messages%s", f"{recorder.rows:,}", _describe_refused(recorder.refused))
    return 0


def _describe_refused(count: int) -> str:
    return f"; {count:,} that break a rule were set aside" if count else ""


async def _tell(recorder: Recorder, terminal: ProgressLine | None) -> None:
    before, since = 0, time.monotonic()
    while True:
        await asyncio.sleep(LOG_EVERY_S if terminal is None else LINE_EVERY_S)
        rows, now = recorder.rows, time.monotonic()
        rate = (rows - before) / (now - since)
        text = f"{rows:,} messages, {rate:,.0f}/s, {recorder.behind:,} not durable yet"
        if terminal is not None:
            terminal.show(text if recorder.is_recording else f"{text}; not connected")
        elif rows != before:
            logger.info("%s", text)
        before, since = rows, now
