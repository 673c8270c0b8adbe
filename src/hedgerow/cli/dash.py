"""`hedgerow dash URL…`: serve the dashboard of a fabric from a machine that runs no node of it.

It is a node without MQTT listeners that becomes a neighbour of those at the URLs, which must be federated,
and hears from them what all the others tell. On standard output, one line for each address: `listening
http://127.0.0.1:8781`; and last, where to look: `dashboard http://localhost:8781`. Log and signals are as for
`hedgerow up`; a node that is not there, or refuses, is tried again for ever, and the log and every page say
why.
"""

from __future__ import annotations

import argparse
import hashlib
import secrets
import socket
from dataclasses import replace
from pathlib import Path

from hedgerow.cli import up
from hedgerow.cli.parsing import UsageError
from hedgerow.errors import ConfigError
from hedgerow.federation.config import FederationConfig
from hedgerow.kinds import DASHBOARD
from hedgerow.node import config_loading
from hedgerow.node.config import Config

EXAMPLES = """\
examples:
  hedgerow dash mqtt://barn:1883
  hedgerow dash mqtts://barn.example --federation-key federation.key
  hedgerow dash mqtt://barn --http 0.0.0.0:8781 --passwords passwords --administrator anna
"""

NEIGHBOURS = "federation.neighbours"
PREFIX = "dashboard-"
MACHINE_ID = Path("/etc/machine-id")  # machine-id(5)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s URL… [--http HOST:PORT] [OPTIONS]"
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    config_loading.add_arguments(parser, DASHBOARD)
    up.add_shared_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    return up.run_node(arguments, read_configuration, up.listening_lines)


def read_configuration(arguments: argparse.Namespace, machine_id: Path = MACHINE_ID) -> Config:
    """With the URLs as neighbours, and with a name. Raises ConfigError."""
    given = vars(arguments)
    for word in arguments.words:
        if "://" not in word:
            raise UsageError(f'what is "{word}"? There are URLs alone; as one it is mqtt://{word}')
    urls = [*arguments.words, *given.get(NEIGHBOURS, ())]
    if urls:
        given[NEIGHBOURS] = urls
    configuration = config_loading.from_arguments(arguments, DASHBOARD)
    federation = configuration.of(FederationConfig)
    if not federation.is_enabled:
        raise ConfigError("which fabric? Give the URL of a node of it, such as mqtt://localhost")
    if not configuration.http and not configuration.https:
        raise ConfigError("--http off: a dashboard is seen at an address")
    # Nothing waits for a dashboard that is closed, nor is it as good as a subscriber while it is.
    name = configuration.id or own_id(configuration, machine_id)
    return replace(configuration, id=name).with_rooms(replace(federation, keep_s=0.0))


def own_id(configuration: Config, machine_id: Path) -> str:
    """The same at each start: neighbours keep a place for a day for each name that they have seen.

    And unlike that of any other dashboard: two of one name would take the link from each other for ever."""
    listeners = (*configuration.http, *configuration.https)
    where = (*listeners, *configuration.of(FederationConfig).neighbours)
    text = " ".join([socket.gethostname(), _read_machine_id(machine_id), *map(str, where)])
    if any(address.port == 0 for address in listeners):  # Nothing tells two such ones on this machine apart.
        text = secrets.token_hex()
    return PREFIX + hashlib.sha256(text.encode()).hexdigest()[:6]


def _read_machine_id(file: Path) -> str:
    """Of machines that all have the host name that they came with; nothing where the system has none."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""
