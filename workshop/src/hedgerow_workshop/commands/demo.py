"""`hedgerow demo`: a small farm on this machine, and a story that is told of it (`hedgerow_workshop.demo`).

On a terminal it goes on after the story until Ctrl-C, so that one can look around; elsewhere, and with
`--headless`, it ends with the summary. Status 1 when a message was lost or doubled on the way to
a listener or to Spark's tables.
"""

from __future__ import annotations

import argparse
import sys

from hedgerow.cli.option_values import positive

DEFAULT_S = 60.0
MAX_S = 86_400.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--headless", action="store_true", help="plain lines, and end after the summary")
    parser.add_argument(
        "--seconds",
        metavar="N",
        type=positive(MAX_S),
        default=DEFAULT_S,
        help=f"of the story ({DEFAULT_S:g})",
    )
    parser.add_argument("--no-spark", action="store_true", help="without the Spark pipeline")


def run(arguments: argparse.Namespace) -> int:
    # Before the imports of all that takes part, which take most of a second.
    print("a farm on this machine: a house, the fields north, south and west, and a tractor", flush=True)
    from hedgerow.cli.terminal import can_draw
    from hedgerow.node import logs
    from hedgerow_workshop.demo.run import Options
    from hedgerow_workshop.demo.run import run as run_demo
    from hedgerow_workshop.demo.terminal import Terminal

    logs.set_up(level="warning")
    is_watched = sys.stdout.isatty() and not arguments.headless
    options = Options(arguments.seconds, with_spark=not arguments.no_spark, goes_on=is_watched)
    return run_demo(options, Terminal(sys.stdout, is_live=is_watched and can_draw()))
