"""`hedgerow dash URL…`: serve the dashboard of a fabric from a machine that runs no node of it.

It is a node without MQTT listeners that becomes a neighbour of those at the URLs, which must be federated,
and hears from them what all the others tell. On standard output, one line for each address: `listening
http://127.0.0.1:8781`. Log and signals are as for `hedgerow up`; a node that is not there, or refuses, is
tried again for ever, and the log and every page say why.
"""

from __future__ import annotations

import argparse
import hashlib
import socket
from dataclasses import replace

from hedgerow.cli import up
from hedgerow.cli.parsing import UsageError
from hedgerow.errors import ConfigError
from hedgerow.net import config

EXAMPLES = """\
examples:
  hedgerow dash mqtt://barn:1883
  hedgerow dash mqtts://barn.example --federation-key federation.key
  hedgerow dash mqtt://barn --http 0.0.0.0:8781 --passwords passwords --administrator anna
"""

NEIGHBOURS = "federation.neighbours"
PREFIX = "dashboard-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s URL… [--http HOST:PORT] [OPTIONS]"
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    config.add_arguments(parser, config.DASHBOARD)
    up.add_shared_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return up.run_node(arguments, read_configuration, up.listening_lines)


def read_configuration(arguments: argparse.Namespace) -> config.Config:
    """With the URLs as neighbours, and with a name. Raises ConfigError."""
    given = vars(arguments)
    for word in arguments.words:
        if "://" not in word:
            raise UsageError(f'what is "{word}"? There are URLs alone; as one it is mqtt://{word}')
    urls = [*arguments.words, *given.get(NEIGHBOURS, ())]
    if urls:
        given[NEIGHBOURS] = urls
    configuration = config.from_arguments(arguments, config.DASHBOARD)
    if not configuration.federation.is_enabled:
        raise ConfigError("which fabric? Give the URL of a node of it, such as mqtt://localhost")
    if not configuration.http and not configuration.https:
        raise ConfigError("--http off: a dashboard is seen at an address")
    # Nothing waits for a dashboard that is closed, nor is it as good as a subscriber while it is.
    federation = replace(configuration.federation, keep_s=0.0)
    return replace(configuration, id=configuration.id or own_id(configuration), federation=federation)


def own_id(configuration: config.Config) -> str:
    """The same at each start: neighbours keep a place for a day for each name that they have seen."""
    where = (*configuration.http, *configuration.https, *configuration.federation.neighbours)
    text = " ".join([socket.gethostname(), *map(str, where)])
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:6]
