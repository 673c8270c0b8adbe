"""`hedgerow up`: run a node until it is told to stop.

On standard output, one line for each address: `listening mqtt://127.0.0.1:1883`, written when it takes
connections; for a relay, `relaying HOST:PORT`; and last, where to look: `dashboard http://localhost:8780`.
The log goes to standard error. SIGTERM and SIGINT stop the node in order, the second one at once; SIGHUP
reads the configuration and its files again, and puts in force what can be while clients are connected.
A service manager that speaks systemd's protocol is told when the node serves, that it lives, and when it
stops.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from hedgerow import native
from hedgerow.bridges.config import BridgesConfig
from hedgerow.cli import EXIT_FAILED, EXIT_USAGE
from hedgerow.cli.notify import ServiceManager
from hedgerow.cli.parsing import UsageError
from hedgerow.cli.stop_signals import StopSignals
from hedgerow.errors import ConfigError, HedgerowError, TopicError
from hedgerow.federation.config import FederationConfig
from hedgerow.kinds import NODE
from hedgerow.mobility.config import MobilityConfig
from hedgerow.node import config_loading, logs
from hedgerow.node.broker_urls import is_unspecified
from hedgerow.node.config import Config
from hedgerow.node.open_sockets import HTTP_SCHEMES
from hedgerow.node.server import Server
from hedgerow.node.strangers import reached
from hedgerow.node.values import read_utf8
from hedgerow.parts import make_server
from hedgerow.rates import is_loopback
from hedgerow.web.config import serves_dashboard

logger = logging.getLogger(__name__)

EXAMPLES = """\
examples:
  hedgerow up                                      for this machine alone, its dashboard at http://localhost:8780
  hedgerow up --id barn --neighbour mqtt://10.0.0.2
  hedgerow up --id barn --data /var/lib/hedgerow --mqtt '*:1883' --passwords passwords
  hedgerow up --config node.toml                   a section of it is what --help has in [ ]
  hedgerow up --mosquitto-conf /etc/mosquitto/mosquitto.conf
"""

_JSON_FORMAT = re.compile(r"""^\s*(?:log\s*\.\s*)?format\s*=\s*["']json["']""", re.MULTILINE)

# No message moves while the collector searches, and what a message leaves behind is freed by its
# reference count anyway. A search of 5,000 young objects was measured at 0.1 ms, of 25,000 at 0.6 ms, of
# 300,000 at 12 ms. So the first two stay short and the last is rare.
GC_THRESHOLDS = (5_000, 5, 1_000)
# The thread that commits needs the interpreter for a moment before and after each fsync, and a busy loop
# gives it up only when this is over. The default of 5 ms made a batch take 18 ms, this one 7.
SWITCH_INTERVAL_S = 0.0005


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s [OPTIONS]"
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    config_loading.add_arguments(parser, NODE)
    parser.add_argument(
        "--mosquitto-conf",
        metavar="FILE",
        type=Path,
        help="in place of --config, the configuration of a Mosquitto; flags override it",
    )
    add_shared_arguments(parser)


def add_shared_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--loop",
        choices=("uvloop", "asyncio"),
        default="uvloop",
        help="the event loop: uvloop is fast, asyncio is Python's own",
    )
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def run(arguments: argparse.Namespace) -> int:
    refuse_words(arguments)
    return run_node(arguments, read_configuration, listening_lines)


def read_configuration(arguments: argparse.Namespace) -> Config:
    if arguments.mosquitto_conf is None:
        return config_loading.from_arguments(arguments, NODE)
    if arguments.config is not None:
        raise UsageError("--mosquitto-conf: the node has one configuration; leave out --config")
    from hedgerow.cli.mosquitto.conversion import convert

    file: Path = arguments.mosquitto_conf
    converted = convert(file)
    config = config_loading.from_arguments(arguments, NODE, converted.written)
    logs.set_up(config.log_format, config.log_level)
    for line in converted.ignored:
        logger.warning("%s", line)
    bridges = BridgesConfig(config.of(BridgesConfig).bridges, ((str(file), converted.bridges),))
    return config.with_rooms(bridges) if converted.bridges else config


def run_node(
    arguments: argparse.Namespace,
    read: Callable[[argparse.Namespace], Config],
    describe: Callable[[Server], list[str]],
) -> int:
    """Run what was asked for until it is told to stop; `describe` says what is printed when it serves."""
    if not asks_for_json(arguments):
        return _run_node(arguments, read, describe)
    logs.set_up("json")
    try:
        return _run_node(arguments, read, describe)
    except (
        HedgerowError,
        OSError,
    ) as error:  # Whoever reads the log as JSON reads why there is no more of it.
        logger.error("%s", error)
        return EXIT_USAGE if isinstance(error, ConfigError | TopicError) else EXIT_FAILED


def asks_for_json(arguments: argparse.Namespace) -> bool:
    """Before the configuration is read, and whatever else is wrong with it."""
    if (asked := vars(arguments).get("log.format")) is not None:
        return str(asked) == "json"
    try:
        text = read_utf8(arguments.config) if arguments.config is not None else ""
    except ConfigError:
        return False
    return _JSON_FORMAT.search(text) is not None


def _run_node(
    arguments: argparse.Namespace,
    read: Callable[[argparse.Namespace], Config],
    describe: Callable[[Server], list[str]],
) -> int:
    # Its default action would end a node whose files are being changed, and reloaded, while it starts.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    configuration = read(arguments)
    gc.collect()  # The parser is a ring of hundreds of options: what comes next is to take their place.
    logs.set_up(configuration.log_format, configuration.log_level)
    raise_file_limit()
    with asyncio.Runner(loop_factory=loop_factory(arguments.loop)) as runner:
        runner.run(serve(configuration, describe, partial(read, arguments)))
    return 0


def listening_lines(node: Server) -> list[str]:
    lines = [f"listening {url}" for url in node.urls]
    lines += [f"relaying {address}" for part in node.parts for address in part.relaying]
    if serves_dashboard(node.config) and (url := local_dashboard_url(node.urls)) is not None:
        lines.append(f"dashboard {url}")
    return lines


def local_dashboard_url(urls: Sequence[str]) -> str | None:
    """The address at which a person on this machine sees it: one, however many there are."""
    first = next((url for url in urls if urlsplit(url).scheme in HTTP_SCHEMES), None)
    if first is None:
        return None
    parts = urlsplit(first)
    host, has_both = parts.hostname or "", f"{parts.scheme}://[::1]:{parts.port}" in urls
    if is_unspecified(host) or (is_loopback(host) and has_both):
        return f"{parts.scheme}://localhost:{parts.port}"
    return first


def refuse_words(arguments: argparse.Namespace) -> None:
    """A node takes options alone; a second filter behind `--multicast` is the likeliest word."""
    if arguments.words:
        word = arguments.words[0]
        if "multicast.topics" in vars(arguments):
            raise UsageError(f"{word}: give each filter its own --multicast")
        raise UsageError(f'what is "{word}"? There are options alone')


def loop_factory(name: str) -> type[asyncio.AbstractEventLoop] | None:
    if name == "asyncio":
        return None
    import uvloop

    return uvloop.Loop


async def serve(
    configuration: Config,
    describe: Callable[[Server], list[str]] = listening_lines,
    read_again: Callable[[], Config] | None = None,
) -> None:
    node = make_server(configuration)
    node.read_again = read_again or node.read_again
    node.on_reloaded = lambda config: logs.set_up(config.log_format, config.log_level)
    stop, signals = asyncio.Event(), StopSignals()
    hopeless: list[ConfigError] = []

    def give_up(error: ConfigError) -> None:
        hopeless.append(error)
        stop.set()

    node.on_hopeless = give_up
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_stop_signal, signals, stop)
    await node.start()
    loop.add_signal_handler(signal.SIGHUP, node.reload)
    # What exists now lives as long as the node: the collector need not look at it again.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for line in describe(node):
        print(line)
    sys.stdout.flush()
    kept = f"in {configuration.data}" if configuration.data else "in memory only"
    logger.info("node %s is up, in %s; what it keeps is kept %s", node.node_id, native.STATE, kept)
    if native.STATE.is_stale:
        logger.warning("%s, and is not used; make native compiles it anew", native.STATE.reason)
    warn_of_passing_name(configuration)
    warn_of_open_listeners(configuration)
    manager = ServiceManager()
    manager.ready(f"node {node.node_id} is up")
    await stop.wait()
    manager.stopping()
    logger.info("node %s is stopping", node.node_id)
    await node.stop()
    logger.info("node %s has stopped", node.node_id)
    if hopeless:
        raise hopeless[0]
    end_process(0)


def warn_of_passing_name(configuration: Config) -> None:
    """Neighbours, and mobile and fixed brokers, keep what waits for a node under its name."""
    federation, mobility = configuration.of(FederationConfig), configuration.of(MobilityConfig)
    is_known = federation.takes_part or mobility.role is not None
    if is_known and configuration.id is None and configuration.data is None:
        logger.warning(
            "this node has another name after each start, and gets nothing that waited for it; "
            "give it one (--id NAME), or let it keep one (--data DIR)"
        )


def warn_of_open_listeners(configuration: Config) -> None:
    if next(reached(configuration), None) is None:
        return  # as for most nodes, which then do without what knows the words
    from hedgerow.cli.open_listeners import open_listeners

    for each in open_listeners(configuration):
        logger.warning("%s; %s", each.seen, each.advice)


def on_stop_signal(signals: StopSignals, stop: asyncio.Event) -> None:
    if signals.asks_again():
        logger.warning("stopped at once, by a second signal")
        end_process(1)  # not through finally blocks: one of them may be what takes so long
    stop.set()


def end_process(code: int) -> None:
    """Now, with all objects that there are: to take six million deliveries apart took 8 s."""
    logging.shutdown()
    with suppress(OSError, ValueError):  # whoever read it may be gone
        sys.stdout.flush()
    os._exit(code)


def raise_file_limit() -> None:
    """Every connection takes a descriptor; the usual soft limit of 1,024 is for programs that use select."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # where the kernel's own limit is lower, the soft one stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
