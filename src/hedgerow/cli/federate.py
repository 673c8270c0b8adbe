"""`hedgerow federate`: federate a broker that is not ours, from beside it, until it is told to stop.

It is a node without listeners, which needs a client's rights at the broker that it stands beside and at those
of its neighbours. On standard output, one line when it runs: `federating mqtt://localhost:1883 as barn with
mqtt://house:1883`; if it serves the dashboard and metrics, those of `hedgerow up` for its addresses. Log and
signals are as there. A broker that is not there, or refuses, is tried again for ever, and the log says why.
Beside a node of ours, which federates itself, it says so and ends.
"""

from __future__ import annotations

import argparse
from functools import partial

from hedgerow.cli import up
from hedgerow.cli.parsing import UsageError
from hedgerow.federation.config import FederationConfig
from hedgerow.kinds import SIDECAR
from hedgerow.node import config_loading
from hedgerow.node.server import Server

EXAMPLES = """\
examples:
  hedgerow federate --broker mqtt://localhost --id barn --neighbour mqtt://house --data barn-federation
  hedgerow federate --broker mqtt://localhost --id barn --discover --http localhost:8780
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "%(prog)s --broker URL [OPTIONS]"
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    config_loading.add_arguments(parser, SIDECAR)
    up.add_shared_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    if arguments.words:
        raise UsageError(f'what is "{arguments.words[0]}"? There are options alone')
    return up.run_node(arguments, partial(config_loading.from_arguments, kind=SIDECAR), describe)


def describe(node: Server) -> list[str]:
    federation = node.config.of(FederationConfig)
    first = f"federating {federation.home} as {node.node_id} {_with_whom(federation)}"
    return [first, *up.listening_lines(node)]


def _with_whom(federation: FederationConfig) -> str:
    links = [str(url) for url in federation.read_linked()]
    links += [f"{each} by the document's wire" for each in federation.read_document_neighbours()]
    links += [f"whom {url} knows" for url in federation.join]
    if federation.discover:
        links.append("whom multicast DNS finds")
    return f"with {', '.join(links)}" if links else "with whoever links to it"
